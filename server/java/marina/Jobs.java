package marina;

import java.lang.reflect.Field;
import java.util.Map;
import java.util.Queue;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.job.RestJob;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What waits in TorchServe's queues for a worker. TorchServe computes it all, whether or not anybody waits for it. */
final class Jobs {
    private static final Logger LOG = LoggerFactory.getLogger(Jobs.class);
    private static final Field QUEUES = queues();

    private Jobs() {}

    /** Takes out what clients asked that have left. */
    static void forgetLeft() {
        if (QUEUES == null) {
            return;
        }
        try {
            for (Model model : ModelManager.getInstance().getDefaultModels().values()) {
                for (Object queue : ((Map<?, ?>) QUEUES.get(model)).values()) {
                    ((Queue<?>) queue).removeIf(Jobs::isLeft);
                }
            }
        } catch (IllegalAccessException err) {
            LOG.warn("TorchServe's queue cannot be read", err);
        }
    }

    private static boolean isLeft(Object job) {
        return job instanceof RestJob && !((Job) job).isOpen();
    }

    private static Field queues() {
        try {
            Field field = Model.class.getDeclaredField("jobsDb");
            field.setAccessible(true);
            return field;
        } catch (ReflectiveOperationException | RuntimeException err) {
            LOG.warn("TorchServe's queue cannot be read: requests of clients that have left are still computed", err);
            return null;
        }
    }
}
