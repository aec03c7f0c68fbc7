package marina;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * What the bodies and answers of all connections take. Java holds each once or twice, on its heap or outside; without a
 * limit both would end: the heap with Java itself, what is outside with the connections to the workers.
 */
final class Memory {
    private static final long MOST = Runtime.getRuntime().maxMemory() / 3;
    private static final long SMALL = 65_536;
    /** Nobody is slow before that. */
    private static final long HASTE_NS = TimeUnit.SECONDS.toNanos(1);

    /** What is smaller is let in whatever else there is: the number of connections limits it. */
    private final long small;

    private final AtomicLong taken = new AtomicLong();
    /** Those that are not small. */
    private final Set<Share> shares = ConcurrentHashMap.newKeySet();

    Memory(int connections) {
        small = Math.min(SMALL, MOST / connections);
    }

    /** What one connection takes of it. */
    final class Share {
        private final Runnable end;
        private final AtomicLong bytes = new AtomicLong();
        /** Since when a body comes or an answer goes; 0 while neither does. */
        private volatile long since;

        /** {@code end} gives up the body or the answer, in time. */
        Share(Runnable end) {
            this.end = end;
        }

        void moves() {
            since = System.nanoTime();
        }

        void rests() {
            since = 0;
        }

        /** Whether there is room for so many bytes more of a body, or who is slow has made some. */
        boolean takes(long more) {
            return take(more, HASTE_NS);
        }

        /** An answer is made already: whoever takes longest for what he has makes room for it. */
        void answers(long more) {
            moves();
            take(more, 0);
        }

        private boolean take(long more, long hasteNs) {
            taken.addAndGet(more);
            if (bytes.addAndGet(more) < small) {
                return true;
            }
            shares.add(this);
            boolean room = true;
            while (room && taken.get() > MOST && taken.get() > bytes.get()) {
                room = endSlowest(this, hasteNs);
            }
            return room;
        }

        void free() {
            shares.remove(this);
            taken.addAndGet(-bytes.getAndSet(0));
        }
    }

    /** Ends who has taken longest for what it has; false where all are quick, or wait for a worker. */
    private boolean endSlowest(Share newcomer, long hasteNs) {
        Share slowest = null;
        double least = Double.MAX_VALUE;
        for (Share share : shares) {
            long since = share.since;
            long age = System.nanoTime() - since;
            double rate = (double) share.bytes.get() / age;
            if (share != newcomer && since != 0 && age > hasteNs && rate < least) {
                slowest = share;
                least = rate;
            }
        }
        if (slowest == null) {
            return false;
        }
        slowest.free();
        slowest.end.run();
        return true;
    }
}
