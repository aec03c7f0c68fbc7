package marina;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import io.netty.buffer.Unpooled;
import io.netty.handler.codec.TooLongFrameException;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpContent;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaderValues;
import io.netty.handler.codec.http.HttpHeaders;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpVersion;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.pytorch.serve.util.JsonUtils;
import org.pytorch.serve.util.codec.ModelResponseDecoder;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * An error in Marina's form, {@code {"error", "field", "got", "allowed", "hint"}}, never with a body or a message of Java.
 * For a model that writes texts it is in OpenAI's form, as its handler's errors are, and for an adopted archive in
 * TorchServe's.
 */
final class Refusal {
    private static final Logger LOG = LoggerFactory.getLogger("marina.door");
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final Set<String> TORCHSERVES = Set.of("code", "type", "message");
    private static final Set<String> WITHOUT_MESSAGE = Set.of("code", "type");
    private static final String TEXTS = "/v1/completions, /v1/chat/completions, /v1/models";
    /** The longest error of TorchServe's; what is longer is an answer of a handler. */
    private static final int LONGEST = 64 * 1024;

    private final int status;
    private final JsonObject body = new JsonObject();

    private Refusal(int status, String error) {
        this.status = status;
        body.addProperty("error", error);
    }

    private Refusal with(String name, String value) {
        body.addProperty(name, value);
        return this;
    }

    /** Why a head is not acceptable; null if it is. */
    static Refusal ofHead(HttpRequest message, Request request, Settings settings) {
        if (message.decoderResult().isFailure()) {
            return malformed(message.decoderResult().cause(), true);
        }
        if (message.headers().size() > Codec.MOST_HEADERS) {
            return headers();
        }
        if (!request.isAddressed) {
            return target(settings);
        }
        if (request.otherMethods != null) {
            return method(request.otherMethods);
        }
        if (request.isForm) {
            return form(settings);
        }
        if (request.declaredBytes < 0) {
            return malformed(null, true);
        }
        return request.declaredBytes > settings.bodyBytes ? tooLarge(settings) : null;
    }

    /** Why a piece of a body is not acceptable, after what has arrived of it before; null if it is. */
    static Refusal ofBody(HttpContent message, Request request, boolean hasRoom, Settings settings) {
        if (message.decoderResult().isFailure()) {
            return malformed(message.decoderResult().cause(), false);
        }
        if (request.bodyBytes > settings.bodyBytes) {
            return tooLarge(settings);
        }
        if (!hasRoom) {
            return full("bodies");
        }
        if (request.isInTinyPieces()) {
            return tinyPieces();
        }
        boolean hasBadParts = request.parts != null && message.content().forEachByte(request.parts) >= 0;
        if (!hasBadParts) {
            return null;
        }
        return request.isMultipart ? parts() : fields();
    }

    private static Refusal form(Settings settings) {
        Refusal refusal =
                new Refusal(415, "this model does not take forms; curl sends this type unless you name another")
                        .with("field", "content-type")
                        .with("got", "application/x-www-form-urlencoded");
        refusal.body.add("allowed", GSON.toJsonTree(settings.types));
        return refusal.with("hint", "curl -H 'Content-Type: " + settings.types.get(0) + "' --data-binary @FILE URL");
    }

    private static Refusal method(String allowed) {
        return new Refusal(405, "no such method").with("allowed", allowed);
    }

    private static Refusal tooLarge(Settings settings) {
        return new Refusal(413, "the body is too large")
                .with("field", "body")
                .with("allowed", "at most " + settings.bodyBytes + " bytes");
    }

    private static Refusal tinyPieces() {
        return new Refusal(413, "the body comes in too many pieces")
                .with("field", "body")
                .with("allowed", "larger chunks");
    }

    private static Refusal parts() {
        return new Refusal(400, "the multipart body cannot be read")
                .with("field", "body")
                .with(
                        "allowed",
                        "at most " + Parts.MOST + " parts, each with a head of at most " + Parts.LARGEST_HEAD
                                + " bytes in UTF-8, and none of parts of its own");
    }

    private static Refusal fields() {
        return new Refusal(413, "the form has too many fields")
                .with("field", "body")
                .with("allowed", "at most " + Fields.MOST);
    }

    static Refusal headers() {
        return new Refusal(431, "the headers are too many").with("allowed", "at most " + Codec.MOST_HEADERS);
    }

    static Refusal late() {
        return new Refusal(408, "the request did not arrive in time");
    }

    /** A request that TorchServe has forgotten. */
    static Refusal lost() {
        return new Refusal(503, "the worker ended before it began this request").with("hint", "send it again");
    }

    /** A large body, or one that arrives slowly, or a large answer, while others take all memory. */
    static Refusal full(String what) {
        return new Refusal(503, "overloaded: too many large " + what + " at once").with("hint", "send it again");
    }

    /** A connection for which there is no room. */
    static Refusal crowded(int limit) {
        return new Refusal(503, "too many connections, and none of them is idle")
                .with("allowed", "at most " + limit + " at once");
    }

    /** A request without a path, such as `OPTIONS *` or `CONNECT`. */
    private static Refusal target(Settings settings) {
        return new Refusal(400, "the request's target is not a path").with("allowed", settings.predictions);
    }

    /** What the HTTP decoder could not read. */
    static Refusal malformed(Throwable cause, boolean inHead) {
        if (inHead && cause instanceof TooLongFrameException) {
            boolean line = String.valueOf(cause.getMessage()).contains("line");
            return line
                    ? new Refusal(414, "the request line is too long").with("allowed", "at most 4096 bytes")
                    : new Refusal(431, "the headers are too large").with("allowed", "at most 8192 bytes");
        }
        String part = inHead ? "the request's head is" : "the body's chunks are";
        return new Refusal(400, part + " not valid HTTP");
    }

    /** What to answer instead of an error of TorchServe itself; null for an answer of a handler. */
    static Refusal instead(FullHttpResponse answer, Request request, Settings settings) {
        if (settings.adopted) {
            // Clients know TorchServe's errors; this one is of Marina's own decoder.
            return answer.content().equals(Unpooled.wrappedBuffer(ModelResponseDecoder.NO_ROOM)) ? full("answers") : null;
        }
        if (answer.status().code() == 417) {
            return new Refusal(417, "the value of `Expect` is unknown").with("allowed", "100-continue");
        }
        if (answer.content().readableBytes() > LONGEST || !isJson(answer.headers())) {
            return null;
        }
        JsonElement json;
        try {
            json = JsonParser.parseString(answer.content().toString(StandardCharsets.UTF_8));
        } catch (JsonParseException err) {
            return null;
        }
        if (!json.isJsonObject()) {
            return null;
        }
        JsonObject error = json.getAsJsonObject();
        // If Java's exception has no message, the error has none.
        if (!error.keySet().equals(TORCHSERVES) && !error.keySet().equals(WITHOUT_MESSAGE)) {
            return null;
        }
        JsonElement message = error.get("message");
        String text = message == null || message.isJsonNull() ? "" : message.getAsString();
        return named(answer.status().code(), error.get("type").getAsString(), text, request, settings);
    }

    private static Refusal named(int status, String type, String message, Request request, Settings settings) {
        switch (type) {
            case "InternalServerException":
                return new Refusal(status, ofWorker(status, message));
            case "ServiceUnavailableException":
                return new Refusal(503, "overloaded: the queue is full, or no worker is ready");
            case "NoRoomException":
                return full("answers");
            case "ModelNotFoundException":
                return new Refusal(404, "no such model").with("allowed", settings.predictions);
            case "ModelVersionNotFoundException":
                return new Refusal(404, "no such version of the model").with("allowed", settings.predictions);
            case "ResourceNotFoundException":
                String pages = settings.texts.isEmpty() ? settings.predictions : TEXTS;
                return new Refusal(404, "no such page").with("allowed", pages);
            case "MethodNotAllowedException":
                return new Refusal(405, "no such method");
            case "OutOfMemoryError":
                return new Refusal(507, "out of memory");
            default:
                if (request.isMultipart) {
                    return new Refusal(400, "the multipart body cannot be read").with("field", "body");
                }
                // An argument that Java does not take is the client's fault, such as a path that no decoder reads.
                boolean isOfClient = status < 500 || type.startsWith("Illegal");
                if (!isOfClient) {
                    // Its message may hold what the client sent.
                    LOG.error("TorchServe failed with {}", type);
                }
                return new Refusal(isOfClient ? 400 : 500, isOfClient ? "malformed request" : "internal error");
        }
    }

    /** The message of an error of a worker: TorchServe's own messages in plainer words, a handler's as it is. */
    private static String ofWorker(int status, String message) {
        if (message.startsWith("Worker died")) {
            return status == 507 ? "out of memory" : "the worker ended while it had this request";
        }
        if (message.contains("direct buffer memory")) {
            // Java's own words.
            return "out of memory: the answer is too large for `serving.java_heap_mb`";
        }
        return message.equals("Prediction failed") ? "the handler failed; the server's log says why" : message;
    }

    private static boolean isJson(HttpHeaders headers) {
        return HttpHeaderValues.APPLICATION_JSON.contentEqualsIgnoreCase(headers.get(HttpHeaderNames.CONTENT_TYPE, ""));
    }

    /** The error in TorchServe's form, as its clients know it. */
    private JsonObject torchserveBody() {
        JsonObject whole = new JsonObject();
        whole.addProperty("code", status);
        whole.addProperty("type", status == 503 ? "ServiceUnavailableException" : "BadRequestException");
        whole.addProperty("message", sentence());
        return whole;
    }

    /** The error in OpenAI's form: all in one sentence, and the field beside it. */
    private JsonObject openaiBody() {
        JsonObject error = new JsonObject();
        error.addProperty("message", sentence());
        error.addProperty("type", status < 500 ? "invalid_request_error" : "server_error");
        error.add("param", body.has("field") ? body.get("field") : JsonNull.INSTANCE);
        error.add("code", JsonNull.INSTANCE);
        JsonObject whole = new JsonObject();
        whole.add("error", error);
        return whole;
    }

    private String sentence() {
        StringBuilder text = new StringBuilder(body.get("error").getAsString());
        if (body.has("got")) {
            text.append(": got ").append(body.get("got").getAsString());
        }
        if (body.has("allowed")) {
            text.append(", allowed: ").append(listed(body.get("allowed")));
        }
        if (body.has("hint")) {
            text.append("; ").append(body.get("hint").getAsString());
        }
        return text.toString();
    }

    private String text(Settings settings) {
        if (settings.adopted) {
            return JsonUtils.GSON_PRETTY.toJson(torchserveBody());
        }
        return GSON.toJson(settings.texts.isEmpty() ? body : openaiBody());
    }

    private static String listed(JsonElement value) {
        if (!value.isJsonArray()) {
            return value.getAsString();
        }
        List<String> all = new ArrayList<>();
        value.getAsJsonArray().forEach(item -> all.add(item.getAsString()));
        return String.join(", ", all);
    }

    /** The answer, with the headers of the one that it replaces, which may be null. */
    FullHttpResponse answer(HttpHeaders headers, Settings settings) {
        byte[] text = (text(settings) + "\n").getBytes(StandardCharsets.UTF_8);
        FullHttpResponse answer =
                new DefaultFullHttpResponse(
                        HttpVersion.HTTP_1_1, HttpResponseStatus.valueOf(status), Unpooled.wrappedBuffer(text));
        if (headers != null) {
            answer.headers().set(headers);
        }
        if (status == 405 && body.has("allowed")) {
            answer.headers().set(HttpHeaderNames.ALLOW, body.get("allowed").getAsString());
        }
        answer.headers().set(HttpHeaderNames.CONTENT_TYPE, HttpHeaderValues.APPLICATION_JSON);
        answer.headers().set(HttpHeaderNames.CONTENT_LENGTH, text.length);
        return answer;
    }
}
