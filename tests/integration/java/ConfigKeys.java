import java.io.File;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.List;
import java.util.TreeSet;
import java.util.jar.JarFile;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.runtime.distributed.Crypto;

/**
 * Every key that a ConfigDef in Kafka's own jars defines, as lines "class, tab, key". The ConfigDefs are found, not listed: static
 * fields and static methods (without parameters, or with a worker's Crypto) of each class in the jars of the clients and of Connect.
 */
public class ConfigKeys {
    public static void main(String[] args) throws Exception {
        TreeSet<String> lines = new TreeSet<>();
        for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
            String name = new File(path).getName();
            if (name.startsWith("kafka-clients-") || name.startsWith("connect-")) {
                for (String found : classes(path)) {
                    collect(found, lines);
                }
            }
        }
        System.out.println(String.join("\n", lines));
    }

    private static List<String> classes(String path) throws IOException {
        try (JarFile jar = new JarFile(path)) {
            return jar.stream()
                .map(entry -> entry.getName())
                .filter(name -> name.startsWith("org/apache/kafka/") && name.endsWith(".class"))
                .map(name -> name.substring(0, name.length() - ".class".length()).replace('/', '.'))
                .toList();
        }
    }

    private static void collect(String name, TreeSet<String> lines) throws ReflectiveOperationException {
        Field[] fields;
        Method[] methods;
        Class<?> found;
        try {
            found = Class.forName(name, false, ConfigKeys.class.getClassLoader());
            fields = found.getDeclaredFields();
            methods = found.getDeclaredMethods();
        } catch (NoClassDefFoundError absent) {
            return; // it needs an optional library
        }
        for (Field field : fields) {
            if (Modifier.isStatic(field.getModifiers()) && field.getType() == ConfigDef.class) {
                field.setAccessible(true);
                add(name, (ConfigDef) field.get(null), lines);
            }
        }
        for (Method method : methods) {
            if (!Modifier.isStatic(method.getModifiers()) || method.getReturnType() != ConfigDef.class) {
                continue;
            }
            method.setAccessible(true);
            if (method.getParameterCount() == 0) {
                add(name, (ConfigDef) method.invoke(null), lines);
            } else if (List.of(method.getParameterTypes()).equals(List.of(Crypto.class))) {
                add(name, (ConfigDef) method.invoke(null, Crypto.SYSTEM), lines);
            }
        }
    }

    private static void add(String name, ConfigDef definition, TreeSet<String> lines) {
        if (definition != null) {
            definition.names().forEach(key -> lines.add(name + "\t" + key));
        }
    }
}
