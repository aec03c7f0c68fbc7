package marina;

import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.util.ReferenceCountUtil;

/**
 * Behind the aggregator: gives back what TorchServe keeps of a request by mistake. Netty's decoder of forms holds on to a
 * multipart body that it cannot read, and nobody could release it any more.
 */
final class Sweeper extends ChannelInboundHandlerAdapter {
    @Override
    public void channelRead(ChannelHandlerContext context, Object request) {
        // All of it is read before this returns: TorchServe copies what its worker gets.
        context.fireChannelRead(request);
        int held = ReferenceCountUtil.refCnt(request);
        if (held > 0) {
            ReferenceCountUtil.release(request, held);
        }
    }
}
