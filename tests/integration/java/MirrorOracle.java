import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.MessageFormatter;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.connect.mirror.MirrorClient;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/**
 * Results of Kafka's MirrorClient, RemoteClusterUtils and console formatters. Each line of the input is a request: words with a
 * tab between them, each line of the output an answer in JSON, or {"failed": class of the exception}.
 */
public class MirrorOracle {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        for (String line : new String(System.in.readAllBytes(), StandardCharsets.UTF_8).split("\n")) {
            System.out.println(MAPPER.writeValueAsString(answerOrFailure(line.split("\t"))));
        }
    }

    private static Object answerOrFailure(String[] asked) {
        try {
            return answer(asked);
        } catch (Exception e) {
            return Map.of("failed", e.getClass().getName());
        }
    }

    private static Object answer(String[] asked) throws Exception {
        Map<String, Object> props = new HashMap<>();
        props.put("bootstrap.servers", asked[1]);
        Duration timeout = Duration.ofSeconds(20);
        switch (asked[0]) {
            case "hops":
                return RemoteClusterUtils.replicationHops(props, asked[2]);
            case "upstream":
                return new TreeSet<>(RemoteClusterUtils.upstreamClusters(props));
            case "heartbeats":
                return new TreeSet<>(RemoteClusterUtils.heartbeatTopics(props));
            case "checkpoints":
                return new TreeSet<>(RemoteClusterUtils.checkpointTopics(props));
            case "remote":
                try (MirrorClient client = new MirrorClient(props)) {
                    return new TreeSet<>(client.remoteTopics(asked[2]));
                }
            case "translate":
                return offsets(RemoteClusterUtils.translateOffsets(props, asked[2], asked[3], timeout));
            case "translate-all":
                ObjectNode groups = MAPPER.createObjectNode();
                RemoteClusterUtils.translateOffsets(props, asked[2], Pattern.compile(asked[3]), timeout)
                    .forEach((group, found) -> groups.set(group, MAPPER.valueToTree(offsets(found))));
                return groups;
            case "format":
                return formatted(props, asked[2], "org.apache.kafka.connect.mirror.formatters." + asked[3] + "Formatter");
            default:
                throw new IllegalArgumentException(asked[0]);
        }
    }

    private static Map<String, Object> offsets(Map<TopicPartition, OffsetAndMetadata> found) {
        Map<String, Object> answer = new TreeMap<>();
        found.forEach((partition, at) -> answer.put(partition.toString(), List.of(at.offset(), at.metadata())));
        return answer;
    }

    private static List<String> formatted(Map<String, Object> props, String topic, String name) throws Exception {
        MessageFormatter formatter = (MessageFormatter) Class.forName(name).getDeclaredConstructor().newInstance();
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer =
                     new KafkaConsumer<>(props, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                PrintStream out = new PrintStream(bytes, true, StandardCharsets.UTF_8)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    formatter.writeTo(record, out);
                }
            }
        }
        return bytes.toString(StandardCharsets.UTF_8).lines().toList();
    }
}
