package marina;

import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.socket.DuplexChannel;
import io.netty.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * The end of a connection after its last answer: it sends no more, but goes on reading for some seconds, because a close
 * with unread bytes would take the answer from the client.
 */
final class Closing {
    /** How long a client may take to read the answer, and how often as long again to send the rest of its request. */
    private static final long LINGER_S = 5;
    private static final int MORE_LINGERS = 5;

    /** Whether bytes have arrived since this was last looked at. */
    private boolean heard;
    private Future<?> end;

    void bytesArrived() {
        heard = true;
    }

    boolean isLingering() {
        return end != null;
    }

    void begin(ChannelHandlerContext context, boolean clientSentAll) {
        Channel channel = context.channel();
        channel.config().setAutoRead(true);
        ChannelFuture ended = ((DuplexChannel) channel).shutdownOutput();
        if (clientSentAll) {
            ended.addListener(done -> context.close());
        } else {
            linger(context, MORE_LINGERS);
        }
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

    void cancel() {
        if (end != null) {
            end.cancel(false);
        }
    }
}
