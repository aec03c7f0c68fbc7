package marina;

import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.multipart.HttpPostRequestDecoder;
import io.netty.util.ByteProcessor;
import java.util.Locale;
import java.util.Set;

/**
 * Reads along in a multipart body, as netty does when all of it is there, and stops where it would cost too much: netty
 * takes any number of parts, each with a head of any size, and a hundred times their memory.
 */
final class Parts implements ByteProcessor {
    static final int MOST = 1000;
    static final int LARGEST_HEAD = 8192;

    private enum State {
        CONTENT,
        DELIMITER,
        /** At the beginning of a line of a part's head; after its CR; in white space before it; in it. */
        START,
        RETURN,
        SPACE,
        LINE
    }

    private static final Set<String> PLAIN = Set.of("utf-8", "us-ascii", "iso-8859-1");

    private final String delimiter;
    private final boolean legible;
    private final StringBuilder head = new StringBuilder();
    private State state = State.CONTENT;
    private int count;
    /** How much of the delimiter has come; -1 where none can be. */
    private int matched;

    private Parts(String[] found) {
        delimiter = found[0];
        // In what netty reads the heads, and we could not.
        legible = found.length == 1 || PLAIN.contains(found[1].toLowerCase(Locale.ROOT));
    }

    /** Null where netty sees no parts, or fails at the type, as at {@code boundary=}: TorchServe says so then. */
    static Parts of(String type) {
        String[] found;
        try {
            found = Boundary.of(type);
        } catch (RuntimeException err) {
            return null;
        }
        return found == null ? null : new Parts(found);
    }

    /** False where it is enough. */
    @Override
    public boolean process(byte value) {
        char c = (char) (value & 0xff);
        if (state == State.CONTENT) {
            return readContent(c);
        }
        head.append(c);
        if (state == State.DELIMITER) {
            state = c == '\n' ? State.START : state;
        } else if (c == '\n' && (state == State.START || state == State.RETURN)) {
            state = State.CONTENT;
            matched = 0;
            // One that holds parts of its own.
            return !head.toString().toLowerCase(Locale.ROOT).contains("multipart/mixed");
        } else if (state == State.LINE) {
            state = c == '\n' ? State.START : state;
        } else if (isSkipped(c)) {
            state = c == '\r' && state == State.START ? State.RETURN : State.SPACE;
        } else {
            state = State.LINE;
        }
        return legible && head.length() <= LARGEST_HEAD;
    }

    private boolean readContent(char c) {
        if (matched >= 0 && c == delimiter.charAt(matched)) {
            matched++;
        } else {
            matched = c == '\n' || (count == 0 && isSkipped(c)) ? 0 : -1;
        }
        if (matched < delimiter.length()) {
            return true;
        }
        count++;
        head.setLength(0);
        state = State.DELIMITER;
        return count <= MOST;
    }

    private static boolean isSkipped(char c) {
        return Character.isISOControl(c) || Character.isWhitespace(c);
    }

    /** Only a kind of decoder may ask what netty takes for the boundary. */
    private abstract static class Boundary extends HttpPostRequestDecoder {
        private Boundary(HttpRequest request) {
            super(request);
        }

        static String[] of(String type) {
            return getMultipartDataBoundary(type);
        }
    }
}
