package marina;

import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPromise;
import io.netty.channel.EventLoop;
import io.netty.channel.socket.ChannelInputShutdownEvent;
import io.netty.handler.codec.DecoderException;
import io.netty.handler.codec.TooLongFrameException;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpContent;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaderValues;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpStatusClass;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.util.ReferenceCountUtil;
import java.util.Set;

/**
 * Between the HTTP decoder and TorchServe, one for each connection: it lets in one request at a time, ends what takes too
 * long or must make room for others, and closes only when each answer is completely sent.
 */
final class Door extends ChannelDuplexHandler {
    private final Counts counts;
    private final Connections connections;
    private final Settings settings;
    private final Memory.Share share;
    final Codec codec = new Codec(this);
    final IdleTime idleTime = new IdleTime();
    private final ArrivalTime arrivalTime = new ArrivalTime(this::checkArrival);
    private final Closing closing = new Closing();
    private ChannelHandlerContext here;
    private CurrentRequest current;
    /** Whether the next request has begun to arrive, and is read once the other connections had their turn. */
    private boolean isNextDue;
    /** Whether a request is expected: the connection is new, or a part of a head has arrived. */
    private boolean expecting;
    /** Whether the client sends nothing more. */
    private boolean clientSentAll;
    private boolean isClosing;
    /** Whether this connection counts among those that are answered why they are refused. */
    private boolean isRefusedWithAnswer;

    Door(Counts counts, Settings settings) {
        this.counts = counts;
        this.settings = settings;
        connections = counts.connections;
        share = counts.memory.new Share(this::freeMemory);
    }

    @Override
    public void handlerAdded(ChannelHandlerContext context) {
        here = context;
        current = new CurrentRequest(context, counts, settings, idleTime, share, this::requestArrived);
    }

    @Override
    public void channelActive(ChannelHandlerContext context) {
        idleTime.awaitRequest();
        if (connections.admit(this)) {
            bytesArrived(0);
            context.fireChannelActive();
        } else {
            refuseConnection();
        }
    }

    private void refuseConnection() {
        isRefusedWithAnswer = connections.mayAnswer();
        isClosing = true;
        if (isRefusedWithAnswer) {
            answerAndClose(Refusal.crowded(connections.limit));
        } else {
            here.close();
        }
    }

    /** Answers something that is not a whole request; this is the last answer of the connection. */
    private void answerAndClose(Refusal refusal) {
        FullHttpResponse answer = refusal.answer(null, settings);
        answer.headers().set(HttpHeaderNames.CONNECTION, HttpHeaderValues.CLOSE);
        isClosing = true;
        here.writeAndFlush(answer).addListener(done -> close());
    }

    /** Ends this connection for another one, unless a whole request has arrived meanwhile. */
    void makeRoom() {
        eventLoop().execute(() -> {
            if (!mayDecode()) {
                connections.keep(this);
            } else if (isClosing || !connections.mayAnswer()) {
                here.close();
            } else {
                isRefusedWithAnswer = true;
                endUnfinished();
            }
        });
    }

    /** Ends a connection without a whole request; if a part of one has arrived, with an answer that says why. */
    private void endUnfinished() {
        if (current.request != null) {
            current.refuse(Refusal.late(), null);
        } else if (expecting) {
            headArrived();
            answerAndClose(Refusal.late());
        } else {
            close();
        }
    }

    /** Gives up a body that arrives slowly, or an answer that is read slowly. */
    private void freeMemory() {
        eventLoop().execute(() -> {
            if (current.isArriving()) {
                current.refuse(Refusal.full("bodies"), null);
            } else if (current.isAnswered()) {
                here.close();
            }
        });
    }

    /**
     * Ends the connection if it has been idle for too long, or nobody reads its answer, and the request if TorchServe has
     * forgotten it. {@code held} are the ids of all requests that TorchServe held at the time {@code at}; null if that is
     * not known.
     */
    void check(long idleNs, long unreadNs, Set<String> held, long at) {
        eventLoop().execute(() -> {
            if (current.request == null && !expecting && !isClosing && idleTime.isOver(idleNs)) {
                close();
            } else if (current.isReceived() && idleTime.isUnread(here.channel(), unreadNs)) {
                here.close();
            } else if (held != null && current.isForgotten(held, at)) {
                current.refuse(Refusal.lost(), null);
            }
        });
    }

    /** The connection is new, or so many bytes have arrived that the decoder has not read yet. */
    void bytesArrived(int more) {
        closing.bytesArrived();
        if (!mayDecode()) {
            if (more > 0 && !share.addBody(more)) {
                here.close();
            }
        } else if (!expecting && current.request == null && !isClosing) {
            expectRequest();
        }
    }

    private void requestArrived() {
        bytesArrived(codec.bytesAhead());
    }

    private void expectRequest() {
        expecting = true;
        idleTime.awaitRequest();
        counts.expected.incrementAndGet();
        arrivalTime.begin(eventLoop());
    }

    /**
     * Whether the decoder may read on. What is sent before the answer to the request before it stays bytes until then:
     * TorchServe would mix up the answers, and requests take many times the memory of their bytes.
     */
    boolean mayDecode() {
        return !isNextDue && !current.isReceived();
    }

    /** Whether the last answer of this connection is written: whatever still arrives is thrown away. */
    boolean isClosing() {
        return isClosing;
    }

    /** Refuses a request that arrives too slowly. */
    private void checkArrival() {
        if (isClosing || !(expecting || current.isArriving())) {
            return;
        }
        long leftNs = arrivalTime.leftNs(current.isArriving() ? current.request.bodyBytes : 0);
        if (leftNs > 0) {
            arrivalTime.checkIn(eventLoop(), leftNs);
        } else {
            endUnfinished();
        }
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        if (isClosing || !mayDecode()) {
            // The rest of a request that is refused.
            ReferenceCountUtil.release(message);
        } else if (message instanceof HttpRequest) {
            current.begin((HttpRequest) message);
            headArrived();
            arrivalTime.begin(eventLoop());
            current.readHead((HttpRequest) message);
        } else {
            current.readBody((HttpContent) message);
        }
    }

    /** The client says that it sends no more: it has left, or waits for its answer, as {@code nc -N} does. */
    @Override
    public void userEventTriggered(ChannelHandlerContext context, Object event) {
        if (event instanceof ChannelInputShutdownEvent && !clientSentAll) {
            clientSentAll = true;
            if (closing.isLingering() || (!isClosing && mayDecode())) {
                context.close();
            } else if (!isClosing && current.request != null) {
                ClientCheck.begin(context.channel(), current.request);
            }
        }
        context.fireUserEventTriggered(event);
    }

    /** What the decoder throws instead of passing it on in a message, as at a chunk of a negative size. */
    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        if (isClosing) {
            return;
        }
        if (!(cause instanceof DecoderException)) {
            context.fireExceptionCaught(cause);
        } else if (current.request == null) {
            headArrived();
            answerAndClose(cause instanceof TooLongFrameException ? Refusal.headers() : Refusal.malformed(null, true));
        } else {
            current.refuse(Refusal.malformed(null, false), null);
        }
    }

    /** Whether the answer to the current request has no body, whatever its head says. */
    boolean isAskedForHead() {
        return current.request != null && current.request.method.equals("HEAD");
    }

    @Override
    public void write(ChannelHandlerContext context, Object message, ChannelPromise promise) {
        Object written = message;
        if (message instanceof HttpResponse) {
            HttpResponse answer = (HttpResponse) message;
            if (answer.status().codeClass() == HttpStatusClass.INFORMATIONAL) {
                context.write(message, promise);
                return;
            }
            if (current.request == null || current.request.status != 0) {
                // Answered already: the client would take this for the answer to its next request.
                ReferenceCountUtil.release(message);
                promise.tryFailure(new IllegalStateException("answered twice"));
                return;
            }
            boolean isLast = !codec.hasNext() && (counts.draining || clientSentAll);
            written = current.prepareAnswer(answer, isLast);
        }
        ChannelPromise done = promise.unvoid();
        if (written instanceof LastHttpContent && current.request != null) {
            current.request.answered = true;
            done.addListener(sent -> answerSent(sent.isSuccess()));
        }
        context.write(written, done);
    }

    /** The last byte of the answer is with the kernel, or the connection is gone. */
    private void answerSent(boolean isComplete) {
        if (current.request == null) {
            return;
        }
        boolean hasNext = codec.hasNext();
        boolean isLast = current.request.isLast || (clientSentAll && !hasNext);
        isNextDue = hasNext && !isLast;
        if (isNextDue) {
            expectRequest();
        }
        current.end(isComplete);
        if (isLast) {
            close();
        } else if (isNextDue) {
            eventLoop().execute(this::decodeNext);
        } else {
            here.channel().config().setAutoRead(true);
        }
    }

    private void close() {
        isClosing = true;
        idleTime.lastAnswerSent();
        closing.begin(here, clientSentAll);
    }

    /** TorchServe closes after every error, perhaps before it is sent; then {@link #answerSent} does it. */
    @Override
    public void close(ChannelHandlerContext context, ChannelPromise promise) {
        if (isClosing || (current.isAnswered() && context.channel().isActive())) {
            context.channel().closeFuture().addListener((ChannelFuture done) -> promise.trySuccess());
        } else {
            context.close(promise);
        }
    }

    private void decodeNext() {
        isNextDue = false;
        idleTime.awaitRequest();
        here.pipeline().fireChannelRead(Unpooled.EMPTY_BUFFER);
        if (isClosing) {
            return;
        }
        if (clientSentAll && mayDecode()) {
            // The rest of it never comes.
            here.close();
        } else if (mayDecode() || !(counts.draining || codec.hasNext())) {
            // While the server drains, requests that were sent in one go are answered, and no more are read.
            here.channel().config().setAutoRead(true);
        }
    }

    @Override
    public void channelInactive(ChannelHandlerContext context) {
        connections.remove(this);
        if (isRefusedWithAnswer) {
            connections.answeredIsClosed();
        }
        headArrived();
        current.clientLeft();
        share.free();
        isClosing = true;
        closing.cancel();
        arrivalTime.cancel();
        context.fireChannelInactive();
    }

    /** No head is expected any more: it was read, or the connection ends. */
    private void headArrived() {
        if (expecting) {
            expecting = false;
            counts.expected.decrementAndGet();
        }
    }

    private EventLoop eventLoop() {
        return here.channel().eventLoop();
    }
}
