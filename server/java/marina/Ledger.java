package marina;

import io.netty.channel.Channel;
import io.netty.channel.EventLoopGroup;
import io.netty.util.concurrent.EventExecutor;
import io.netty.util.concurrent.Future;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** What is open, over all connections, and whether the end has begun. */
final class Ledger {
    /** Connections that are new and have asked nothing yet, or on which a request has begun whose head is not complete. */
    final AtomicLong expected = new AtomicLong();
    /** Requests whose head was read and whose answer is not wholly with the kernel. */
    final AtomicLong open = new AtomicLong();
    /** Those of them that are TorchServe's to answer, on a path of inference. */
    final AtomicLong inferences = new AtomicLong();
    final Crowd crowd = new Crowd();
    final Memory memory = new Memory(crowd.limit);
    /** From now on every answer is the last of its connection. */
    volatile boolean draining;

    /** What the supervisor last said of the model's readiness. */
    volatile boolean ready;

    private static final long PATIENCE_S = 2;
    private volatile Channel listener;
    private volatile EventLoopGroup serving;

    void listens(Channel channel, EventLoopGroup group) {
        serving = group;
        listener = channel;
    }

    /** All that was accepted or read before this call is counted when it returns true. */
    boolean settle() throws InterruptedException {
        // First who accepts: what it gives the others stands in their queues before our turn.
        return listener == null || (turn(listener.eventLoop().parent()) && turn(serving));
    }

    /** Every thread of the group has come to the end of what it was doing. */
    private static boolean turn(Iterable<EventExecutor> group) throws InterruptedException {
        List<Future<?>> turns = new ArrayList<>();
        for (EventExecutor loop : group) {
            turns.add(loop.submit(() -> {}));
        }
        for (Future<?> turn : turns) {
            if (!turn.await(PATIENCE_S, TimeUnit.SECONDS)) {
                return false;
            }
        }
        return true;
    }

    void closeListener() throws InterruptedException {
        if (listener != null) {
            listener.close().sync();
        }
    }
}
