package marina;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The memory of the bodies and answers of all connections. Java holds each once or twice, on its heap or outside of it.
 * Without a limit, a full heap would end Java, and full memory outside of it the connections to the workers.
 */
public final class Memory {
    /** How many bytes the bodies and answers may take. */
    public static final long MOST = Runtime.getRuntime().maxMemory() / 3;
    private static final AtomicLong TAKEN = new AtomicLong();
    private static final long SMALL = 65_536;
    /** No body and no answer counts as slow before that. */
    private static final long HASTE_NS = TimeUnit.SECONDS.toNanos(1);

    /** What is smaller is always let in: the number of connections limits it. */
    private final long small;

    /** The shares that are not small. */
    private final Set<Share> shares = ConcurrentHashMap.newKeySet();

    Memory(int connections) {
        small = Math.min(SMALL, MOST / connections);
    }

    /** How many bytes they take now. */
    public static long taken() {
        return TAKEN.get();
    }

    /** The memory of one connection. */
    final class Share {
        private final Runnable end;
        private final AtomicLong bytes = new AtomicLong();
        /** Since when a body arrives or an answer is read; 0 while neither happens. */
        private volatile long since;

        /** {@code end} gives up the body or the answer, soon. */
        Share(Runnable end) {
            this.end = end;
        }

        void begin() {
            since = System.nanoTime();
        }

        void pause() {
            since = 0;
        }

        /** Adds bytes of a body; whether there is room for them, or a slow connection was ended for them. */
        boolean addBody(long more) {
            return add(more, HASTE_NS);
        }

        /** Adds an answer. It exists already, so the slowest connections make room for it. */
        void addAnswer(long more) {
            begin();
            add(more, 0);
        }

        private boolean add(long more, long hasteNs) {
            TAKEN.addAndGet(more);
            if (bytes.addAndGet(more) < small) {
                return true;
            }
            shares.add(this);
            boolean room = true;
            while (room && TAKEN.get() > MOST && TAKEN.get() > bytes.get()) {
                room = endSlowest(this, hasteNs);
            }
            return room;
        }

        void free() {
            shares.remove(this);
            TAKEN.addAndGet(-bytes.getAndSet(0));
        }
    }

    /** Ends the connection that is slowest for its bytes; false if all are quick, or wait for a worker. */
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
