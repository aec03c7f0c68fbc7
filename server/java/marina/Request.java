package marina;

import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaderValues;
import io.netty.handler.codec.http.HttpHeaders;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.QueryStringDecoder;
import io.netty.util.ByteProcessor;
import io.netty.util.NetUtil;
import io.netty.util.ReferenceCountUtil;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** What is known of a request until its answer is sent. */
final class Request {
    private static final String ID = "x-request-id";
    private static final int LONGEST_ID = 128;
    private static final int LONGEST_PATH = 200;
    private static final int LONGEST_WORD = 16;
    private static final long MOST_COPIED = 10_000_000_000_000L;
    private static final int SHORTEST_PIECE = 64;
    private static final Pattern ADDRESS = Pattern.compile("(?i)https?://[^/?#]+(.*)");
    /** In this time TorchServe has made a job of a request, and its answer has come from the worker's thread to ours. */
    private static final long TAKEN_NS = TimeUnit.SECONDS.toNanos(1);
    /** A request that is missing so often in a row is forgotten. */
    private static final int MISSED = 3;

    final String method;
    final String path;
    final String protocol;
    /** Whether its client may know nothing newer than HTTP/1.0. */
    final boolean isOld;
    /** The id that the client chose, or null: TorchServe makes one then. */
    final String id;
    /** Whether its target is a path, or an address with one. */
    final boolean isAddressed;
    final boolean inference;
    final String otherMethods;
    /** The page that the door answers with, or null. */
    final Pages.Page page;
    /** Whether it is a form, which the model does not take. */
    final boolean isForm;
    final boolean isMultipart;
    /** Checks the parts of a multipart body, or the fields of a form; null for any other body. */
    final ByteProcessor parts;
    /** The length of the body by its head; negative if that can be read in two ways, or not at all. */
    final long declaredBytes;
    /** Whether its body has been read to the end, or no more of it will be read. */
    boolean received;
    long bodyBytes;
    /** The number of pieces in which its body has arrived. */
    long pieces;
    /** When its head was read, and when the last of it was. */
    private final long begunAt = System.nanoTime();
    long receivedAt = begunAt;
    /** When its answer began; its end, if it has none. */
    private long answeredAt;
    /** The trace that it belongs to; null if there is none. */
    private final Trace trace;
    /** The id of its answer; null before there is one. */
    private String answerId;
    /** How often in a row TorchServe did not hold it. */
    private int missed;
    /** The status of its answer; 0 before there is one. */
    int status;
    /** Whether all of the answer has been passed on to the connection, which need not have sent it yet. */
    boolean answered;
    /** Whether the connection ends with the answer. */
    boolean isLast;

    Request(HttpRequest message, Settings settings) {
        Matcher address = ADDRESS.matcher(message.uri());
        if (address.matches()) {
            // As a client writes it for a proxy; TorchServe knows only paths.
            message.setUri(address.group(1).startsWith("/") ? address.group(1) : "/" + address.group(1));
        }
        // What comes after a `#` is for the client alone; TorchServe would leave it out.
        isAddressed = message.uri().startsWith("/") && message.uri().indexOf('#') < 0;
        String uri = canonical(message.uri());
        message.setUri(uri);
        int query = uri.indexOf('?');
        String bare = query < 0 ? uri : uri.substring(0, query);
        method = printable(message.method().name(), LONGEST_WORD);
        path = printable(bare, LONGEST_PATH);
        protocol = printable(message.protocolVersion().text(), LONGEST_WORD);
        isOld = message.protocolVersion().compareTo(HttpVersion.HTTP_1_1) < 0;
        declaredBytes = declaredBytes(message);
        String given = message.headers().get(HttpHeaderNames.CONTENT_TYPE, "").trim();
        String type = given.toLowerCase(Locale.ROOT);
        Route route = Route.of(message, settings);
        inference = route.inference;
        otherMethods = route.otherMethods;
        page = route.page;
        boolean form = type.startsWith("application/x-www-form-urlencoded") && !route.protocol;
        isForm = form && !settings.adopted;
        isMultipart = type.startsWith("multipart/");
        parts = isMultipart && !route.protocol ? Parts.of(given) : form ? new Fields() : null;
        String chosen = message.headers().get(ID);
        id = chosen != null && isId(chosen) ? chosen : null;
        // Probes are of no interest, unless a client says so.
        boolean isTraced = settings.tracesSampled >= 0;
        trace = isTraced ? Trace.of(message.headers(), inference ? settings.tracesSampled : 0) : null;
        isLast = !HttpUtil.isKeepAlive(message);
    }

    /** Whether TorchServe has forgotten it: it should hold a job for it, and several times in a row did not. */
    boolean isForgotten(Set<String> held, String jobId, long at) {
        boolean isHeldOrDone = !inference || !received || status != 0 || at - receivedAt <= TAKEN_NS || held.contains(jobId);
        missed = isHeldOrDone ? 0 : missed + 1;
        return missed == MISSED;
    }

    /** Its answer as it is sent; {@code isLastOfConnection} if the connection ends with it in any case. */
    HttpResponse prepareAnswer(HttpResponse message, boolean isLastOfConnection, Settings settings) {
        HttpResponse answer = message;
        if (answer.status().code() >= 400 && answer instanceof FullHttpResponse) {
            Refusal instead = Refusal.instead((FullHttpResponse) answer, this, settings);
            if (instead != null) {
                answer = instead.answer(message.headers(), settings);
                ReferenceCountUtil.release(message);
            }
        }
        // It is between TorchServe and its worker.
        answer.headers().remove("ts_stream_next");
        status = answer.status().code();
        answeredAt = System.nanoTime();
        String named = answer.headers().get(ID);
        answerId = id != null ? id : named != null && isId(named) ? named : null;
        if (answer.headers().get(HttpHeaderNames.CONTENT_TYPE, "").startsWith("text/event-stream")) {
            // nginx would hold back events until they fill a buffer.
            answer.headers().set("x-accel-buffering", "no");
        }
        if (isOld && HttpUtil.isTransferEncodingChunked(answer)) {
            // HTTP/1.0 knows no chunks: the end of the connection is the end of the answer.
            HttpUtil.setTransferEncodingChunked(answer, false);
            isLast = true;
        }
        isLast |= status >= 400 || isLastOfConnection;
        if (id != null) {
            answer.headers().set(ID, id);
        }
        if (isLast) {
            answer.headers().set(HttpHeaderNames.CONNECTION, HttpHeaderValues.CLOSE);
        }
        return answer;
    }

    /** Whether its pieces are too small: TorchServe copies a body at every thousandth, so a large one would take minutes. */
    boolean isInTinyPieces() {
        return pieces * bodyBytes > MOST_COPIED && bodyBytes < SHORTEST_PIECE * pieces;
    }

    /** Its line in the access log: as TorchServe writes it, but with three more digits of the time, and its trace. */
    String logLine(SocketAddress address, int code) {
        long now = System.nanoTime();
        long took = (now - receivedAt) / 1000;
        String digits = Long.toString(1000 + took % 1000).substring(1);
        String client = NetUtil.toSocketAddressString((InetSocketAddress) address);
        String line = client + " \"" + method + " " + path + " " + protocol + "\" " + code + " " + took / 1000 + "." + digits;
        if (trace == null) {
            return line;
        }
        long began = us(status == 0 ? now : answeredAt);
        return line + trace.logged(begunAt / 1000, us(receivedAt), began, us(now), bodyBytes, answerId);
    }

    /** Microseconds from its head to a time. */
    private long us(long at) {
        return (at - begunAt) / 1000;
    }

    /** A path as TorchServe and the door's patterns read it: without slashes at its end, and escaped only where needed. */
    private static String canonical(String uri) {
        int query = uri.indexOf('?');
        String path = query < 0 ? uri : uri.substring(0, query);
        if (path.indexOf('%') >= 0) {
            path = unescaped(path);
        }
        int last = path.length();
        while (last > 1 && path.charAt(last - 1) == '/') {
            last--;
        }
        return path.substring(0, last) + (query < 0 ? "" : uri.substring(query));
    }

    private static String unescaped(String path) {
        String decoded;
        try {
            decoded = new QueryStringDecoder(path).path();
        } catch (IllegalArgumentException err) {
            // TorchServe refuses it.
            return path;
        }
        StringBuilder plain = new StringBuilder();
        for (byte value : decoded.getBytes(StandardCharsets.UTF_8)) {
            boolean safe = value > ' ' && value < 127 && "\"#%<>?\\^`{|}".indexOf(value) < 0;
            plain.append(safe ? String.valueOf((char) value) : String.format("%%%02X", value));
        }
        return plain.toString();
    }

    private static long declaredBytes(HttpRequest message) {
        HttpHeaders headers = message.headers();
        String length = headers.get(HttpHeaderNames.CONTENT_LENGTH, "0");
        List<String> codings = headers.getAll(HttpHeaderNames.TRANSFER_ENCODING);
        // Netty reads `+2` as 2, ignores codings that it does not know, and takes the first of several values. A proxy in
        // front may read them otherwise, and then take the end of one request for the beginning of another.
        boolean plain = length.chars().allMatch(c -> c >= '0' && c <= '9');
        boolean twice = Stream.of(HttpHeaderNames.CONTENT_LENGTH, HttpHeaderNames.HOST, HttpHeaderNames.TRANSFER_ENCODING)
                .anyMatch(name -> headers.getAll(name).size() > 1);
        boolean chunks = message.protocolVersion().compareTo(HttpVersion.HTTP_1_1) >= 0;
        boolean known = codings.isEmpty() || (chunks && codings.get(0).equalsIgnoreCase("chunked"));
        if (!plain || twice || !known) {
            return -1;
        }
        try {
            return HttpUtil.getContentLength(message, 0L);
        } catch (NumberFormatException err) {
            return -1;
        }
    }

    private static boolean isId(String text) {
        return !text.isEmpty() && text.length() <= LONGEST_ID && text.chars().allMatch(c -> c > ' ' && c < 127);
    }

    /** A name that is safe in a line of a log: short, visible, without a quotation mark. */
    private static String printable(String text, int longest) {
        int end = Math.min(text.length(), longest);
        StringBuilder safe = null;
        for (int i = 0; i < end; i++) {
            char c = text.charAt(i);
            boolean plain = c > ' ' && c < 127 && c != '"' && c != '\\';
            if (!plain && safe == null) {
                safe = new StringBuilder(text.substring(0, i));
            }
            if (plain && safe != null) {
                safe.append(c);
            } else if (!plain) {
                safe.append(String.format(c < 256 ? "%%%02X" : "%%u%04X", (int) c));
            }
        }
        String shown = safe == null ? text.substring(0, end) : safe.toString();
        return end < text.length() ? shown + "..." : shown;
    }
}
