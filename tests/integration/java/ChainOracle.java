import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintWriter;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.mirror.DefaultReplicationPolicy;
import org.apache.kafka.connect.mirror.MirrorSourceTask;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/** What MirrorSourceTask, Kafka's transformations, predicates and converters make of consumed records, chain by chain. */
public class ChainOracle {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final String BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter";

    /** Arguments: a file with the properties of each chain, one with the records, and one for the answers; JSON, a line each. */
    public static void main(String[] args) throws Exception {
        MirrorSourceTask task = new MirrorSourceTask();
        set(task, "sourceClusterAlias", args[3]);
        set(task, "replicationPolicy", new DefaultReplicationPolicy());
        Method convert = MirrorSourceTask.class.getDeclaredMethod("convertRecord", ConsumerRecord.class);
        convert.setAccessible(true);
        List<String> records = Files.readAllLines(Path.of(args[1]));
        try (PrintWriter answers = new PrintWriter(args[2], StandardCharsets.UTF_8)) {
            for (String line : Files.readAllLines(Path.of(args[0]))) {
                Chain chain = new Chain(MAPPER.readTree(line));
                for (String record : records)
                    answers.println(chain.answer((SourceRecord) convert.invoke(task, consumed(MAPPER.readTree(record)))));
            }
        }
    }

    private static void set(Object target, String name, Object value) throws Exception {
        Field field = target.getClass().getDeclaredField(name);
        field.setAccessible(true);
        field.set(target, value);
    }

    private static ConsumerRecord<byte[], byte[]> consumed(JsonNode row) throws Exception {
        RecordHeaders headers = new RecordHeaders();
        for (JsonNode header : row.get("headers"))
            headers.add(header.get(0).asText(), bytes(header.get(1)));
        return new ConsumerRecord<>(row.get("topic").asText(), row.get("partition").asInt(), row.get("offset").asLong(),
            row.get("timestamp").asLong(), TimestampType.CREATE_TIME, 0, 0, bytes(row.get("key")), bytes(row.get("value")),
            headers, Optional.empty());
    }

    private static byte[] bytes(JsonNode node) throws Exception {
        return node.isNull() ? null : node.binaryValue();
    }

    private static final class Step {
        Transformation<SourceRecord> transformation;
        Predicate<SourceRecord> predicate;
        boolean negate;
    }

    private static final class Chain {
        private final Map<String, String> props = new HashMap<>();
        private final List<Step> steps = new ArrayList<>();
        private final Converter key;
        private final Converter value;
        private final HeaderConverter header;

        @SuppressWarnings("unchecked")
        Chain(JsonNode given) throws Exception {
            given.fields().forEachRemaining(one -> props.put(one.getKey(), one.getValue().asText()));
            key = converter("key.converter", true);
            value = converter("value.converter", false);
            header = (HeaderConverter) made(props.getOrDefault("header.converter", BYTES));
            Map<String, String> settings = under("header.converter.");
            settings.put("converter.type", "header");
            header.configure(settings);
            for (String alias : props.getOrDefault("transforms", "").split(",")) {
                if (alias.isEmpty())
                    continue;
                Map<String, String> own = under("transforms." + alias + ".");
                Step step = new Step();
                step.transformation = (Transformation<SourceRecord>) made(own.get("type"));
                step.transformation.configure(own);
                step.negate = Boolean.parseBoolean(own.get("negate"));
                if (own.get("predicate") != null) {
                    Map<String, String> its = under("predicates." + own.get("predicate") + ".");
                    step.predicate = (Predicate<SourceRecord>) made(its.get("type"));
                    step.predicate.configure(its);
                }
                steps.add(step);
            }
        }

        private Converter converter(String name, boolean isKey) throws Exception {
            Converter converter = (Converter) made(props.getOrDefault(name, BYTES));
            converter.configure(under(name + "."), isKey);
            return converter;
        }

        private Map<String, String> under(String prefix) {
            Map<String, String> found = new HashMap<>();
            props.forEach((key, value) -> {
                if (key.startsWith(prefix))
                    found.put(key.substring(prefix.length()), value);
            });
            return found;
        }

        String answer(SourceRecord given) throws Exception {
            SourceRecord record = given;
            ObjectNode row = MAPPER.createObjectNode();
            try {
                for (Step step : steps) {
                    if (step.predicate == null || step.predicate.test(record) != step.negate)
                        record = step.transformation.apply(record);
                    if (record == null)
                        return "\"filtered\"";
                }
                RecordHeaders headers = new RecordHeaders();
                for (Header one : record.headers())
                    headers.add(one.key(), header.fromConnectHeader(record.topic(), one.key(), one.schema(), one.value()));
                row.put("key", key.fromConnectData(record.topic(), headers, record.keySchema(), record.key()));
                row.put("value", value.fromConnectData(record.topic(), headers, record.valueSchema(), record.value()));
                ArrayNode written = row.putArray("headers");
                for (org.apache.kafka.common.header.Header one : headers)
                    written.addArray().add(one.key()).add(one.value());
            } catch (RuntimeException failed) {
                return "\"skipped\"";
            }
            row.put("topic", record.topic()).put("partition", record.kafkaPartition()).put("timestamp", record.timestamp());
            return MAPPER.writeValueAsString(row);
        }
    }

    private static Object made(String name) throws Exception {
        return Class.forName(name).getDeclaredConstructor().newInstance();
    }
}
