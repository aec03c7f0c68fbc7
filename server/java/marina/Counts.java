package marina;

import io.netty.channel.Channel;
import io.netty.channel.EventLoopGroup;
import io.netty.util.concurrent.EventExecutor;
import io.netty.util.concurrent.Future;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** What is open on all connections, the memory that it takes, and what the supervisor last ordered. */
final class Counts {
    /** Connections that are new and have sent nothing yet, or on which a part of a request's head has arrived. */
    final AtomicLong expected = new AtomicLong();
    /** Requests whose head was read and whose answer is not completely with the kernel. */
    final AtomicLong open = new AtomicLong();
    /** Those of them that TorchServe is to answer, on a path of inference. */
    final AtomicLong inferences = new AtomicLong();
    /** How many requests were logged since the start. */
    final AtomicLong logged = new AtomicLong();
    final Connections connections = new Connections();
    final Memory memory = new Memory(connections.limit);
    /** From now on every answer is the last of its connection. */
    volatile boolean draining;

    /** Whether the model is ready, as the supervisor last said. */
    volatile boolean ready;

    private static final long LONGEST_TURN_S = 2;
    private volatile Channel listener;
    private volatile EventLoopGroup serving;

    void setListener(Channel channel, EventLoopGroup group) {
        serving = group;
        listener = channel;
    }

    void opened(Request request) {
        open.incrementAndGet();
        if (request.inference) {
            inferences.incrementAndGet();
        }
    }

    void closed(Request request) {
        open.decrementAndGet();
        if (request.inference) {
            inferences.decrementAndGet();
        }
    }

    /** Whether all that was accepted or read before this call is counted now; false if a thread hangs. */
    boolean settle() throws InterruptedException {
        // First the thread that accepts: what it passes on is in the queues of the others before this asks them.
        return listener == null || (finishTurns(listener.eventLoop().parent()) && finishTurns(serving));
    }

    /** Whether every thread of the group has come to the end of what it was doing. */
    private static boolean finishTurns(Iterable<EventExecutor> group) throws InterruptedException {
        List<Future<?>> turns = new ArrayList<>();
        for (EventExecutor loop : group) {
            turns.add(loop.submit(() -> {}));
        }
        for (Future<?> turn : turns) {
            if (!turn.await(LONGEST_TURN_S, TimeUnit.SECONDS)) {
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
