package marina;

import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import io.netty.channel.ChannelOutboundBuffer;
import java.util.concurrent.atomic.AtomicLong;

/** What one connection is doing in the {@link Crowd}: since when it is quiet, and whether it takes its answer. */
final class Stay {
    private static final long GIVEN_WAY = -1;
    /** Since when nothing is in work; 0 while something is. Its place is a newcomer's from {@link #claim} on. */
    private final AtomicLong quiet = new AtomicLong();
    /** Since when a head or a body is to come. */
    private long awaited;
    /** It was answered before, so that nothing is owed to it. */
    private volatile boolean kept;
    /** What of the answer was not with the kernel when last looked at, and since when that has not changed. */
    private long unsent;
    private long unsentSince;

    /** A request, or the body of one, is to come. */
    void awaits() {
        kept = false;
        awaited = Crowd.now();
        quietFrom(awaited);
    }

    /** So many bytes of a body have come: it has been quiet for as long as it is behind the slowest that may be. */
    void sends(long bytes) {
        quietFrom(awaited + Patience.earnedNs(bytes));
    }

    /** A request has come. */
    void works() {
        quietFrom(0);
    }

    /** It has its answer. */
    void rests() {
        kept = true;
        quietFrom(Crowd.now());
    }

    /** Its last answer is sent: nothing can be lost any more, so that it is the first to go. */
    void lingers() {
        kept = true;
        quietFrom(1);
    }

    private void quietFrom(long since) {
        quiet.updateAndGet(before -> before == GIVEN_WAY ? before : since);
    }

    long quietSince() {
        return quiet.get();
    }

    boolean isKept() {
        return kept;
    }

    boolean isIdle(long idleNs) {
        long since = quiet.get();
        return kept && since > 0 && Crowd.now() - since > idleNs;
    }

    /** Whether it is this caller that may tell it to go, and give its place to another. */
    boolean claim(long since) {
        return quiet.compareAndSet(since, GIVEN_WAY);
    }

    boolean hasGivenWay() {
        return quiet.get() == GIVEN_WAY;
    }

    /** It has something in work, and stays after all. */
    void returns() {
        quiet.set(0);
    }

    /** Whether the client has taken nothing of its answer for so long; to be asked from time to time. */
    boolean isUnread(Channel channel, long unreadNs) {
        ChannelOutboundBuffer buffer = channel.unsafe().outboundBuffer();
        long pending = buffer == null ? 0 : buffer.totalPendingWriteBytes();
        if (pending > 0 && buffer.current() instanceof ByteBuf) {
            // The kernel takes a large one by and by, and it is pending as a whole until its end.
            pending = pending * 31 + ((ByteBuf) buffer.current()).readableBytes();
        }
        if (pending == 0 || pending != unsent) {
            unsent = pending;
            unsentSince = Crowd.now();
            return false;
        }
        return Crowd.now() - unsentSince > unreadNs;
    }
}
