package marina;

import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.multipart.HttpPostRequestDecoder;
import io.netty.util.ByteProcessor;
import java.util.Locale;
import java.util.Set;

/**
 * Checks a multipart body while it arrives, as netty reads it once it is complete, and stops where it would cost too much:
 * netty takes any number of parts, each with a head of any size, and a hundred times their memory.
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
    private final boolean isReadable;
    private final StringBuilder head = new StringBuilder();
    private State state = State.CONTENT;
    private int count;
    /** How much of the delimiter has arrived; -1 where none can be. */
    private int matched;

    /** {@code boundary} is the delimiter, and the charset of the heads if the type names one. */
    private Parts(String[] boundary) {
        delimiter = boundary[0];
        // In another charset netty reads the heads otherwise than this does.
        isReadable = boundary.length == 1 || PLAIN.contains(boundary[1].toLowerCase(Locale.ROOT));
    }

    /** Null if netty sees no parts, or fails at the type, as at {@code boundary=}: TorchServe refuses that. */
    static Parts of(String type) {
        String[] boundary;
        try {
            boundary = Boundary.of(type);
        } catch (RuntimeException err) {
            return null;
        }
        return boundary == null ? null : new Parts(boundary);
    }

    /** False where a limit is exceeded. */
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
            // False for one that has parts of its own.
            return !head.toString().toLowerCase(Locale.ROOT).contains("multipart/mixed");
        } else if (state == State.LINE) {
            state = c == '\n' ? State.START : state;
        } else if (isSkipped(c)) {
            state = c == '\r' && state == State.START ? State.RETURN : State.SPACE;
        } else {
            state = State.LINE;
        }
        return isReadable && head.length() <= LARGEST_HEAD;
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

    /** Only a subclass of netty's decoder may ask what netty takes for the boundary. */
    private abstract static class Boundary extends HttpPostRequestDecoder {
        private Boundary(HttpRequest request) {
            super(request);
        }

        static String[] of(String type) {
            return getMultipartDataBoundary(type);
        }
    }
}
