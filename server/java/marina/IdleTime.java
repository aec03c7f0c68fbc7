package marina;

import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import io.netty.channel.ChannelOutboundBuffer;
import java.util.concurrent.atomic.AtomicLong;

/** Since when a connection is idle, whether its place is still its own, and whether its client reads the answer. */
final class IdleTime {
    private static final long PLACE_GIVEN_AWAY = -1;
    /** Since when no request is in work; 0 while there is one. From {@link #claim} on, its place is another's. */
    private final AtomicLong idle = new AtomicLong();
    /** Since when a head or a body is awaited. */
    private long awaited;
    /** Whether all of its requests were answered. */
    private volatile boolean answered;
    /** How much of the answer the kernel had not taken when last looked at, and since when that has not changed. */
    private long unsent;
    private long unsentSince;

    /** A request, or the body of one, is awaited. */
    void awaitRequest() {
        answered = false;
        awaited = Connections.now();
        setIdleSince(awaited);
    }

    /** So many bytes of a body have arrived: it counts as idle for as long as it is behind the slowest that is allowed. */
    void bodyArrived(long bytes) {
        setIdleSince(awaited + ArrivalTime.earnedNs(bytes));
    }

    void requestArrived() {
        setIdleSince(0);
    }

    void requestAnswered() {
        answered = true;
        setIdleSince(Connections.now());
    }

    /** Its last answer is sent: nothing can be lost any more, so it is the first to make room. */
    void lastAnswerSent() {
        answered = true;
        setIdleSince(1);
    }

    private void setIdleSince(long since) {
        idle.updateAndGet(before -> before == PLACE_GIVEN_AWAY ? before : since);
    }

    long since() {
        return idle.get();
    }

    boolean isAnswered() {
        return answered;
    }

    boolean isOver(long idleNs) {
        long since = idle.get();
        return answered && since > 0 && Connections.now() - since > idleNs;
    }

    /** Whether this caller may end it, and give its place to another. */
    boolean claim(long since) {
        return idle.compareAndSet(since, PLACE_GIVEN_AWAY);
    }

    /** Whether it had its place until now; nobody can claim that any more. */
    boolean release() {
        return idle.getAndSet(PLACE_GIVEN_AWAY) != PLACE_GIVEN_AWAY;
    }

    /** A request has arrived, so it stays although its place was claimed. */
    void takeBack() {
        idle.set(0);
    }

    /** Whether the client has read nothing of its answer for so long; to be asked from time to time. */
    boolean isUnread(Channel channel, long unreadNs) {
        ChannelOutboundBuffer buffer = channel.unsafe().outboundBuffer();
        long pending = buffer == null ? 0 : buffer.totalPendingWriteBytes();
        if (pending > 0 && buffer.current() instanceof ByteBuf) {
            // The kernel takes a large one in parts, and all of it is pending until its end.
            pending = pending * 31 + ((ByteBuf) buffer.current()).readableBytes();
        }
        if (pending == 0 || pending != unsent) {
            unsent = pending;
            unsentSince = Connections.now();
            return false;
        }
        return Connections.now() - unsentSince > unreadNs;
    }
}
