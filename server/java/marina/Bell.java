package marina;

import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;

/** In front of the HTTP decoder: the first byte of a request is told before anybody can make sense of it. */
final class Bell extends ChannelInboundHandlerAdapter {
    private final Door door;

    Bell(Door door) {
        this.door = door;
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object bytes) {
        door.rings(context);
        context.fireChannelRead(bytes);
    }
}
