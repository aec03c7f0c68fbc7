package marina;

import java.util.Arrays;
import java.util.List;
import org.pytorch.serve.util.ConfigManager;

/** What a door has to know of this server. */
final class Settings {
    /** Where one is to ask, for who asked somewhere else. */
    final String predictions;
    /** The kinds of bodies that the model takes; the first is its sample's. */
    final List<String> types;
    /** A larger body is not read. */
    final long bodyBytes;

    private Settings(String predictions, List<String> types, long bodyBytes) {
        this.predictions = predictions;
        this.types = types;
        this.bodyBytes = bodyBytes;
    }

    static Settings fromProperties() {
        return new Settings(
                System.getProperty("marina.predictions", "/predictions/NAME"),
                Arrays.asList(System.getProperty("marina.types", "application/json").split(",")),
                ConfigManager.getInstance().getMaxRequestSize());
    }
}
