package marina;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.unix.Socket;
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
    private final Ledger ledger = new Ledger();

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
            Thread orders = new Thread(new Orders(server.ledger), "orders");
            orders.setDaemon(true);
            orders.start();
            server.startAndWait();
        } catch (Throwable err) {
            err.printStackTrace();
        }
        System.exit(1);
    }

    /** Management and metrics, as TorchServe starts them, but for the options that a socket which is a file has not. */
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

    /** Does nothing: whoever reaches the ports of gRPC can end workers for good. */
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
        Crowd crowd = ledger.crowd;
        ServerBootstrap bootstrap = new ServerBootstrap();
        bootstrap
                .group(accepting, serving)
                .channelFactory(() -> new EpollServerSocketChannel(handle))
                // Only when the handler that accepts is in its place, below.
                .option(ChannelOption.AUTO_READ, false)
                // TorchServe's own listener lets a close throw away what a client has not read yet. Not this one.
                .childOption(ChannelOption.SO_KEEPALIVE, true)
                .childOption(ChannelOption.TCP_NODELAY, true)
                // A client may say that it sends no more, and still wait for its answer.
                .childOption(ChannelOption.ALLOW_HALF_CLOSURE, true)
                .childHandler(
                        new ServerInitializer(null, purpose) {
                            @Override
                            public void initChannel(Channel channel) {
                                super.initChannel(channel);
                                Door door = new Door(ledger, crowd, settings);
                                channel.pipeline().replace("http", "http", new Codec(door));
                                channel.pipeline()
                                        .addFirst("bell", new Bell(door))
                                        .addAfter("http", "door", door)
                                        .addAfter("aggregator", "sweeper", new Sweeper());
                            }
                        });
        Channel listener = bootstrap.register().sync().channel();
        listener.eventLoop().submit(() -> listener.config().setAutoRead(true)).sync();
        serving.scheduleWithFixedDelay(crowd::look, crowd.everyMs(), crowd.everyMs(), TimeUnit.MILLISECONDS);
        ledger.listens(listener, serving);
        // Never done: TorchServe ends when this is, and the supervisor decides when that is.
        return listener.newPromise();
    }
}
