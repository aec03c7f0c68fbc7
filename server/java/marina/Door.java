package marina;

import io.netty.channel.Channel;
import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPromise;
import io.netty.channel.socket.ChannelInputShutdownEvent;
import io.netty.channel.socket.DuplexChannel;
import io.netty.handler.codec.DecoderException;
import io.netty.handler.codec.TooLongFrameException;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpContent;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaderValues;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpStatusClass;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.util.ReferenceCountUtil;
import io.netty.util.concurrent.Future;
import java.util.ArrayDeque;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.pytorch.serve.util.NettyUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Between the HTTP decoder and TorchServe, one of each connection: it counts what is open, lets in one request at a
 * time, refuses what TorchServe cannot take, and sees every answer out.
 */
final class Door extends ChannelDuplexHandler {
    private static final Logger ACCESS = LoggerFactory.getLogger("marina.access");
    /** The status of a request whose client left before its answer, as nginx logs it. */
    private static final int LEFT = 499;
    /** How long a client may take to read a last answer, and so often as long again to send the rest of what was refused. */
    private static final long LINGER_S = 5;
    private static final int MORE_LINGERS = 5;
    /** In this time TorchServe has made a job of a request, and its answer has come from the worker's thread to ours. */
    private static final long TAKEN_NS = TimeUnit.SECONDS.toNanos(1);
    /** A request that is missing so often in a row is lost. */
    private static final int MISSED = 3;

    private final Ledger ledger;
    private final Crowd crowd;
    private final Settings settings;
    /** What was sent before the answer to what came before it; TorchServe would mix the answers up. */
    private final Queue<Object> waiting = new ArrayDeque<>();
    private Request current;
    /** A request is to come: the connection is new, or has sent half a head. */
    private boolean expecting;
    private boolean replaying;
    /** The last answer of this connection is written: what still comes in is thrown away. */
    private boolean closing;
    /** Bytes have come since this was last looked at. */
    private boolean heard;
    /** The client sends nothing more. */
    private boolean saidAll;
    private Future<?> end;
    /** Looks from time to time at a connection that owes something. */
    private final Patience patience = new Patience();
    private Future<?> look;
    private ChannelHandlerContext here;
    private boolean turnedAway;
    final Stay stay = new Stay();
    private final Memory.Share share;

    Door(Ledger ledger, Crowd crowd, Settings settings) {
        this.ledger = ledger;
        this.crowd = crowd;
        this.settings = settings;
        share = ledger.memory.new Share(this::makeMemory);
    }

    @Override
    public void channelActive(ChannelHandlerContext context) {
        here = context;
        stay.awaits();
        if (crowd.enter(this)) {
            rings(context);
            context.fireChannelActive();
        } else {
            turnAway(context);
        }
    }

    private void turnAway(ChannelHandlerContext context) {
        turnedAway = crowd.mayTell();
        closing = true;
        if (turnedAway) {
            say(context, Refusal.crowded(crowd.limit));
        } else {
            context.close();
        }
    }

    /** Answers what is no whole request; it is the last that this connection hears. */
    private void say(ChannelHandlerContext context, Refusal refusal) {
        FullHttpResponse answer = refusal.answer(null, settings);
        answer.headers().set(HttpHeaderNames.CONNECTION, HttpHeaderValues.CLOSE);
        closing = true;
        context.writeAndFlush(answer).addListener(done -> close(context));
    }

    /** Goes, unless a whole request has come meanwhile. */
    void makeRoom() {
        here.channel().eventLoop().execute(() -> {
            if (current != null && current.received) {
                crowd.returns(this);
            } else if (closing || !crowd.mayTell()) {
                here.close();
            } else {
                turnedAway = true;
                goes();
            }
        });
    }

    /** Ends a connection that has no whole request, and says so where the rest of one is owed. */
    private void goes() {
        if (current != null) {
            refuse(here, Refusal.late(), null);
        } else if (expecting) {
            understood();
            say(here, Refusal.late());
        } else {
            close(here);
        }
    }

    /** Ends what is slow to come or to go. */
    private void makeMemory() {
        here.channel().eventLoop().execute(() -> {
            if (current != null && !current.received) {
                refuse(here, Refusal.full(), null);
            } else if (current != null && current.answered) {
                here.close();
            }
        });
    }

    /**
     * Whether it has been idle for too long, nobody reads its answer, or TorchServe has forgotten its request. {@code
     * held} are the ids of all that TorchServe held at the time {@code at}; null if that is not known.
     */
    void lookAround(long idleNs, long unreadNs, Set<String> held, long at) {
        here.channel().eventLoop().execute(() -> {
            if (current == null && !expecting && !closing && stay.isIdle(idleNs)) {
                close(here);
            } else if (current != null && current.received && stay.isUnread(here.channel(), unreadNs)) {
                here.close();
            } else if (current != null && held != null) {
                current.missed = isMissing(held, at) ? current.missed + 1 : 0;
                if (current.missed == MISSED) {
                    refuse(here, Refusal.lost(), null);
                }
            }
        });
    }

    /** Whether TorchServe should hold a job for what is asked here, and holds none. */
    private boolean isMissing(Set<String> held, long at) {
        return current.inference
                && current.received
                && current.status == 0
                && at - current.receivedAt > TAKEN_NS
                && !held.contains(NettyUtils.getRequestId(here.channel()));
    }

    /** Somebody is here, or has sent bytes of which nothing is known. */
    void rings(ChannelHandlerContext context) {
        heard = true;
        if (!expecting && current == null && !closing) {
            expecting = true;
            stay.awaits();
            ledger.expected.incrementAndGet();
            await(context);
        }
    }

    /** From now on the client owes the rest of a head, or of a body. */
    private void await(ChannelHandlerContext context) {
        patience.begins();
        if (look == null) {
            lookIn(context, Patience.SHORTEST_NS);
        }
    }

    private void lookIn(ChannelHandlerContext context, long nanoseconds) {
        look = context.channel().eventLoop().schedule(() -> look(context), nanoseconds, TimeUnit.NANOSECONDS);
    }

    /** Whoever sends a request a byte at a time is told so once, and is gone. */
    private void look(ChannelHandlerContext context) {
        look = null;
        boolean sending = current != null && !current.received;
        if (closing || !(expecting || sending)) {
            return;
        }
        long left = patience.left(sending ? current.bodyBytes : 0);
        if (left > 0) {
            lookIn(context, left);
        } else {
            goes();
        }
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        if (closing) {
            ReferenceCountUtil.release(message);
        } else if (current != null && current.received) {
            waiting.add(message);
            context.channel().config().setAutoRead(false);
        } else if (message instanceof HttpRequest) {
            begin(context, (HttpRequest) message);
        } else {
            go(context, (HttpContent) message);
        }
    }

    private void begin(ChannelHandlerContext context, HttpRequest message) {
        current = new Request(message, settings);
        stay.awaits();
        share.moves();
        ledger.open.incrementAndGet();
        if (current.inference) {
            ledger.inferences.incrementAndGet();
        }
        understood();
        await(context);
        if (message.decoderResult().isFailure()) {
            refuse(context, Refusal.malformed(message.decoderResult().cause(), true), message);
        } else if (message.headers().size() > Codec.MOST_HEADERS) {
            refuse(context, Refusal.headers(), message);
        } else if (!current.addressed) {
            refuse(context, Refusal.target(settings), message);
        } else if (current.otherMethods != null) {
            refuse(context, Refusal.method(current.otherMethods), message);
        } else if (current.form) {
            refuse(context, Refusal.form(settings), message);
        } else if (current.declaredBytes < 0) {
            refuse(context, Refusal.malformed(null, true), message);
        } else if (current.declaredBytes > settings.bodyBytes) {
            refuse(context, Refusal.tooLarge(settings), message);
        } else if (current.page != null) {
            ReferenceCountUtil.release(message);
        } else {
            context.fireChannelRead(message);
        }
    }

    private void go(ChannelHandlerContext context, HttpContent message) {
        int more = message.content().readableBytes();
        current.bodyBytes += more;
        current.pieces++;
        stay.sends(current.bodyBytes);
        boolean room = share.takes(more);
        if (message.decoderResult().isFailure()) {
            refuse(context, Refusal.malformed(message.decoderResult().cause(), false), message);
        } else if (current.bodyBytes > settings.bodyBytes) {
            refuse(context, Refusal.tooLarge(settings), message);
        } else if (!room) {
            refuse(context, Refusal.full(), message);
        } else if (current.isCrumbs()) {
            refuse(context, Refusal.crumbs(), message);
        } else if (current.parts != null && message.content().forEachByte(current.parts) >= 0) {
            refuse(context, Refusal.parts(), message);
        } else {
            if (message instanceof LastHttpContent) {
                current.received = true;
                current.receivedAt = System.nanoTime();
                stay.works();
                share.rests();
            }
            if (current.page == null) {
                context.fireChannelRead(message);
                return;
            }
            ReferenceCountUtil.release(message);
            if (current.received) {
                context.channel().writeAndFlush(current.page.answer(ledger.ready, current.host));
            }
        }
    }

    /** The client says that no more comes: it has left, or waits for what it has asked, as {@code nc -N} does. */
    @Override
    public void userEventTriggered(ChannelHandlerContext context, Object event) {
        if (event instanceof ChannelInputShutdownEvent && !saidAll) {
            saidAll = true;
            if (end != null || (!closing && (current == null || !current.received))) {
                context.close();
            } else if (!closing) {
                Presence.ask(context.channel(), current);
            }
        }
        context.fireUserEventTriggered(event);
    }

    /** What the decoder throws, as at a chunk of less than no bytes, instead of saying it by a message. */
    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        if (closing) {
            return;
        }
        if (!(cause instanceof DecoderException)) {
            context.fireExceptionCaught(cause);
        } else if (current == null) {
            understood();
            say(context, cause instanceof TooLongFrameException ? Refusal.headers() : Refusal.malformed(null, true));
        } else if (current.received) {
            current.last = true;
        } else {
            refuse(context, Refusal.malformed(null, false), null);
        }
    }

    /** Whether what is answered now has no body, whatever its head says. */
    boolean isAskedForHead() {
        return current != null && current.method.equals("HEAD");
    }

    /** Answers by itself; the connection ends with it, for the rest of the request is not read. */
    private void refuse(ChannelHandlerContext context, Refusal refusal, Object message) {
        ReferenceCountUtil.release(message);
        current.received = true;
        stay.works();
        current.last = true;
        if (context.pipeline().get("aggregator") != null) {
            // With what it has of the body.
            context.pipeline().remove("aggregator");
        }
        context.channel().writeAndFlush(refusal.answer(null, settings));
    }

    @Override
    public void write(ChannelHandlerContext context, Object message, ChannelPromise promise) {
        Object sent = message;
        if (message instanceof HttpResponse) {
            HttpResponse answer = (HttpResponse) message;
            if (answer.status().codeClass() == HttpStatusClass.INFORMATIONAL) {
                context.write(message, promise);
                return;
            }
            if (current == null || current.status != 0) {
                // Answered already: the client would take this for the answer to what it asks next.
                ReferenceCountUtil.release(message);
                promise.tryFailure(new IllegalStateException("answered twice"));
                return;
            }
            sent = prepare(answer);
            if (sent instanceof FullHttpResponse) {
                share.answers(((FullHttpResponse) sent).content().readableBytes());
            }
        }
        ChannelPromise written = promise.unvoid();
        if (sent instanceof LastHttpContent && current != null) {
            current.answered = true;
            written.addListener(done -> sent(context, done.isSuccess()));
        }
        context.write(sent, written);
    }

    private HttpResponse prepare(HttpResponse message) {
        HttpResponse answer = message;
        if (answer.status().code() >= 400 && answer instanceof FullHttpResponse) {
            Refusal instead = Refusal.instead((FullHttpResponse) answer, current, settings);
            if (instead != null) {
                answer = instead.answer(message.headers(), settings);
                ReferenceCountUtil.release(message);
            }
        }
        // Between TorchServe and its worker.
        answer.headers().remove("ts_stream_next");
        current.status = answer.status().code();
        if (answer.headers().get(HttpHeaderNames.CONTENT_TYPE, "").startsWith("text/event-stream")) {
            // nginx would hold events back until they fill a buffer.
            answer.headers().set("x-accel-buffering", "no");
        }
        if (current.isOld && HttpUtil.isTransferEncodingChunked(answer)) {
            // HTTP/1.0 knows no chunks: the end of the connection is the end of the answer.
            HttpUtil.setTransferEncodingChunked(answer, false);
            current.last = true;
        }
        current.last |= current.status >= 400 || ((ledger.draining || saidAll) && waiting.isEmpty());
        if (current.id != null) {
            answer.headers().set("x-request-id", current.id);
        }
        if (current.last) {
            answer.headers().set(HttpHeaderNames.CONNECTION, HttpHeaderValues.CLOSE);
        }
        return answer;
    }

    /** The last byte of the answer is with the kernel, or the connection is gone. */
    private void sent(ChannelHandlerContext context, boolean whole) {
        if (current == null) {
            return;
        }
        boolean last = current.last || (saidAll && waiting.isEmpty());
        over(context, whole ? current.status : LEFT);
        if (last) {
            close(context);
        } else {
            replay(context);
        }
    }

    private void over(ChannelHandlerContext context, int status) {
        share.free();
        ledger.open.decrementAndGet();
        if (current.inference) {
            ledger.inferences.decrementAndGet();
        }
        if (ACCESS.isInfoEnabled()) {
            ACCESS.info(current.line(context.channel().remoteAddress(), status));
        }
        current = null;
        stay.rests();
    }

    /** Says that no more comes and reads on: a close with unread bytes would take the answer from the client. */
    private void close(ChannelHandlerContext context) {
        closing = true;
        stay.lingers();
        forget();
        Channel channel = context.channel();
        channel.config().setAutoRead(true);
        ChannelFuture ended = ((DuplexChannel) channel).shutdownOutput();
        if (saidAll) {
            ended.addListener(done -> context.close());
            return;
        }
        linger(context, MORE_LINGERS);
    }

    private void linger(ChannelHandlerContext context, int more) {
        heard = false;
        end = context.channel().eventLoop().schedule(
                () -> {
                    if (heard && more > 0) {
                        linger(context, more - 1);
                    } else {
                        context.close();
                    }
                },
                LINGER_S,
                TimeUnit.SECONDS);
    }

    /** TorchServe closes after every error, perhaps before we hear that it is sent; {@link #sent} does it. */
    @Override
    public void close(ChannelHandlerContext context, ChannelPromise promise) {
        if (closing || (current != null && current.answered && context.channel().isActive())) {
            context.channel().closeFuture().addListener((ChannelFuture done) -> promise.trySuccess());
        } else {
            context.close(promise);
        }
    }

    private void replay(ChannelHandlerContext context) {
        if (replaying || waiting.isEmpty()) {
            return;
        }
        replaying = true;
        while (!waiting.isEmpty() && !closing && (current == null || !current.received)) {
            channelRead(context, waiting.poll());
        }
        replaying = false;
        if (saidAll && !closing && (current == null || !current.received)) {
            // The rest of it never comes.
            context.close();
            return;
        }
        // While the server drains, what is asked in one go is answered, and no more is read.
        boolean enough = ledger.draining && current != null && current.received;
        if (waiting.isEmpty() && !closing && !enough) {
            context.channel().config().setAutoRead(true);
        }
    }

    @Override
    public void channelInactive(ChannelHandlerContext context) {
        crowd.leave(this);
        if (turnedAway) {
            crowd.wasTold();
        }
        understood();
        if (current != null) {
            if (current.inference && current.received) {
                Jobs.forgetLeft();
            }
            over(context, LEFT);
        }
        closing = true;
        forget();
        if (end != null) {
            end.cancel(false);
        }
        if (look != null) {
            look.cancel(false);
        }
        context.fireChannelInactive();
    }

    private void understood() {
        if (expecting) {
            expecting = false;
            ledger.expected.decrementAndGet();
        }
    }

    private void forget() {
        while (!waiting.isEmpty()) {
            ReferenceCountUtil.release(waiting.poll());
        }
    }
}
