package marina;

import java.util.Arrays;
import java.util.List;
import org.pytorch.serve.util.ConfigManager;

/** What a door knows of this server. */
final class Settings {
    /** The paths of predictions, to name them to a client that asked another one. */
    final String predictions = System.getProperty("marina.predictions", "/predictions/NAME");
    /** Where OpenAI's paths for texts are; empty if the model writes none. */
    final String texts = System.getProperty("marina.texts", "");
    /** The model is an archive made for TorchServe: its handler and its clients find everything as TorchServe has it. */
    final boolean adopted = Boolean.getBoolean("marina.adopted");
    /** The kinds of bodies that the model takes; the first is its sample's. */
    final List<String> types = Arrays.asList(System.getProperty("marina.types", "application/json").split(","));
    /** The pages that the door answers with. */
    final Pages pages = Pages.read(System.getProperty("marina.pages"));
    /** The share of requests that are traced, if their clients do not say; negative if none is, whatever they say. */
    final double tracesSampled = Double.parseDouble(System.getProperty("marina.trace", "-1"));
    /** A larger body is not read. */
    final long bodyBytes = ConfigManager.getInstance().getMaxRequestSize();
}
