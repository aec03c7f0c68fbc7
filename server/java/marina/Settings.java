package marina;

import java.util.Arrays;
import java.util.List;
import org.pytorch.serve.util.ConfigManager;

/** What a door has to know of this server. */
final class Settings {
    /** Which paths to ask, for a client that asked another one. */
    final String predictions;
    /** Where OpenAI's paths for texts are; empty where the model writes none. */
    final String texts;
    /** The kinds of bodies that the model takes; the first is its sample's. */
    final List<String> types;
    /** What the door answers itself. */
    final Pages pages;
    /** A larger body is not read. */
    final long bodyBytes;

    private Settings(String predictions, String texts, List<String> types, Pages pages, long bodyBytes) {
        this.predictions = predictions;
        this.texts = texts;
        this.types = types;
        this.pages = pages;
        this.bodyBytes = bodyBytes;
    }

    static Settings fromProperties() {
        return new Settings(
                System.getProperty("marina.predictions", "/predictions/NAME"),
                System.getProperty("marina.texts", ""),
                Arrays.asList(System.getProperty("marina.types", "application/json").split(",")),
                Pages.read(System.getProperty("marina.pages")),
                ConfigManager.getInstance().getMaxRequestSize());
    }
}
