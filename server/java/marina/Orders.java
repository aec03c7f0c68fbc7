package marina;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** The supervisor's orders, a line each on standard input, which is a socket: the answer goes back on it. */
final class Orders implements Runnable {
    private final Counts counts;

    Orders(Counts counts) {
        this.counts = counts;
    }

    @Override
    public void run() {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        // Not closed: its descriptor is standard input's.
        FileOutputStream answers = new FileOutputStream(FileDescriptor.in);
        try {
            String line;
            while ((line = lines.readLine()) != null) {
                // The number says which order is answered.
                int space = line.indexOf(' ') + 1;
                String answer = line.substring(0, space) + obey(line.substring(space)) + "\n";
                answers.write(answer.getBytes(StandardCharsets.US_ASCII));
            }
        } catch (IOException | InterruptedException err) {
            err.printStackTrace();
        }
        // The supervisor has ended, and nothing else would end this process.
        Runtime.getRuntime().halt(1);
    }

    private String obey(String order) throws InterruptedException {
        switch (order) {
            case "count":
                if (!counts.settle()) {
                    return "busy";
                }
                return String.join(
                        " ",
                        List.of(
                                counts.expected.toString(),
                                counts.open.toString(),
                                counts.inferences.toString(),
                                Integer.toString(counts.connections.size()),
                                Long.toString(counts.connections.refused()),
                                counts.logged.toString()));
            case "ready":
            case "unready":
                counts.ready = order.equals("ready");
                return order;
            case "drain":
                counts.draining = true;
                return "draining";
            case "close":
                counts.closeListener();
                return "closed";
            default:
                return "unknown";
        }
    }
}
