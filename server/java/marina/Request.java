package marina;

import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaders;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.QueryStringDecoder;
import io.netty.util.NetUtil;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** What is remembered of a request until its answer is sent. */
final class Request {
    private static final String ID = "x-request-id";
    private static final int LONGEST_ID = 128;
    private static final int LONGEST_PATH = 200;
    private static final int LONGEST_WORD = 16;
    private static final long MOST_COPIED = 10_000_000_000_000L;
    private static final int SHORTEST_PIECE = 64;
    private static final Pattern ADDRESS = Pattern.compile("(?i)https?://[^/?#]+(.*)");

    final String method;
    final String path;
    final String protocol;
    /** Its client may know nothing newer than HTTP/1.0. */
    final boolean isOld;
    /** Of the client's choosing, or null: TorchServe gives one then. */
    final String id;
    /** Its target is a path, or an address with one. */
    final boolean addressed;
    final boolean inference;
    final String otherMethods;
    /** What the door answers itself, or null; and for which name of this server. */
    final Pages.Page page;
    final String host;
    final boolean form;
    final boolean multipart;
    /** Reads along in a multipart body; null where there is none. */
    final Parts parts;
    /** What the head says of the body's length; negative where it can be read in two ways, or not at all. */
    final long declaredBytes;
    /** Its body has been read to the end, or there is nothing more of it that could be read. */
    boolean received;
    long bodyBytes;
    /** In so many pieces its body has come. */
    long pieces;
    /** When the last of it was read. */
    long receivedAt = System.nanoTime();
    /** So often in a row it was looked for in vain among what TorchServe holds. */
    int missed;
    int status;
    /** All of the answer has been given to the connection, which need not have sent it yet. */
    boolean answered;
    /** The connection ends with the answer. */
    boolean last;

    Request(HttpRequest message, Settings settings) {
        Matcher address = ADDRESS.matcher(message.uri());
        if (address.matches()) {
            // As a client writes it that takes us for a proxy; TorchServe knows only paths.
            message.setUri(address.group(1).startsWith("/") ? address.group(1) : "/" + address.group(1));
        }
        // What comes after a `#` is for the client alone; TorchServe would leave it out.
        addressed = message.uri().startsWith("/") && message.uri().indexOf('#') < 0;
        String uri = canonical(message.uri());
        message.setUri(uri);
        int query = uri.indexOf('?');
        String bare = query < 0 ? uri : uri.substring(0, query);
        method = printable(message.method().name(), LONGEST_WORD);
        path = printable(bare, LONGEST_PATH);
        protocol = printable(message.protocolVersion().text(), LONGEST_WORD);
        isOld = message.protocolVersion().compareTo(HttpVersion.HTTP_1_1) < 0;
        declaredBytes = declaredBytes(message);
        host = Pages.host(message);
        String given = message.headers().get(HttpHeaderNames.CONTENT_TYPE, "").trim();
        String type = given.toLowerCase(Locale.ROOT);
        Route route = Route.of(message, settings);
        inference = route.inference;
        otherMethods = route.otherMethods;
        page = route.page;
        form = type.startsWith("application/x-www-form-urlencoded") && !route.protocol;
        multipart = type.startsWith("multipart/");
        parts = multipart && !route.protocol ? Parts.of(given) : null;
        String chosen = message.headers().get(ID);
        id = chosen != null && isId(chosen) ? chosen : null;
        last = !HttpUtil.isKeepAlive(message);
    }

    /** TorchServe copies a body anew at every thousandth piece of it: a large one of tiny pieces would take minutes. */
    boolean isCrumbs() {
        return pieces * bodyBytes > MOST_COPIED && bodyBytes < SHORTEST_PIECE * pieces;
    }

    /** A line of the access log, as TorchServe's own, but for the time, which has three more digits. */
    String line(SocketAddress address, int code) {
        long took = (System.nanoTime() - receivedAt) / 1000;
        String digits = Long.toString(1000 + took % 1000).substring(1);
        String client = NetUtil.toSocketAddressString((InetSocketAddress) address);
        return client + " \"" + method + " " + path + " " + protocol + "\" " + code + " " + took / 1000 + "." + digits;
    }

    /** A path as TorchServe and the door's patterns read it: without slashes at its end, and escaped only where it must. */
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
            // TorchServe says the same, and refuses it.
            return path;
        }
        StringBuilder plain = new StringBuilder();
        for (byte one : decoded.getBytes(StandardCharsets.UTF_8)) {
            boolean safe = one > ' ' && one < 127 && "\"#%<>?\\^`{|}".indexOf(one) < 0;
            plain.append(safe ? String.valueOf((char) one) : String.format("%%%02X", one));
        }
        return plain.toString();
    }

    private static long declaredBytes(HttpRequest message) {
        HttpHeaders headers = message.headers();
        String length = headers.get(HttpHeaderNames.CONTENT_LENGTH, "0");
        List<String> codings = headers.getAll(HttpHeaderNames.TRANSFER_ENCODING);
        // Netty reads `+2` as 2, passes over codings that it does not know, and takes the first of several values. Who
        // stands in front of us may read them otherwise, and then take the end of one request for the beginning of
        // another.
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
