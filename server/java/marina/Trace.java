package marina;

import io.netty.handler.codec.http.HttpHeaders;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The trace that a request belongs to, as W3C's Trace Context has it. Where it is recorded, the request has a span of its
 * own, whose id goes on to the worker in {@code traceparent}; the supervisor makes the spans, from the access log.
 */
final class Trace {
    private static final String PARENT = "traceparent";
    private static final String STATE = "tracestate";
    // A later version may have more after the flags.
    private static final Pattern FORM =
            Pattern.compile("(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?");
    private static final int SAMPLED = 1;
    private static final int KNOWN_FLAGS = 3;
    /** A client may mark all its requests; recording more than so many a second would cost the others their time. */
    private static final int MOST_PER_S = Integer.getInteger("marina.traces_per_s", 500);
    /** The current second in the upper half, and how many were begun in it in the lower. */
    private static final AtomicLong BEGUN = new AtomicLong();

    /** 32 hexadecimal digits. */
    final String id;
    /** The request's own span; null if it is not recorded. */
    final String span;
    /** The client's span; null if it named none. */
    private final String parent;

    private Trace(String id, String parent, boolean isRecorded) {
        this.id = id;
        this.parent = parent;
        span = isRecorded ? hex(ThreadLocalRandom.current().nextLong(1, Long.MAX_VALUE)) : null;
    }

    /**
     * The trace of a request with these headers, which are changed to what the worker gets; null if it has none. Of those
     * whose client says nothing, a share {@code sample} is recorded.
     */
    static Trace of(HttpHeaders headers, double sample) {
        List<String> given = headers.getAll(PARENT);
        Matcher form = FORM.matcher(given.size() == 1 ? given.get(0).trim() : "");
        boolean isKnown = form.matches() && (form.group(5) == null || !form.group(1).equals("00"));
        int flags = isKnown ? Integer.parseInt(form.group(4), 16) & KNOWN_FLAGS : SAMPLED;
        ThreadLocalRandom random = ThreadLocalRandom.current();
        boolean isWanted = isKnown ? (flags & SAMPLED) != 0 : random.nextDouble() < sample;
        boolean isRecorded = isWanted && mayBegin(System.nanoTime() / 1_000_000_000);
        if (!isKnown) {
            headers.remove(PARENT).remove(STATE);
        }
        if (!isKnown && !isRecorded) {
            return null;
        }
        String id = isKnown ? form.group(2) : hex(random.nextLong()) + hex(random.nextLong(1, Long.MAX_VALUE));
        Trace trace = new Trace(id, isKnown ? form.group(3) : null, isRecorded);
        if (isRecorded) {
            headers.set(PARENT, "00-" + id + "-" + trace.span + "-0" + flags);
        } else if (isWanted) {
            headers.set(PARENT, "00-" + id + "-" + trace.parent + "-0" + (flags & ~SAMPLED));
        }
        return trace;
    }

    private static boolean mayBegin(long second) {
        long begun = BEGUN.updateAndGet(before -> before >>> 32 == second ? before + 1 : second << 32 | 1);
        return (int) begun <= MOST_PER_S;
    }

    /**
     * The end of the request's line in the access log: when its head was read, by the clock of {@code nanoTime}, which on
     * Linux is the same for all processes; and microseconds since then.
     */
    String logged(long begunUs, long receivedUs, long answeredUs, long endedUs, long bodyBytes, String requestId) {
        if (span == null) {
            return " " + id;
        }
        Object[] all = {id, span, parent == null ? "-" : parent, begunUs, receivedUs, answeredUs, endedUs, bodyBytes};
        StringBuilder text = new StringBuilder();
        for (Object each : all) {
            text.append(' ').append(each);
        }
        return text.append(' ').append(requestId == null ? "-" : requestId).toString();
    }

    private static String hex(long value) {
        String digits = Long.toHexString(value);
        return "0".repeat(16 - digits.length()) + digits;
    }
}
