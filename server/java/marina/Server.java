package marina;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.unix.Socket;
import io.netty.util.ReferenceCountUtil;
import io.netty.util.internal.logging.InternalLoggerFactory;
import io.netty.util.internal.logging.Slf4JLoggerFactory;
import java.io.IOException;
import java.util.concurrent.TimeUnit;
import org.apache.commons.cli.DefaultParser;
import org.pytorch.serve.ModelServer;
import org.pytorch.serve.ServerInitializer;
import org.pytorch.serve.metrics.MetricCache;
import org.pytorch.serve.servingsdk.impl.PluginsManager;
import org.pytorch.serve.util.ConfigManager;
import org.pytorch.serve.util.Connector;
import org.pytorch.serve.util.ConnectorType;
import org.pytorch.serve.util.TokenAuthorization;

/**
 * TorchServe with a door of Marina's in front of inference: the same server, whose inference port is a socket that the
 * supervisor made ({@code marina.listener} is its number), and whose every connection there has a {@link Door}.
 */
public final class Server extends ModelServer {
    private static final int BACKLOG = 1024;
    private final Counts counts = new Counts();

    private Server(ConfigManager config) {
        super(config);
    }

    /** As {@code ModelServer.main}, without its hook that ends all connections at a SIGTERM. */
    public static void main(String[] args) {
        try {
            ConfigManager.init(
                    new ConfigManager.Arguments(
                            new DefaultParser().parse(ConfigManager.Arguments.getOptions(), args, null, false)));
            TokenAuthorization.init();
            PluginsManager.getInstance().initialize();
            MetricCache.init();
            InternalLoggerFactory.setDefaultFactory(Slf4JLoggerFactory.INSTANCE);
            Server server = new Server(ConfigManager.getInstance());
            Thread orders = new Thread(new Orders(server.counts), "orders");
            orders.setDaemon(true);
            orders.start();
            server.startAndWait();
        } catch (Throwable err) {
            err.printStackTrace();
        }
        System.exit(1);
    }

    /** Starts management and metrics as TorchServe does, but without the options that a socket in a file does not have. */
    private static ChannelFuture startLocal(
            Connector connector, EventLoopGroup accepting, EventLoopGroup serving, ConnectorType purpose)
            throws InterruptedException {
        ServerBootstrap bootstrap = new ServerBootstrap();
        bootstrap
                .group(accepting, serving)
                .channel(connector.getServerChannel())
                .childHandler(new ServerInitializer(null, purpose));
        return bootstrap.bind(connector.getSocketAddress()).sync().channel().closeFuture();
    }

    /** Does nothing: any program that reaches the ports of gRPC can end workers for good. */
    @Override
    public void startGRPCServers() {}

    @Override
    public ChannelFuture initializeServer(
            Connector connector, EventLoopGroup accepting, EventLoopGroup serving, ConnectorType purpose)
            throws InterruptedException, IOException {
        if (purpose != ConnectorType.INFERENCE_CONNECTOR) {
            return startLocal(connector, accepting, serving, purpose);
        }
        int handle = Integer.getInteger("marina.listener");
        new Socket(handle).listen(BACKLOG);
        Settings settings = new Settings();
        Connections connections = counts.connections;
        ServerBootstrap bootstrap = new ServerBootstrap();
        bootstrap
                .group(accepting, serving)
                .channelFactory(() -> new EpollServerSocketChannel(handle))
                // It accepts once the handler for that is in its place, below.
                .option(ChannelOption.AUTO_READ, false)
                // Without SO_LINGER, with which TorchServe's own listener drops what a client has not read at a close.
                .childOption(ChannelOption.SO_KEEPALIVE, true)
                .childOption(ChannelOption.TCP_NODELAY, true)
                // A client may say that it sends no more, and still wait for its answer.
                .childOption(ChannelOption.ALLOW_HALF_CLOSURE, true)
                .childHandler(
                        new ServerInitializer(null, purpose) {
                            @Override
                            public void initChannel(Channel channel) {
                                super.initChannel(channel);
                                Door door = new Door(counts, settings);
                                channel.pipeline().replace("http", "http", door.codec);
                                channel.pipeline()
                                        .addAfter("http", "door", door)
                                        .addAfter("aggregator", "release", new Release());
                            }
                        });
        Channel listener = bootstrap.register().sync().channel();
        listener.eventLoop().submit(() -> listener.config().setAutoRead(true)).sync();
        long everyMs = connections.checkEveryMs();
        serving.scheduleWithFixedDelay(connections::checkAll, everyMs, everyMs, TimeUnit.MILLISECONDS);
        counts.setListener(listener, serving);
        // Never done: TorchServe would end with it, and the supervisor decides when that is.
        return listener.newPromise();
    }

    /**
     * Behind the aggregator: releases what TorchServe keeps of a request by mistake. Netty's decoder of forms keeps a
     * multipart body that it cannot read, and nothing could release it later.
     */
    private static final class Release extends ChannelInboundHandlerAdapter {
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
}
