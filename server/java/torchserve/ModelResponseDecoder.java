package org.pytorch.serve.util.codec;

import io.netty.buffer.ByteBuf;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.ByteToMessageDecoder;
import io.netty.handler.codec.http.multipart.HttpPostRequestDecoder.NotEnoughDataDecoderException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import marina.Memory;
import org.pytorch.serve.util.messages.ModelWorkerResponse;
import org.pytorch.serve.util.messages.Predictions;

/**
 * Reads the answers of a worker, in the place of TorchServe's class of this name, which comes later on the class path. That one
 * copies all answers of a batch anew whenever more of them arrive, and keeps their bytes until the last has come: large
 * ones took longer than a worker may take, or filled the memory outside of the heap, and either cost the worker its
 * connection. This one reads each answer once, and refuses what would fill the heap.
 */
public class ModelResponseDecoder extends ByteToMessageDecoder {
    /** What large answers take in batches that have not completely arrived, from all workers: their bytes, with copies. */
    private static final AtomicLong TAKEN = new AtomicLong();

    private static final int SMALL = 65_536;
    /** TorchServe makes another of each for its client. */
    private static final long COPIES = 2;
    /** As one of TorchServe's errors; the door puts it into words. */
    public static final byte[] NO_ROOM =
            "{\"code\":503,\"type\":\"NoRoomException\",\"message\":\"\"}".getBytes(StandardCharsets.UTF_8);

    private final int longest;
    /** How much of that is in this batch. */
    private long taken;
    /** The batch whose answers arrive; null before its head has. */
    private ModelWorkerResponse batch;

    public ModelResponseDecoder(int longest) {
        this.longest = longest;
    }

    @Override
    protected void decode(ChannelHandlerContext context, ByteBuf in, List<Object> out) {
        in.markReaderIndex();
        try {
            if (batch == null) {
                ModelWorkerResponse begun = new ModelWorkerResponse();
                begun.setCode(readNumber(in));
                begun.setMessage(readString(in));
                begun.setPredictions(new ArrayList<>());
                batch = begun;
                return;
            }
            int length = CodecUtils.readLength(in, longest);
            if (length == CodecUtils.END) {
                out.add(batch);
                batch = null;
                free();
            } else {
                batch.getPredictions().add(readAnswer(in, CodecUtils.readString(in, length)));
            }
        } catch (NotEnoughDataDecoderException err) {
            in.resetReaderIndex();
        }
    }

    /** Its body is last, and copied only once all of it has arrived. */
    private Predictions readAnswer(ByteBuf in, String id) {
        Predictions answer = new Predictions();
        answer.setRequestId(id);
        answer.setContentType(readString(in));
        answer.setStatusCode(readNumber(in));
        answer.setReasonPhrase(readString(in));
        answer.setHeaders(CodecUtils.readMap(in, readNumber(in)));
        int length = CodecUtils.readLength(in, longest);
        if (length < SMALL || take(COPIES * length)) {
            answer.setResp(CodecUtils.read(in, length));
        } else {
            in.skipBytes(length);
            answer.setStatusCode(503);
            answer.setContentType("application/json");
            answer.setResp(NO_ROOM);
        }
        return answer;
    }

    private boolean take(long bytes) {
        // What is being sent is in the memory as well. Where there is little else, the largest that a spec allows fits.
        long others = TAKEN.getAndAdd(bytes) + Memory.taken();
        if (others > Memory.MOST / 4 && others + bytes > Memory.MOST) {
            TAKEN.addAndGet(-bytes);
            return false;
        }
        taken += bytes;
        return true;
    }

    private void free() {
        TAKEN.addAndGet(-taken);
        taken = 0;
    }

    @Override
    protected void handlerRemoved0(ChannelHandlerContext context) {
        free();
    }

    private String readString(ByteBuf in) {
        return CodecUtils.readString(in, CodecUtils.readLength(in, longest));
    }

    private static int readNumber(ByteBuf in) {
        if (in.readableBytes() < Integer.BYTES) {
            throw new NotEnoughDataDecoderException();
        }
        return in.readInt();
    }
}
