package marina;

import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpContent;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.util.ReferenceCountUtil;
import java.util.Set;
import org.pytorch.serve.util.NettyUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The request that a connection is reading or answering, from its head to the last byte of its answer: counted, passed on
 * to TorchServe or refused, and logged.
 */
final class CurrentRequest {
    private static final Logger ACCESS = LoggerFactory.getLogger("marina.access");
    /** The status of a request whose client left before its answer, as nginx logs it. */
    private static final int CLIENT_LEFT = 499;

    private final ChannelHandlerContext door;
    private final Counts counts;
    private final Settings settings;
    private final IdleTime idleTime;
    private final Memory.Share share;
    private final Runnable arrived;
    /** Null if there is none. */
    Request request;

    /** {@code arrived} is called once all of a request has been read, before TorchServe gets the end of it. */
    CurrentRequest(
            ChannelHandlerContext door,
            Counts counts,
            Settings settings,
            IdleTime idleTime,
            Memory.Share share,
            Runnable arrived) {
        this.door = door;
        this.counts = counts;
        this.settings = settings;
        this.idleTime = idleTime;
        this.share = share;
        this.arrived = arrived;
    }

    /** Whether some of it has still to be read. */
    boolean isArriving() {
        return request != null && !request.received;
    }

    /** Whether it is read, or refused, and its answer not completely sent. */
    boolean isReceived() {
        return request != null && request.received;
    }

    /** Whether all of its answer is passed on to the connection. */
    boolean isAnswered() {
        return request != null && request.answered;
    }

    /** Whether TorchServe has forgotten it; see {@link Request#isForgotten}. */
    boolean isForgotten(Set<String> held, long at) {
        return request != null && request.isForgotten(held, NettyUtils.getRequestId(channel()), at);
    }

    void begin(HttpRequest head) {
        request = new Request(head, settings);
        idleTime.awaitRequest();
        share.begin();
        counts.opened(request);
    }

    void readHead(HttpRequest head) {
        Refusal refusal = Refusal.ofHead(head, request, settings);
        if (refusal != null) {
            refuse(refusal, head);
        } else if (request.page != null) {
            ReferenceCountUtil.release(head);
        } else {
            door.fireChannelRead(head);
        }
    }

    void readBody(HttpContent piece) {
        int more = piece.content().readableBytes();
        request.bodyBytes += more;
        request.pieces++;
        idleTime.bodyArrived(request.bodyBytes);
        boolean hasRoom = share.addBody(more);
        Refusal refusal = Refusal.ofBody(piece, request, hasRoom, settings);
        if (refusal != null) {
            refuse(refusal, piece);
            return;
        }
        if (piece instanceof LastHttpContent) {
            request.received = true;
            request.receivedAt = System.nanoTime();
            idleTime.requestArrived();
            share.pause();
            arrived.run();
        }
        if (request.page == null) {
            door.fireChannelRead(piece);
            return;
        }
        ReferenceCountUtil.release(piece);
        if (request.received) {
            channel().writeAndFlush(request.page.answer(counts.ready));
        }
    }

    /** Answers it here; the connection ends with that, because the rest of the request is not read. */
    void refuse(Refusal refusal, Object message) {
        ReferenceCountUtil.release(message);
        request.received = true;
        idleTime.requestArrived();
        request.isLast = true;
        if (door.pipeline().get("aggregator") != null) {
            // With what it has of the body.
            door.pipeline().remove("aggregator");
        }
        channel().writeAndFlush(refusal.answer(null, settings));
    }

    /** Its answer as it is sent; {@code isLastOfConnection} if the connection ends with it in any case. */
    HttpResponse prepareAnswer(HttpResponse message, boolean isLastOfConnection) {
        HttpResponse answer = request.prepareAnswer(message, isLastOfConnection, settings);
        if (answer instanceof FullHttpResponse) {
            share.addAnswer(((FullHttpResponse) answer).content().readableBytes());
        }
        return answer;
    }

    /** The last byte of its answer is with the kernel, or the connection is gone. */
    void end(boolean isComplete) {
        share.free();
        counts.closed(request);
        if (ACCESS.isInfoEnabled()) {
            ACCESS.info(request.logLine(channel().remoteAddress(), isComplete ? request.status : CLIENT_LEFT));
            counts.logged.incrementAndGet();
        }
        request = null;
        idleTime.requestAnswered();
    }

    /** The connection is gone. */
    void clientLeft() {
        if (request != null) {
            if (request.inference && request.received) {
                Jobs.forgetLeft();
            }
            end(false);
        }
    }

    private Channel channel() {
        return door.channel();
    }
}
