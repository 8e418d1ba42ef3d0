package org.apache.kafka.connect.mirror;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.connect.errors.NotFoundException;
import org.apache.kafka.connect.runtime.rest.entities.ConnectorStateInfo;
import org.apache.kafka.connect.runtime.rest.entities.ConnectorType;
import org.apache.kafka.connect.runtime.rest.entities.TaskInfo;
import org.apache.kafka.connect.util.Callback;
import org.apache.kafka.connect.util.ConnectorTaskId;
import org.apache.kafka.connect.util.clusters.WorkerHandle;

/**
 * In place of Kafka's class of this name: a process of this project. What the tests ask of its herder is read from the internal topics on
 * the target.
 */
public class MirrorMaker {
    public static final List<Class<?>> CONNECTOR_CLASSES =
            List.of(MirrorSourceConnector.class, MirrorHeartbeatConnector.class, MirrorCheckpointConnector.class);
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, String> properties;
    private Process process;

    public MirrorMaker(Map<String, String> properties) {
        this.properties = properties;
    }

    public void start() {
        try {
            process = WorkerHandle.launch("mm2.cli.connect_mirror_maker", "mirror", properties);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    public void stop() {
        WorkerHandle.end(process);
    }

    public void awaitStop() {
    }

    /** Raises NotFoundException until the connector has a status. */
    public ConnectorStateInfo connectorStatus(SourceAndTarget pair, String connector) {
        Map<String, JsonNode> found = read(pair, "status");
        JsonNode own = found.get("status-connector-" + connector);
        if (own == null) {
            throw new NotFoundException(connector);
        }
        List<ConnectorStateInfo.TaskState> tasks = new ArrayList<>();
        String prefix = "status-task-" + connector + "-";
        found.forEach((key, task) -> {
            if (key.startsWith(prefix)) {
                int id = Integer.parseInt(key.substring(prefix.length()));
                tasks.add(new ConnectorStateInfo.TaskState(id, text(task, "state"), text(task, "worker_id"), text(task, "trace"), null));
            }
        });
        ConnectorStateInfo.ConnectorState state =
                new ConnectorStateInfo.ConnectorState(text(own, "state"), text(own, "worker_id"), text(own, "trace"), null);
        return new ConnectorStateInfo(connector, state, tasks, ConnectorType.SOURCE);
    }

    public void taskConfigs(SourceAndTarget pair, String connector, Callback<List<TaskInfo>> callback) {
        Map<String, JsonNode> found = read(pair, "configs");
        JsonNode commit = found.get("commit-" + connector);
        List<TaskInfo> tasks = new ArrayList<>();
        for (int id = 0; commit != null && id < commit.get("tasks").asInt(); id++) {
            Map<String, String> config = new TreeMap<>();
            found.get("task-" + connector + "-" + id).get("properties").properties()
                    .forEach(entry -> config.put(entry.getKey(), entry.getValue().asText()));
            tasks.add(new TaskInfo(new ConnectorTaskId(connector, id), config));
        }
        callback.onCompletion(null, tasks);
    }

    /** The last value of each key of an internal topic of the pair, without deleted keys. */
    private Map<String, JsonNode> read(SourceAndTarget pair, String kind) {
        Properties given = new Properties();
        given.put("bootstrap.servers", properties.get(pair.target() + ".bootstrap.servers"));
        given.put("isolation.level", "read_committed");
        given.put("allow.auto.create.topics", "false");
        Map<String, JsonNode> found = new TreeMap<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(given, new StringDeserializer(), new StringDeserializer())) {
            String topic = "mm2-" + kind + "." + pair.source() + ".internal";
            List<PartitionInfo> partitions = consumer.listTopics().get(topic);
            if (partitions == null) {
                return found;
            }
            List<TopicPartition> all = partitions.stream().map(one -> new TopicPartition(topic, one.partition())).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            while (all.stream().anyMatch(tp -> consumer.position(tp) < ends.get(tp))) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    if (record.value() == null) {
                        found.remove(record.key());
                    } else {
                        found.put(record.key(), JSON.readTree(record.value()));
                    }
                }
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        return found;
    }

    private static String text(JsonNode node, String name) {
        return node.path(name).asText(null);
    }
}
