import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.PrintWriter;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.SchemaProjector;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.data.Values;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/** What Kafka's own classes make of the cases in a file, one JSON object a line; the answers go to another file. */
public class ConnectOracle {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
    private static final Map<String, Object> PLUGINS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        try (BufferedReader cases = Files.newBufferedReader(Path.of(args[0]));
             PrintWriter answers = new PrintWriter(args[1], StandardCharsets.UTF_8)) {
            for (String line = cases.readLine(); line != null; line = cases.readLine()) {
                answers.println(MAPPER.writeValueAsString(answer(MAPPER.readTree(line))));
            }
        }
    }

    private static JsonNode answer(JsonNode asked) {
        try {
            return answered(asked);
        } catch (Throwable error) {
            Throwable cause = error instanceof java.lang.reflect.InvocationTargetException ? error.getCause() : error;
            return JSON.objectNode().put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
    }

    @SuppressWarnings({"rawtypes", "unchecked"})
    private static JsonNode answered(JsonNode asked) throws Exception {
        Schema schema = schema(asked.get("schema"));
        switch (asked.get("op").asText()) {
            case "keys":
                return keys(Class.forName(asked.get("class").asText()).getDeclaredConstructor().newInstance());
            case "write": {
                Converter converter = (Converter) plugin(asked);
                return bytes(converter.fromConnectData("t", schema, value(schema, asked.get("value"))));
            }
            case "read":
                return told(((Converter) plugin(asked)).toConnectData("t", data(asked)));
            case "write_header": {
                HeaderConverter converter = (HeaderConverter) plugin(asked);
                return bytes(converter.fromConnectHeader("t", "h", schema, value(schema, asked.get("value"))));
            }
            case "read_header":
                return told(((HeaderConverter) plugin(asked)).toConnectHeader("t", "h", data(asked)));
            case "parse":
                return told(Values.parseString(asked.get("text").asText()));
            case "text":
                return JSON.textNode(Values.convertToString(schema, value(schema, asked.get("value"))));
            case "project": {
                Schema target = schema(asked.get("to"));
                return told(SchemaProjector.project(schema, value(schema, asked.get("value")), target));
            }
            case "transform": {
                Transformation plugin = (Transformation) plugin(asked);
                ConnectRecord<?> changed = plugin.apply(record(asked.get("record")));
                return changed == null ? JSON.nullNode() : told(changed);
            }
            case "predicate":
                return JSON.booleanNode(((Predicate) plugin(asked)).test(record(asked.get("record"))));
            default:
                throw new IllegalArgumentException(asked.toString());
        }
    }

    private static Object plugin(JsonNode asked) throws Exception {
        String of = asked.get("class") + " " + asked.get("config");
        Object known = PLUGINS.get(of);
        if (known != null) {
            return known;
        }
        Object plugin = Class.forName(asked.get("class").asText()).getDeclaredConstructor().newInstance();
        Map<String, String> config = new LinkedHashMap<>();
        asked.get("config").fields().forEachRemaining(e -> config.put(e.getKey(), e.getValue().asText()));
        if (plugin instanceof Converter && !asked.get("op").asText().endsWith("header")) {
            ((Converter) plugin).configure(config, false);
        } else if (plugin instanceof HeaderConverter) {
            config.put("converter.type", "header");
            ((HeaderConverter) plugin).configure(config);
        } else if (plugin instanceof Transformation) {
            ((Transformation<?>) plugin).configure(config);
        } else {
            ((Predicate<?>) plugin).configure(config);
        }
        PLUGINS.put(of, plugin);
        return plugin;
    }

    private static JsonNode keys(Object plugin) throws Exception {
        ConfigDef definition = (ConfigDef) plugin.getClass().getMethod("config").invoke(plugin);
        ArrayNode told = JSON.arrayNode();
        for (ConfigDef.ConfigKey key : definition.configKeys().values()) {
            told.addObject().put("name", key.name).put("type", key.type.name()).put("required", !key.hasDefault())
                .put("default", key.hasDefault() ? ConfigDef.convertToString(key.defaultValue, key.type) : null)
                .put("importance", key.importance.name()).put("group", key.group).put("order", key.orderInGroup)
                .put("width", key.width.name()).put("display_name", key.displayName);
        }
        return told;
    }

    private static byte[] data(JsonNode asked) throws Exception {
        return asked.get("data").isNull() ? null : asked.get("data").binaryValue();
    }

    private static Schema schema(JsonNode node) {
        if (node == null || node.isNull()) {
            return null;
        }
        Schema.Type type = Schema.Type.valueOf(node.get("type").asText());
        SchemaBuilder builder;
        switch (type) {
            case ARRAY:
                builder = SchemaBuilder.array(schema(node.get("values")));
                break;
            case MAP:
                builder = SchemaBuilder.map(schema(node.get("keys")), schema(node.get("values")));
                break;
            default:
                builder = new SchemaBuilder(type);
        }
        if (type == Schema.Type.STRUCT) {
            for (JsonNode field : node.get("fields")) {
                builder.field(field.get(0).asText(), schema(field.get(1)));
            }
        }
        if (node.get("optional").asBoolean()) {
            builder.optional();
        }
        builder.name(node.get("name").textValue()).doc(node.get("doc").textValue());
        if (!node.get("version").isNull()) {
            builder.version(node.get("version").asInt());
        }
        node.get("parameters").fields().forEachRemaining(e -> builder.parameter(e.getKey(), e.getValue().asText()));
        if (!node.get("default").isNull()) {
            builder.defaultValue(value(builder.build(), node.get("default")));
        }
        return builder.build();
    }

    private static Object value(Schema schema, JsonNode node) {
        if (node == null || node.isNull()) {
            return null;
        }
        Map.Entry<String, JsonNode> tagged = node.fields().next();
        JsonNode held = tagged.getValue();
        switch (tagged.getKey()) {
            case "b":
                return held.asBoolean();
            case "i":
                return integer(schema, Long.parseLong(held.asText()));
            case "f32":
                return (float) Double.longBitsToDouble(Long.parseLong(held.asText()));
            case "f64":
                return Double.longBitsToDouble(Long.parseLong(held.asText()));
            case "s":
                return held.asText();
            case "y":
                return Base64.getDecoder().decode(held.asText());
            case "d":
                return new BigDecimal(new BigInteger(held.get(0).asText()), held.get(1).asInt());
            case "ms":
                return new java.util.Date(Long.parseLong(held.asText()));
            case "l": {
                List<Object> list = new ArrayList<>();
                held.forEach(item -> list.add(value(schema == null ? null : schema.valueSchema(), item)));
                return list;
            }
            case "m": {
                Map<Object, Object> map = new LinkedHashMap<>();
                held.forEach(entry -> map.put(
                    value(schema == null ? null : schema.keySchema(), entry.get(0)),
                    value(schema == null ? null : schema.valueSchema(), entry.get(1))));
                return map;
            }
            default: {
                Struct struct = new Struct(schema);
                for (Field field : schema.fields()) {
                    Object item = value(field.schema(), held.get(field.index()));
                    if (item != null) {
                        struct.put(field, item);
                    }
                }
                return struct;
            }
        }
    }

    private static Object integer(Schema schema, long number) {
        switch (schema == null ? Schema.Type.INT64 : schema.type()) {
            case INT8:
                return (byte) number;
            case INT16:
                return (short) number;
            case INT32:
                return (int) number;
            default:
                return number;
        }
    }

    private static ConnectRecord<?> record(JsonNode node) {
        Schema keySchema = schema(node.get("key_schema"));
        Schema valueSchema = schema(node.get("value_schema"));
        Object key = value(keySchema, node.get("key"));
        Object value = value(valueSchema, node.get("value"));
        Long timestamp = node.get("timestamp").isNull() ? null : node.get("timestamp").asLong();
        ConnectHeaders headers = new ConnectHeaders();
        for (JsonNode header : node.get("headers")) {
            Schema schema = schema(header.get(1));
            headers.add(header.get(0).asText(), value(schema, header.get(2)), schema);
        }
        String topic = node.get("topic").asText();
        Integer partition = node.get("partition").isNull() ? null : node.get("partition").asInt();
        if (node.get("offset").isNull()) {
            return new SourceRecord(Map.of(), Map.of(), topic, partition, keySchema, key, valueSchema, value,
                timestamp, headers);
        }
        return new SinkRecord(topic, partition, keySchema, key, valueSchema, value, node.get("offset").asLong(),
            timestamp, TimestampType.CREATE_TIME, headers);
    }

    private static JsonNode bytes(byte[] data) {
        return data == null ? JSON.nullNode() : JSON.textNode(Base64.getEncoder().encodeToString(data));
    }

    private static JsonNode told(SchemaAndValue value) {
        ArrayNode told = JSON.arrayNode();
        return told.add(told(value == null ? null : value.schema())).add(told(value == null ? null : value.value()));
    }

    private static JsonNode told(ConnectRecord<?> record) {
        ObjectNode told = JSON.objectNode();
        told.put("topic", record.topic()).put("partition", record.kafkaPartition()).put("timestamp", record.timestamp());
        told.set("key_schema", told(record.keySchema()));
        told.set("key", told(record.key()));
        told.set("value_schema", told(record.valueSchema()));
        told.set("value", told(record.value()));
        ArrayNode headers = told.putArray("headers");
        for (Object each : record.headers()) {
            Header header = (Header) each;
            headers.addArray().add(header.key()).add(told(header.schema())).add(told(header.value()));
        }
        return told;
    }

    private static JsonNode told(Schema schema) {
        if (schema == null) {
            return JSON.nullNode();
        }
        ObjectNode told = JSON.objectNode();
        told.put("type", schema.type().name()).put("optional", schema.isOptional());
        told.put("name", schema.name()).put("version", schema.version()).put("doc", schema.doc());
        ObjectNode parameters = told.putObject("parameters");
        if (schema.parameters() != null) {
            schema.parameters().forEach(parameters::put);
        }
        told.set("default", told(schema.defaultValue()));
        if (schema.type() == Schema.Type.STRUCT) {
            ArrayNode fields = told.putArray("fields");
            for (Field field : schema.fields()) {
                fields.addArray().add(field.name()).add(told(field.schema()));
            }
        }
        if (schema.type() == Schema.Type.MAP) {
            told.set("keys", told(schema.keySchema()));
        }
        if (schema.type() == Schema.Type.MAP || schema.type() == Schema.Type.ARRAY) {
            told.set("values", told(schema.valueSchema()));
        }
        return told;
    }

    private static JsonNode told(Object value) {
        if (value == null) {
            return JSON.nullNode();
        }
        ObjectNode told = JSON.objectNode();
        if (value instanceof Boolean) {
            told.put("b", (Boolean) value);
        } else if (value instanceof Float) {
            told.put("f32", Long.toString(Double.doubleToLongBits((Float) value)));
        } else if (value instanceof Double) {
            told.put("f64", Long.toString(Double.doubleToLongBits((Double) value)));
        } else if (value instanceof BigDecimal) {
            BigDecimal decimal = (BigDecimal) value;
            told.putArray("d").add(decimal.unscaledValue().toString()).add(decimal.scale());
        } else if (value instanceof Number) {
            told.put("i", value.toString());
        } else if (value instanceof String) {
            told.put("s", (String) value);
        } else if (value instanceof byte[]) {
            told.put("y", Base64.getEncoder().encodeToString((byte[]) value));
        } else if (value instanceof java.util.Date) {
            told.put("ms", Long.toString(((java.util.Date) value).getTime()));
        } else if (value instanceof List) {
            ArrayNode list = told.putArray("l");
            ((List<?>) value).forEach(item -> list.add(told(item)));
        } else if (value instanceof Map) {
            ArrayNode map = told.putArray("m");
            ((Map<?, ?>) value).forEach((k, v) -> map.addArray().add(told(k)).add(told(v)));
        } else if (value instanceof Struct) {
            ArrayNode fields = told.putArray("t");
            Struct struct = (Struct) value;
            struct.schema().fields().forEach(field -> fields.add(told(struct.getWithoutDefault(field.name()))));
        } else {
            throw new IllegalArgumentException("A value of " + value.getClass());
        }
        return told;
    }
}
