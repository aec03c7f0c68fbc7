package marina;

import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import io.netty.buffer.Unpooled;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpVersion;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/**
 * The pages that the door answers with, written by the supervisor: metadata and health, as several protocols have them, and
 * the page for trying the model.
 */
final class Pages {
    private final Map<String, Page> pages = new HashMap<>();

    /** A page as the supervisor describes it; Gson sets the fields. */
    private static final class Description {
        Map<String, String> headers;
        String body;
        /** The body is in this file instead. */
        String file;
        /** For a page about readiness, its body while the model is not ready. */
        String unready;
    }

    /** One page: its body, or, if it is about readiness and the model is not ready, another one with 503. */
    static final class Page {
        private final Map<String, String> headers;
        private final byte[] body;
        private final byte[] unready;

        private Page(Description described) throws IOException {
            headers = described.headers;
            body = described.file == null ? bytes(described.body) : Files.readAllBytes(Path.of(described.file));
            unready = described.unready == null ? null : bytes(described.unready);
        }

        private static byte[] bytes(String text) {
            return text.getBytes(StandardCharsets.UTF_8);
        }

        FullHttpResponse answer(boolean ready) {
            boolean isUnready = unready != null && !ready;
            byte[] text = isUnready ? unready : body;
            FullHttpResponse answer =
                    new DefaultFullHttpResponse(
                            HttpVersion.HTTP_1_1,
                            isUnready ? HttpResponseStatus.SERVICE_UNAVAILABLE : HttpResponseStatus.OK,
                            Unpooled.wrappedBuffer(text));
            headers.forEach(answer.headers()::set);
            answer.headers().set(HttpHeaderNames.CONTENT_LENGTH, text.length);
            return answer;
        }
    }

    /** The pages that a file describes; none without one. */
    static Pages read(String file) {
        Pages read = new Pages();
        if (file == null) {
            return read;
        }
        try {
            Map<String, Description> described =
                    new Gson()
                            .fromJson(
                                    Files.readString(Path.of(file)),
                                    new TypeToken<Map<String, Description>>() {}.getType());
            for (Map.Entry<String, Description> page : described.entrySet()) {
                read.pages.put(page.getKey(), new Page(page.getValue()));
            }
        } catch (IOException err) {
            throw new IllegalStateException("marina.pages: " + err.getMessage(), err);
        }
        return read;
    }

    /** The page at a path; null if there is none. */
    Page find(String path) {
        return pages.get(path);
    }
}
