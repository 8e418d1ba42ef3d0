import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.internals.AsyncKafkaConsumer;
import org.apache.kafka.clients.consumer.internals.StreamsRebalanceData;
import org.apache.kafka.clients.consumer.internals.StreamsRebalanceListener;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of share groups (KIP-932) and of groups of Kafka Streams' own protocol (KIP-1071), which no client for Python has. Each
 * line of the input is a command: tab-separated words that start with the operation and the brokers; each line of the
 * output that begins with a mark is what it brought, in JSON. Values of records are numbers of 8 bytes.
 */
public class GroupTypes {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final String MARK = "done: ";
    private static final ByteArrayDeserializer BYTES = new ByteArrayDeserializer();

    public static void main(String[] args) throws Exception {
        for (String line : new String(System.in.readAllBytes(), StandardCharsets.UTF_8).split("\n")) {
            String[] command = line.split("\t");
            // Clients may log between the lines.
            System.out.println(MARK + MAPPER.writeValueAsString(done(command[0], command[1], command[2], command)));
        }
    }

    private static Object done(String what, String brokers, String group, String[] command) throws Exception {
        switch (what) {
            case "share-from-start":
                return shareFromStart(brokers, group);
            case "share":
                return share(brokers, group, command[3], Long.parseLong(command[4]), Long.parseLong(command[5]));
            case "share-starts":
                return shareStarts(brokers, group);
            case "streams":
                return streams(brokers, group, new TopicPartition(command[3], 0), Long.parseLong(command[4]));
            default:
                throw new IllegalArgumentException(what);
        }
    }

    /** From now on the group begins at the earliest record, not at the end. */
    private static Object shareFromStart(String brokers, String group) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", brokers))) {
            AlterConfigOp earliest =
                new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(earliest))).all().get();
        }
        return null;
    }

    /**
     * Consume until the record before `end` has come. Those before `settled` are accepted, and the one two behind that, out of order;
     * all others are given back. Returns the numbers that came.
     *
     * With an acknowledgement the coordinator is told the start offset as it was before: it learns of what was settled last by the
     * next one only. So where something was given back, it is taken and given back again until the coordinator knows.
     */
    private static Object share(String brokers, String group, String topic, long settled, long end) {
        Set<Long> seen = new TreeSet<>();
        Set<Long> offsets = new TreeSet<>();
        Map<String, Object> props =
            Map.of("bootstrap.servers", brokers, "group.id", group, "share.acknowledgement.mode", "explicit");
        String first = new TopicPartition(topic, 0).toString();
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(props, BYTES, BYTES)) {
            consumer.subscribe(List.of(topic));
            until(() -> {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    boolean accepted = record.offset() < settled || record.offset() == settled + 1;
                    consumer.acknowledge(record, accepted ? AcknowledgeType.ACCEPT : AcknowledgeType.RELEASE);
                    seen.add(ByteBuffer.wrap(record.value()).getLong());
                    offsets.add(record.offset());
                }
                consumer.commitSync().values().forEach(failure -> failure.ifPresent(it -> {
                    throw it;
                }));
                boolean known = settled >= end || Long.valueOf(settled).equals(shareStarts(brokers, group).get(first));
                return offsets.contains(end - 1) && known;
            });
        }
        return seen;
    }

    private static Map<String, Long> shareStarts(String brokers, String group) {
        Map<String, Long> found = new TreeMap<>();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", brokers))) {
            admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group).get()
                .forEach((partition, info) -> found.put(partition.toString(), info == null ? null : info.startOffset()));
        } catch (InterruptedException | ExecutionException failure) {
            throw new IllegalStateException(failure);
        }
        return found;
    }

    /** Join as a stream thread does, return the committed offset (null without one), commit `offset`, leave. */
    private static Object streams(String brokers, String group, TopicPartition partition, long offset) {
        StreamsRebalanceData.Subtopology topology =
            new StreamsRebalanceData.Subtopology(Set.of(partition.topic()), Set.of(), Map.of(), Map.of(), List.of());
        StreamsRebalanceData data = new StreamsRebalanceData(
            UUID.randomUUID(), Optional.empty(), Optional.empty(), Map.of("0", topology), Map.of());
        ConsumerConfig config = new ConsumerConfig(Map.of(
            "bootstrap.servers", brokers, "group.id", group, "group.protocol", "consumer", "enable.auto.commit", false,
            "key.deserializer", ByteArrayDeserializer.class, "value.deserializer", ByteArrayDeserializer.class));
        try (AsyncKafkaConsumer<byte[], byte[]> consumer = new AsyncKafkaConsumer<>(config, BYTES, BYTES, Optional.of(data))) {
            consumer.subscribe(Set.of(partition.topic()), new StreamsRebalanceListener() {
                @Override
                public void onTasksRevoked(Set<StreamsRebalanceData.TaskId> tasks) { }

                @Override
                public void onTasksAssigned(StreamsRebalanceData.Assignment assignment) {
                    data.setReconciledAssignment(assignment);
                }

                @Override
                public void onAllTasksLost() { }
            });
            until(() -> {
                consumer.poll(Duration.ofMillis(100));
                return consumer.groupMetadata().generationId() > 0;
            });
            OffsetAndMetadata before = consumer.committed(Set.of(partition)).get(partition);
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(offset)));
            return before == null ? null : before.offset();
        }
    }

    private static void until(BooleanSupplier isSo) {
        long deadline = System.nanoTime() + 240_000_000_000L;
        while (!isSo.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not within four minutes");
            }
        }
    }
}
