package marina;

import java.util.concurrent.TimeUnit;

/** How long a request may take to arrive: so much for its head, and as much, with more for every byte, for its body. */
final class Patience {
    static final long SHORTEST_NS = TimeUnit.SECONDS.toNanos(Long.getLong("marina.patience_s", 20));
    /** A slower body would hold its memory for hours. */
    private static final long SLOWEST_BYTES_PER_S = 32_768;

    private long since;

    void begins() {
        since = System.nanoTime();
    }

    /** Nanoseconds until the end of it, for a body of which so many bytes are here. */
    long left(long bytes) {
        return SHORTEST_NS + earnedNs(bytes) - (System.nanoTime() - since);
    }

    /** How long so many bytes of a body may take. */
    static long earnedNs(long bytes) {
        return TimeUnit.SECONDS.toNanos(bytes) / SLOWEST_BYTES_PER_S;
    }
}
