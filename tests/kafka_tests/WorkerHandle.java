package org.apache.kafka.connect.util.clusters;

import java.io.File;
import java.io.IOException;
import java.io.Writer;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** In place of Kafka's class of this name, which runs a worker inside the tests' JVM: a process of this project. */
public class WorkerHandle {
    private final String name;
    private final Process process;
    private final URI url;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();

    private WorkerHandle(String name, Process process, URI url) {
        this.name = name;
        this.process = process;
        this.url = url;
        process.onExit().thenRun(() -> ended.completeExceptionally(
                new IllegalStateException(this + " has ended with exit code " + process.exitValue())));
    }

    /** Start {@code connect-distributed} with these properties, with REST on a free port. */
    public static WorkerHandle start(String name, Map<String, String> properties) {
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            URI url = URI.create("http://localhost:" + free.getLocalPort() + "/");
            Map<String, String> given = new HashMap<>(properties);
            given.put("listeners", url.toString().replaceAll("/$", ""));
            given.put("rest.unauthenticated.access", "admin");
            return new WorkerHandle(name, launch("mm2.cli.connect_distributed", name, given), url);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Start a program of this project with a properties file, which the file {@code NAME.properties} of the test's folder keeps. */
    public static Process launch(String module, String name, Map<String, String> properties) throws IOException {
        Path folder = Files.createTempDirectory(Path.of(System.getProperty("mm2.folder")), name.replaceAll("\\W", "_"));
        Properties written = new Properties();
        written.putAll(properties);
        Path file = folder.resolve("given.properties");
        try (Writer writer = Files.newBufferedWriter(file)) {
            written.store(writer, null);
        }
        ProcessBuilder builder = new ProcessBuilder(System.getProperty("mm2.python"), "-P", "-m", module, file.toString());
        builder.directory(folder.toFile()).redirectErrorStream(true).redirectOutput(folder.resolve("log").toFile());
        builder.environment().put("PYTHONPATH", System.getProperty("mm2.root"));
        Process process = builder.start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
        return process;
    }

    /** End a process as an operator does, and fail if it does not end. */
    public static void end(Process process) {
        process.destroy();
        try {
            if (!process.waitFor(60, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                throw new IllegalStateException("not ended 60 s after SIGTERM");
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    public Future<?> herderTask() {
        return ended;
    }

    public void stop() {
        end(process);
    }

    public URI url() {
        return url;
    }

    public URI adminUrl() {
        return url;
    }

    public void requestTimeout(long timeoutMs) {
        throw new UnsupportedOperationException("the timeout of requests of a process does not change");
    }

    public void resetRequestTimeout() {
    }

    @Override
    public String toString() {
        return "worker " + name + " at " + url;
    }
}
