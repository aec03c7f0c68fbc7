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
        long earned = TimeUnit.SECONDS.toNanos(bytes) / SLOWEST_BYTES_PER_S;
        return SHORTEST_NS + earned - (System.nanoTime() - since);
    }
}
