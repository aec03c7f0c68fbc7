package marina;

import io.netty.util.ByteProcessor;

/** Counts the fields of a form while it arrives: netty takes any number of them, and a hundred times their memory. */
final class Fields implements ByteProcessor {
    static final int MOST = 1000;
    private int count = 1;

    /** False where there are too many. */
    @Override
    public boolean process(byte value) {
        count += value == '&' ? 1 : 0;
        return count <= MOST;
    }
}
