package marina;

import io.netty.buffer.ByteBuf;
import io.netty.handler.codec.http.HttpContent;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.util.ByteProcessor;
import java.util.List;

/**
 * Checks all bytes but the data: heads, the sizes of chunks and what follows them. Netty takes lines without a CR or
 * with white space in front, control characters, and anything after a chunk. A proxy in front may read those otherwise,
 * and then take the end of one request for the beginning of another.
 */
final class Framing implements ByteProcessor {
    /** At the start of a line; in it; after its CR; where a chunk's data begin or end; after the CR behind them. */
    private enum Place {
        START,
        LINE,
        RETURN,
        DATA,
        DATA_RETURN,
        WRONG
    }

    /** How many lines have arrived since something was last passed on. */
    int lines;

    private Place place = Place.START;
    private boolean chunked;
    /** The line is a chunk's size; so far all of it are digits; one of them is not zero. */
    private boolean sizing;

    private boolean digits;
    private boolean sized;

    /** Whether the bytes that netty has read from the buffer since {@code from}, to make {@code out}, are well formed. */
    boolean isSound(ByteBuf buffer, int from, List<Object> out) {
        int data = 0;
        for (Object part : out) {
            data += part instanceof HttpContent ? ((HttpContent) part).content().readableBytes() : 0;
        }
        int at = from;
        int end = buffer.readerIndex();
        if (!chunked) {
            at += data;
            data = 0;
        }
        while (at < end && place != Place.WRONG) {
            if (place == Place.DATA && data > 0) {
                at += data;
                data = 0;
            } else {
                int stop = buffer.forEachByte(at, end - at, this);
                at = stop < 0 ? end : stop + 1;
            }
        }
        boolean sound = place != Place.WRONG && data == 0;
        if (!out.isEmpty()) {
            chunked &= !(out.get(out.size() - 1) instanceof LastHttpContent);
            if (out.get(0) instanceof HttpRequest) {
                chunked = HttpUtil.isTransferEncodingChunked((HttpRequest) out.get(0));
                sizing = chunked;
            }
            lines = 0;
        }
        return sound;
    }

    /** False where data begin, and where the bytes are not well formed. */
    @Override
    public boolean process(byte value) {
        place = after((char) (value & 0xff));
        return place != Place.DATA && place != Place.WRONG;
    }

    private Place after(char c) {
        switch (place) {
            case DATA:
                return c == '\r' ? Place.DATA_RETURN : Place.WRONG;
            case DATA_RETURN:
                return c == '\n' ? Place.START : Place.WRONG;
            case RETURN:
                lines++;
                // After the size of a last chunk come other lines.
                sizing &= sized;
                sized = false;
                return c != '\n' ? Place.WRONG : sizing ? Place.DATA : Place.START;
            default:
                digits = (digits || place == Place.START) && Character.digit(c, 16) >= 0;
                sized |= sizing && digits && c != '0';
                boolean blank = c == ' ' || c == '\t';
                boolean plain = blank ? place == Place.LINE : c > ' ' && c != 127;
                return c == '\r' ? Place.RETURN : plain ? Place.LINE : Place.WRONG;
        }
    }
}
