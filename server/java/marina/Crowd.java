package marina;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/**
 * All connections there are: at most so many, and none that is idle for ever. Where there is no room for one more, the
 * one that has been idle longest makes some; where none is idle, the newcomer is told so.
 */
final class Crowd {
    /** A client that has just connected is about to ask; one that still has not may be the first to go. */
    private static final long HASTE_NS = TimeUnit.SECONDS.toNanos(1);
    /** An answer of which the client takes nothing for so long is read by nobody. */
    private static final long UNREAD_NS = TimeUnit.SECONDS.toNanos(Long.getLong("marina.unread_s", 60));
    private static final long BEGAN = System.nanoTime();

    final int limit = Integer.getInteger("marina.max_connections", 2048);
    /** So many are told why they cannot come in; more are only closed, for each of them is an open file. */
    private final int mostTold = Math.max(64, limit / 2);
    private final long idleNs = TimeUnit.SECONDS.toNanos(Long.getLong("marina.idle_s", 620));
    private final Set<Door> doors = ConcurrentHashMap.newKeySet();
    private final AtomicInteger inside = new AtomicInteger();
    private final AtomicInteger told = new AtomicInteger();
    private final AtomicLong refused = new AtomicLong();

    /** Nanoseconds since this process began, never less than 1. */
    static long now() {
        return System.nanoTime() - BEGAN + 1;
    }

    /** How often {@link #look} is to be called, milliseconds. */
    long everyMs() {
        return Math.max(100, Math.min(TimeUnit.NANOSECONDS.toMillis(Math.min(idleNs, UNREAD_NS)) / 4, 5000));
    }

    int size() {
        return inside.get();
    }

    /** How many were turned away so far. */
    long refused() {
        return refused.get();
    }

    /** Whether there is room for it, or some was made. */
    boolean enter(Door door) {
        if (inside.incrementAndGet() > limit && !makeRoom()) {
            inside.decrementAndGet();
            refused.incrementAndGet();
            return false;
        }
        doors.add(door);
        return true;
    }

    /** Gone; one that was not let in is not there, and one that made room has left its place before. */
    void leave(Door door) {
        if (doors.remove(door) && !door.stay.hasGivenWay()) {
            inside.decrementAndGet();
        }
    }

    /** Whether one more may be told why it is turned away; {@link #wasTold} when it is gone. */
    boolean mayTell() {
        if (told.incrementAndGet() <= mostTold) {
            return true;
        }
        told.decrementAndGet();
        return false;
    }

    void wasTold() {
        told.decrementAndGet();
    }

    private boolean makeRoom() {
        Door longest = null;
        long since = Long.MAX_VALUE;
        long late = now() - HASTE_NS;
        for (Door door : doors) {
            long quiet = door.stay.quietSince();
            if (quiet > 0 && quiet < since && (door.stay.isKept() || quiet < late)) {
                longest = door;
                since = quiet;
            }
        }
        if (longest == null) {
            return false;
        }
        if (!longest.stay.claim(since)) {
            // It has something in work now, or goes for another newcomer.
            return makeRoom();
        }
        inside.decrementAndGet();
        longest.makeRoom();
        return true;
    }

    /** It has made room, and stays all the same. */
    void returns(Door door) {
        inside.incrementAndGet();
        door.stay.returns();
    }

    /** To be called from time to time: ends who is idle too long, and whose answers nobody reads or makes. */
    void look() {
        long at = System.nanoTime();
        Set<String> held = Jobs.held();
        for (Door door : doors) {
            door.lookAround(idleNs, UNREAD_NS, held, at);
        }
    }
}
