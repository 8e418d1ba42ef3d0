import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.mirror.MirrorCheckpointConnector;
import org.apache.kafka.connect.mirror.MirrorHeartbeatConnector;
import org.apache.kafka.connect.mirror.MirrorMakerConfig;
import org.apache.kafka.connect.mirror.MirrorSourceConnector;
import org.apache.kafka.connect.mirror.SourceAndTarget;
import org.apache.kafka.connect.runtime.distributed.DistributedConfig;

/**
 * Whether Kafka's configuration classes accept properties. Each line of the input is [way, properties] in JSON, each line of the
 * output the message of the exception in JSON, or "" without one.
 */
public class KeySweep {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final String PACKAGE = "org.apache.kafka.connect.mirror.";
    private static final Map<String, List<String>> USED_AT_START = Map.of(
        "Source", List.of("topicFilter", "configPropertyFilter", "replicationPolicy"),
        "Checkpoint", List.of("topicFilter", "groupFilter", "replicationPolicy"),
        "Heartbeat", List.of("replicationPolicy"));

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            List<?> asked = MAPPER.readValue(line, List.class);
            @SuppressWarnings("unchecked")
            Map<String, String> props = (Map<String, String>) asked.get(1);
            System.out.println(MAPPER.writeValueAsString(problem((String) asked.get(0), props)));
        }
    }

    private static String problem(String way, Map<String, String> props) {
        try {
            switch (way) {
                case "worker":
                    new DistributedConfig(props);
                    break;
                case "file":
                    file(props);
                    break;
                default:
                    start(way, props);
            }
            return "";
        } catch (InvocationTargetException e) {
            return String.valueOf(e.getCause().getMessage());
        } catch (Exception e) {
            return String.valueOf(e.getMessage());
        }
    }

    private static void file(Map<String, String> props) throws Exception {
        MirrorMakerConfig config = new MirrorMakerConfig(props);
        SourceAndTarget pair = new SourceAndTarget("A", "B");
        new DistributedConfig(config.workerConfig(pair));
        for (Class<?> connector : List.of(
                MirrorSourceConnector.class, MirrorHeartbeatConnector.class, MirrorCheckpointConnector.class)) {
            String kind = connector.getSimpleName().replace("Mirror", "").replace("Connector", "");
            start(kind, config.connectorBaseConfig(pair, connector));
        }
    }

    /** What a connector's start does before it connects. */
    private static void start(String kind, Map<String, String> props) throws Exception {
        Constructor<?> made = Class.forName(PACKAGE + "Mirror" + kind + "Config").getDeclaredConstructor(Map.class);
        made.setAccessible(true);
        Object config = made.newInstance(props);
        for (String name : USED_AT_START.get(kind)) {
            Method method = null;
            for (Class<?> c = config.getClass(); method == null; c = c.getSuperclass()) {
                try {
                    method = c.getDeclaredMethod(name);
                } catch (NoSuchMethodException e) {
                    continue;
                }
            }
            method.setAccessible(true);
            method.invoke(config);
        }
    }
}
