package bench;

import com.sun.tools.attach.VirtualMachine;
import java.util.Map;
import java.util.TreeMap;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/** Prints the name and the number of requests of each kind that the broker with this process id has answered. */
public class RequestCounts {
    public static void main(String[] arguments) throws Exception {
        VirtualMachine broker = VirtualMachine.attach(arguments[0]);
        String address = broker.startLocalManagementAgent();
        broker.detach();
        Map<String, Long> counts = new TreeMap<>(Map.of("Fetch", 0L, "Produce", 0L));
        try (JMXConnector connector = JMXConnectorFactory.connect(new JMXServiceURL(address))) {
            MBeanServerConnection beans = connector.getMBeanServerConnection();
            String pattern = "kafka.network:type=RequestMetrics,name=RequestsPerSec,*";
            for (ObjectName name : beans.queryNames(new ObjectName(pattern), null)) {
                long count = (Long) beans.getAttribute(name, "Count");
                counts.merge(name.getKeyProperty("request"), count, Long::sum);
            }
        }
        counts.forEach((request, count) -> System.out.println(request + " " + count));
    }
}
