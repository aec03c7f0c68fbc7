package marina;

import java.lang.reflect.Field;
import java.util.Collection;
import java.util.HashSet;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.job.RestJob;
import org.pytorch.serve.wlm.BatchAggregator;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.pytorch.serve.wlm.WorkerThread;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The requests that TorchServe holds, in its queues and in the batches of its workers. By itself it computes those whose
 * clients have left, and forgets those that it had taken for a batch when the worker of that batch dies.
 */
final class Jobs {
    private static final Logger LOG = LoggerFactory.getLogger(Jobs.class);
    private static final Field QUEUES = field(Model.class, "jobsDb");
    private static final Field BATCH = field(WorkerThread.class, "aggregator");
    private static final Field JOBS = field(BatchAggregator.class, "jobs");

    private Jobs() {}

    /** Removes the requests of clients that have left. */
    static void forgetLeft() {
        if (QUEUES == null) {
            return;
        }
        try {
            for (Model model : ModelManager.getInstance().getDefaultModels().values()) {
                for (Queue<?> queue : queues(model)) {
                    queue.removeIf(Jobs::isLeft);
                }
            }
        } catch (IllegalAccessException err) {
            LOG.warn("TorchServe's queue cannot be read", err);
        }
    }

    /** The ids of all requests that it holds; null if they cannot be read now. */
    static Set<String> held() {
        if (QUEUES == null || BATCH == null || JOBS == null) {
            return null;
        }
        Set<String> ids = new HashSet<>();
        ModelManager manager = ModelManager.getInstance();
        try {
            // The queues first: a request goes from there to a worker.
            for (Model model : manager.getDefaultModels().values()) {
                for (Queue<?> queue : queues(model)) {
                    for (Object job : queue) {
                        ids.add(((Job) job).getJobId());
                    }
                }
                for (WorkerThread worker : manager.getWorkers(model.getModelVersionName())) {
                    for (Object id : ((Map<?, ?>) JOBS.get(BATCH.get(worker))).keySet().toArray()) {
                        ids.add((String) id);
                    }
                }
            }
        } catch (IllegalAccessException | RuntimeException err) {
            // A worker changed its batch meanwhile.
            return null;
        }
        return ids;
    }

    @SuppressWarnings("unchecked")
    private static Collection<Queue<?>> queues(Model model) throws IllegalAccessException {
        return ((Map<?, Queue<?>>) QUEUES.get(model)).values();
    }

    private static boolean isLeft(Object job) {
        return job instanceof RestJob && !((Job) job).isOpen();
    }

    private static Field field(Class<?> of, String name) {
        try {
            Field field = of.getDeclaredField(name);
            field.setAccessible(true);
            return field;
        } catch (ReflectiveOperationException | RuntimeException err) {
            LOG.warn("TorchServe's {} cannot be read: requests whose client has left, or that are forgotten, are not noticed", name, err);
            return null;
        }
    }
}
