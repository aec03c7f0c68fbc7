package marina;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/**
 * All connections, with a limit on their number and on the time that each may be idle. Where there is no room for one
 * more, the one that has been idle longest makes some; where none is idle, the new one is refused.
 */
final class Connections {
    /** A client that has just connected is about to send; one that still has not may be the first to make room. */
    private static final long HASTE_NS = TimeUnit.SECONDS.toNanos(1);
    /** If a client takes nothing of an answer for so long, nobody reads it. */
    private static final long UNREAD_NS = TimeUnit.SECONDS.toNanos(Long.getLong("marina.unread_s", 60));
    private static final long BEGAN = System.nanoTime();

    final int limit = Integer.getInteger("marina.max_connections", 2048);
    /** So many are answered why they are refused; more are only closed, because each of them is an open file. */
    private final int mostAnswered = Math.max(64, limit / 2);
    private final long idleNs = TimeUnit.SECONDS.toNanos(Long.getLong("marina.idle_s", 620));
    private final Set<Door> doors = ConcurrentHashMap.newKeySet();
    private final AtomicInteger admitted = new AtomicInteger();
    private final AtomicInteger answered = new AtomicInteger();
    private final AtomicLong refused = new AtomicLong();

    /** Nanoseconds since this process began, never less than 1. */
    static long now() {
        return System.nanoTime() - BEGAN + 1;
    }

    /** How often {@link #checkAll} is to be called, milliseconds. */
    long checkEveryMs() {
        return Math.max(100, Math.min(TimeUnit.NANOSECONDS.toMillis(Math.min(idleNs, UNREAD_NS)) / 4, 5000));
    }

    int size() {
        return admitted.get();
    }

    /** How many were refused so far. */
    long refused() {
        return refused.get();
    }

    /** Whether there is room for it, or another one has made some. */
    boolean admit(Door door) {
        if (admitted.incrementAndGet() > limit && !makeRoom()) {
            admitted.decrementAndGet();
            refused.incrementAndGet();
            return false;
        }
        doors.add(door);
        return true;
    }

    /** It is closed. One that was refused was never there, and one that made room has given its place away before. */
    void remove(Door door) {
        if (doors.remove(door) && door.idleTime.release()) {
            admitted.decrementAndGet();
        }
    }

    /** Whether one more may be answered why it is refused; {@link #answeredIsClosed} once it is closed. */
    boolean mayAnswer() {
        if (answered.incrementAndGet() <= mostAnswered) {
            return true;
        }
        answered.decrementAndGet();
        return false;
    }

    void answeredIsClosed() {
        answered.decrementAndGet();
    }

    private boolean makeRoom() {
        Door longest = null;
        long since = Long.MAX_VALUE;
        long late = now() - HASTE_NS;
        for (Door door : doors) {
            long idle = door.idleTime.since();
            if (idle > 0 && idle < since && (door.idleTime.isAnswered() || idle < late)) {
                longest = door;
                since = idle;
            }
        }
        if (longest == null) {
            return false;
        }
        if (!longest.idleTime.claim(since)) {
            // A request has arrived on it, or it makes room for another new one.
            return makeRoom();
        }
        admitted.decrementAndGet();
        longest.makeRoom();
        return true;
    }

    /** It was to make room, but stays, unless it is closed. */
    void keep(Door door) {
        if (doors.contains(door)) {
            admitted.incrementAndGet();
            door.idleTime.takeBack();
        }
    }

    /** To be called from time to time: ends those that are idle too long, and those whose answer nobody reads or makes. */
    void checkAll() {
        long at = System.nanoTime();
        Set<String> held = Jobs.held();
        for (Door door : doors) {
            door.check(idleNs, UNREAD_NS, held, at);
        }
    }
}
