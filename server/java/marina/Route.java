package marina;

import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpRequest;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Where a request goes: to the model, under TorchServe's own path and with a header that names the protocol of the path;
 * or to a page that the door answers with, {@link Pages}. What an adopted archive is asked stays as it is.
 */
final class Route {
    /** The header that the handler reads ({@code handlers/protocols}); what a client sets there is removed. */
    private static final String PROTOCOL = "x-marina-protocol";
    private static final Pattern V1 = Pattern.compile("/v1/models/([^/:]+):predict");
    private static final Pattern V2 = Pattern.compile("/v2/models/([^/]+)(?:/versions/([^/]+))?/infer");
    private static final Pattern COMPLETIONS = Pattern.compile("/v1/(?:chat/)?completions");
    /** Below a model's own path the handler reads it with any slashes before it. */
    private static final Pattern WRITES = Pattern.compile("/+v1/(?:chat/)?completions");
    private static final Pattern MODEL = Pattern.compile("/v1/models/[^/:]+");
    private static final Pattern MODELS = Pattern.compile("/+v1/models(?:/.*)?");
    private static final Pattern TORCHSERVES =
            Pattern.compile(
                    "/(?:predictions|explanations)/.*|/invocations|/models/[^/]*/invoke|(?:/[^/]+){1,2}/predict"
                            + "|/v1/models/[^/]+:.*|/v2/models/.+/(?:explain|infer)");

    /** Whether TorchServe asks a model for it. */
    final boolean inference;
    /** The page that the door answers with; null if TorchServe is asked. */
    final Pages.Page page;

    /** Whether the path says what the body is. */
    final boolean protocol;
    /** The methods that are allowed, if the request has another one: TorchServe would run the model for any. */
    final String otherMethods;

    private Route(boolean inference, boolean protocol, String otherMethods, Pages.Page page) {
        this.inference = inference;
        this.protocol = protocol;
        this.otherMethods = otherMethods;
        this.page = page;
    }

    /** The route of a request, whose head is changed to what TorchServe knows. */
    static Route of(HttpRequest message, Settings settings) {
        String uri = message.uri();
        int query = uri.indexOf('?');
        String path = query < 0 ? uri : uri.substring(0, query);
        HttpMethod method = message.method();
        boolean reads = method.equals(HttpMethod.GET) || method.equals(HttpMethod.HEAD);
        if (reads) {
            Pages.Page page = settings.pages.find(path);
            if (page != null) {
                return new Route(false, false, null, page);
            }
        }
        if (settings.adopted) {
            boolean asked = TORCHSERVES.matcher(path).matches() && !method.equals(HttpMethod.OPTIONS);
            return new Route(asked, false, null, null);
        }
        message.headers().remove(PROTOCOL);
        String rest = query < 0 ? "" : uri.substring(query);
        Matcher v1 = V1.matcher(path);
        Matcher v2 = V2.matcher(path);
        String protocol = null;
        if (v1.matches()) {
            protocol = "v1";
            path = "/predictions/" + v1.group(1);
        } else if (v2.matches()) {
            protocol = "v2";
            path = "/predictions/" + v2.group(1) + (v2.group(2) == null ? "" : "/" + v2.group(2));
        }
        boolean writes = !settings.texts.isEmpty();
        if ((path.equals("/v1/embeddings") || path.equals("/v1/audio/transcriptions")) && !writes) {
            // As OpenAI's clients ask; there is one model, whatever they call it.
            path = settings.predictions;
        }
        if (writes && (COMPLETIONS.matcher(path).matches() || (reads && MODEL.matcher(path).matches()))) {
            path = settings.texts + path;
        }
        message.setUri(path + rest);
        if (protocol != null) {
            message.headers().set(PROTOCOL, protocol);
            // Whatever a client calls it: `curl -d`, as KServe's pages have it, says that it is a form.
            message.headers().set(HttpHeaderNames.CONTENT_TYPE, "application/octet-stream");
        }
        boolean inference = TORCHSERVES.matcher(path).matches();
        String below = writes && path.startsWith(settings.texts) ? path.substring(settings.texts.length()) : "";
        String methods = null;
        if (protocol != null || WRITES.matcher(below).matches()) {
            methods = "POST";
        } else if (inference && !MODELS.matcher(below).matches()) {
            // PUT is what `curl -T FILE` sends; at OPTIONS, TorchServe describes the model.
            methods = "POST, PUT, OPTIONS";
        }
        boolean allowed = methods == null || List.of(methods.split(", ")).contains(method.name());
        inference &= !method.equals(HttpMethod.OPTIONS);
        return new Route(inference, protocol != null, allowed ? null : methods, null);
    }
}
