package marina;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import io.netty.buffer.Unpooled;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpVersion;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;

/** The pages that the door answers with, written by the supervisor: metadata and health, as several protocols have them. */
final class Pages {
    private static final Pattern HOST = Pattern.compile("[A-Za-z0-9.-]{1,253}|\\[[0-9A-Fa-f:.]{2,45}\\]");
    private final Map<String, Page> pages = new HashMap<>();

    /** One page: {@code body} with its type, or, if it is about readiness, {@code unready} with 503. */
    static final class Page {
        private final String type;
        private final String body;
        private final String unready;

        private Page(JsonObject json) {
            type = json.get("type").getAsString();
            body = json.get("body").getAsString();
            JsonElement other = json.get("unready");
            unready = other == null ? null : other.getAsString();
        }

        /** {@code host} replaces HOST in the text: pages at another port are reached by the same name. */
        FullHttpResponse answer(boolean ready, String host) {
            boolean isUnready = unready != null && !ready;
            byte[] text = (isUnready ? unready : body).replace("{HOST}", host).getBytes(StandardCharsets.UTF_8);
            FullHttpResponse answer =
                    new DefaultFullHttpResponse(
                            HttpVersion.HTTP_1_1,
                            isUnready ? HttpResponseStatus.SERVICE_UNAVAILABLE : HttpResponseStatus.OK,
                            Unpooled.wrappedBuffer(text));
            answer.headers().set(HttpHeaderNames.CONTENT_TYPE, type);
            answer.headers().set(HttpHeaderNames.CONTENT_LENGTH, text.length);
            return answer;
        }
    }

    /** The pages of a file; none without one. */
    static Pages read(String file) {
        Pages read = new Pages();
        if (file != null) {
            try {
                String text = Files.readString(Path.of(file));
                new Gson()
                        .fromJson(text, JsonObject.class)
                        .entrySet()
                        .forEach(page -> read.pages.put(page.getKey(), new Page(page.getValue().getAsJsonObject())));
            } catch (IOException err) {
                throw new IllegalStateException("marina.pages: " + err.getMessage(), err);
            }
        }
        return read;
    }

    /** The page at a path; null if there is none. */
    Page find(String path) {
        return pages.get(path);
    }

    /** The name by which the client reached this server; one that is safe in a page. */
    static String host(HttpRequest message) {
        String given = message.headers().get(HttpHeaderNames.HOST, "");
        int port = given.lastIndexOf(':');
        String name = port > given.lastIndexOf(']') ? given.substring(0, port) : given;
        return HOST.matcher(name).matches() ? name : "localhost";
    }
}
