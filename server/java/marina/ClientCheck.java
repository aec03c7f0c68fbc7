package marina;

import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.epoll.EpollSocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;

/**
 * Finds out whether a client that sends no more is still there. The end of what it sends looks the same whether it has left
 * or waits for an answer; but if it has left, its kernel answers anything sent to it with a reset. So it is sent an interim
 * answer, which every client of HTTP/1.1 ignores.
 */
final class ClientCheck {
    private static final byte[] INTERIM = "HTTP/1.1 100 Continue\r\n\r\n".getBytes(StandardCharsets.US_ASCII);
    /** The kernel's number for the state of a connection that was reset. */
    private static final int TCP_CLOSE = 7;
    private static final long FIRST_MS = 10;
    private static final long LAST_MS = 1000;

    private ClientCheck() {}

    /** Closes the connection once the client is seen to have left. */
    static void begin(Channel channel, Request request) {
        if (request.status == 0 && request.protocol.equals("HTTP/1.1")) {
            // Past the encoder, which would take it for the answer.
            channel.pipeline().context("http").writeAndFlush(Unpooled.wrappedBuffer(INTERIM));
        }
        checkIn(channel, FIRST_MS);
    }

    private static void checkIn(Channel channel, long afterMs) {
        channel.eventLoop()
                .schedule(
                        () -> {
                            if (!channel.isOpen()) {
                                return;
                            }
                            if (isReset(channel)) {
                                channel.close();
                            } else {
                                checkIn(channel, Math.min(afterMs * 2, LAST_MS));
                            }
                        },
                        afterMs,
                        TimeUnit.MILLISECONDS);
    }

    private static boolean isReset(Channel channel) {
        return channel instanceof EpollSocketChannel && ((EpollSocketChannel) channel).tcpInfo().state() == TCP_CLOSE;
    }
}
