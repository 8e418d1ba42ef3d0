import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * What Java's consumer reads. Each line of the input is a tab-separated command: brokers, topic, isolation level, group and number of
 * records. Without a group all partitions are read from the beginning to their ends; a member of a group reads so many records, or to
 * the ends if the number is negative, and commits the offsets after exactly these. Each line of the output is a record, in JSON.
 */
public class ReadTopic {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        for (String line : new String(System.in.readAllBytes()).split("\n")) {
            String[] command = line.split("\t");
            Map<String, Object> props = new HashMap<>(Map.of(
                "bootstrap.servers", command[0], "isolation.level", command[2], "enable.auto.commit", false,
                "auto.offset.reset", "earliest"));
            String group = command[3];
            if (!group.isEmpty()) {
                props.put("group.id", group);
            }
            ByteArrayDeserializer bytes = new ByteArrayDeserializer();
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(props, bytes, bytes)) {
                read(consumer, command[1], group.isEmpty(), Long.parseLong(command[4]));
            }
        }
    }

    private static void read(KafkaConsumer<byte[], byte[]> consumer, String topic, boolean alone, long count) throws Exception {
        List<TopicPartition> partitions = new ArrayList<>();
        consumer.partitionsFor(topic).forEach(info -> partitions.add(new TopicPartition(topic, info.partition())));
        if (alone) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
        } else {
            consumer.subscribe(List.of(topic));
        }
        Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
        Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
        long left = count < 0 ? Long.MAX_VALUE : count;
        while (left > 0 && !(consumer.assignment().containsAll(partitions) && isAt(consumer, ends))) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                if (left-- > 0) {
                    System.out.println(MAPPER.writeValueAsString(fields(record)));
                    done.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
            }
        }
        if (!alone) {
            consumer.commitSync(done);
        }
    }

    private static boolean isAt(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> ends) {
        return ends.entrySet().stream().allMatch(end -> consumer.position(end.getKey()) >= end.getValue());
    }

    private static List<Object> fields(ConsumerRecord<byte[], byte[]> record) {
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<String> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        List<Object> fields = new ArrayList<>(List.of(record.partition(), record.offset(), record.timestampType().toString()));
        fields.add(record.timestamp());
        fields.add(text(record.key()));
        fields.add(text(record.value()));
        fields.add(headers);
        return fields;
    }

    private static String text(byte[] value) {
        return value == null ? null : Base64.getEncoder().encodeToString(value);
    }
}
