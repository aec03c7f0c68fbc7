package marina;

import io.netty.channel.EventLoop;
import io.netty.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * How long a request may take to arrive: a fixed time for its head, and the same again, with more for every byte, for its
 * body.
 */
final class ArrivalTime {
    static final long SHORTEST_NS = TimeUnit.SECONDS.toNanos(Long.getLong("marina.patience_s", 20));
    /** A slower body would hold its memory for hours. */
    private static final long SLOWEST_BYTES_PER_S = 32_768;

    private final Runnable check;
    private long since;
    private Future<?> next;

    /** {@code check} is called when the time may be over. */
    ArrivalTime(Runnable check) {
        this.check = check;
    }

    /** The rest of a head, or of a body, is awaited from now on. */
    void begin(EventLoop loop) {
        since = System.nanoTime();
        if (next == null) {
            checkIn(loop, SHORTEST_NS);
        }
    }

    void checkIn(EventLoop loop, long nanoseconds) {
        next = loop.schedule(this::checkNow, nanoseconds, TimeUnit.NANOSECONDS);
    }

    private void checkNow() {
        next = null;
        check.run();
    }

    void cancel() {
        if (next != null) {
            next.cancel(false);
        }
    }

    /** Nanoseconds until the time is over, for a body of which so many bytes have arrived. */
    long leftNs(long bytes) {
        return SHORTEST_NS + earnedNs(bytes) - (System.nanoTime() - since);
    }

    /** How long so many bytes of a body may take. */
    static long earnedNs(long bytes) {
        return TimeUnit.SECONDS.toNanos(bytes) / SLOWEST_BYTES_PER_S;
    }
}
