package marina;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.CombinedChannelDuplexHandler;
import io.netty.handler.codec.DecoderResult;
import io.netty.handler.codec.TooLongFrameException;
import io.netty.handler.codec.http.HttpMessage;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpRequestDecoder;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpResponseEncoder;
import io.netty.util.ByteProcessor;
import io.netty.util.ReferenceCountUtil;
import java.util.List;

/** Netty's codec of HTTP/1, but stricter: it also limits headers, and tells the door of bytes before they are a request. */
final class Codec extends CombinedChannelDuplexHandler<Codec.Decoder, HttpResponseEncoder> {
    /** Netty limits only their size: four thousand short ones take a hundred times as much memory as they are long. */
    static final int MOST_HEADERS = 200;

    Codec(Door door) {
        super(new Decoder(door), new Encoder(door));
    }

    /** How many bytes have arrived of what comes after the current request. */
    int bytesAhead() {
        return inboundHandler().ahead().readableBytes();
    }

    /** Whether the next request has begun to arrive; old clients end a body with an empty line too many. */
    boolean hasNext() {
        return inboundHandler().ahead().forEachByte(ByteProcessor.FIND_NON_CRLF) >= 0;
    }

    static final class Decoder extends HttpRequestDecoder {
        private final Door door;
        private final Framing framing = new Framing();

        Decoder(Door door) {
            this.door = door;
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object bytes) throws Exception {
            door.bytesArrived(((ByteBuf) bytes).readableBytes());
            super.channelRead(context, bytes);
        }

        private ByteBuf ahead() {
            return internalBuffer();
        }

        /** Where netty has decoded nothing, it reads on, whatever {@code autoRead} says. */
        @Override
        public void channelReadComplete(ChannelHandlerContext context) throws Exception {
            if (door.mayDecode()) {
                super.channelReadComplete(context);
            } else {
                context.fireChannelReadComplete();
            }
        }

        /** At the end of what a client sends, netty forgets what is not decoded yet. */
        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) throws Exception {
            if (door.mayDecode()) {
                super.userEventTriggered(context, event);
            } else {
                context.fireUserEventTriggered(event);
            }
        }

        @Override
        protected void decode(ChannelHandlerContext context, ByteBuf buffer, List<Object> out) throws Exception {
            if (!door.mayDecode()) {
                context.channel().config().setAutoRead(false);
                return;
            }
            if (door.isClosing()) {
                buffer.skipBytes(buffer.readableBytes());
                return;
            }
            int from = buffer.readerIndex();
            super.decode(context, buffer, out);
            boolean sound = framing.isSound(buffer, from, out);
            if (sound && framing.lines <= MOST_HEADERS) {
                return;
            }
            if (!out.isEmpty() && out.get(0) instanceof HttpRequest) {
                ((HttpRequest) out.get(0)).setDecoderResult(DecoderResult.failure(new IllegalArgumentException()));
                return;
            }
            out.forEach(ReferenceCountUtil::release);
            out.clear();
            reset();
            // It forgets what it has read only when it is asked for more.
            super.decode(context, Unpooled.EMPTY_BUFFER, out);
            throw sound ? new TooLongFrameException() : new IllegalArgumentException();
        }

        /** A proxy in front may go by the length, and take the end of this request for the next one. */
        @Override
        protected void handleTransferEncodingChunkedWithContentLength(HttpMessage message) {
            throw new IllegalArgumentException("both Content-Length and Transfer-Encoding");
        }
    }

    private static final class Encoder extends HttpResponseEncoder {
        private final Door door;

        Encoder(Door door) {
            this.door = door;
        }

        @Override
        protected boolean isContentAlwaysEmpty(HttpResponse answer) {
            return door.isAskedForHead() || super.isContentAlwaysEmpty(answer);
        }
    }
}
