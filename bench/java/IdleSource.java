package bench;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** As many tasks as it may have, none of which does anything: what a worker costs by itself. */
public class IdleSource extends SourceConnector {
    private Map<String, String> props;

    @Override
    public String version() {
        return "1.0";
    }

    @Override
    public void start(Map<String, String> props) {
        this.props = props;
    }

    @Override
    public void stop() {
    }

    @Override
    public Class<? extends org.apache.kafka.connect.connector.Task> taskClass() {
        return IdleTask.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int maxTasks) {
        List<Map<String, String>> configs = new ArrayList<>();
        for (int number = 0; number < maxTasks; number++) {
            Map<String, String> config = new HashMap<>(props);
            config.put("number", Integer.toString(number));
            configs.add(config);
        }
        return configs;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    /** Polls once a second, in vain. */
    public static class IdleTask extends SourceTask {
        private volatile boolean ended;

        @Override
        public String version() {
            return "1.0";
        }

        @Override
        public void start(Map<String, String> props) {
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            synchronized (this) {
                if (!ended) {
                    wait(1000);
                }
            }
            return null;
        }

        @Override
        public synchronized void stop() {
            ended = true;
            notifyAll();
        }
    }
}
