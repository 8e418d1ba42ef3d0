import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.Provider;
import java.security.Security;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import javax.security.auth.Subject;
import javax.security.auth.callback.CallbackHandler;
import javax.security.auth.spi.LoginModule;
import javax.security.sasl.SaslException;
import javax.security.sasl.SaslServer;
import javax.security.sasl.SaslServerFactory;

/**
 * The mechanism AWS_MSK_IAM in a Kafka broker: a login module for its listener, which registers a SASL server. It computes
 * the signature (AWS Signature Version 4, presigned) itself from the documented algorithm.
 *
 * Options of the login module: secret_KEYID, token_KEYID (a session token that the client has to send), region, host.
 */
public final class MskIamServer implements LoginModule {
    private static final String MECHANISM = "AWS_MSK_IAM";
    private static final String VERSION = "2020_10_22";
    private static Map<String, ?> options = Map.of();

    @Override
    public void initialize(Subject subject, CallbackHandler handler, Map<String, ?> shared, Map<String, ?> given) {
        options = given;
        if (Security.getProvider(MECHANISM) == null)
            Security.addProvider(new Registration());
    }

    @Override
    public boolean login() { return true; }
    @Override
    public boolean commit() { return true; }
    @Override
    public boolean abort() { return false; }
    @Override
    public boolean logout() { return true; }

    public static final class Registration extends Provider {
        public Registration() {
            super(MECHANISM, "1", "SASL server for tests");
            put("SaslServerFactory." + MECHANISM, Factory.class.getName());
        }
    }

    public static final class Factory implements SaslServerFactory {
        @Override
        public SaslServer createSaslServer(String mechanism, String protocol, String server, Map<String, ?> props,
                CallbackHandler handler) {
            return new Session();
        }

        @Override
        public String[] getMechanismNames(Map<String, ?> props) { return new String[] {MECHANISM}; }
    }

    private static final class Session implements SaslServer {
        private String principal;

        @Override
        public byte[] evaluateResponse(byte[] response) throws SaslException {
            try {
                principal = verified(fields(new String(response, StandardCharsets.UTF_8)));
            } catch (SaslException e) {
                System.out.println("AWS_MSK_IAM: " + e.getMessage());
                throw e;
            } catch (Exception e) {
                throw new SaslException("not a payload", e);
            }
            String answer = "{\"version\":\"" + VERSION + "\",\"request-id\":\"" + java.util.UUID.randomUUID() + "\"}";
            return answer.getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public boolean isComplete() { return principal != null; }
        @Override
        public String getAuthorizationID() { return principal; }
        @Override
        public String getMechanismName() { return MECHANISM; }
        @Override
        public Object getNegotiatedProperty(String name) { return null; }
        @Override
        public byte[] unwrap(byte[] data, int from, int size) { throw new IllegalStateException(); }
        @Override
        public byte[] wrap(byte[] data, int from, int size) { throw new IllegalStateException(); }
        @Override
        public void dispose() { }
    }

    /** The fields of a flat JSON object of strings. */
    private static Map<String, String> fields(String json) throws SaslException {
        if (!json.matches("(?s)\\{(\"[^\"]*\":\"[^\"\\\\]*\",?)+\\}"))
            throw new SaslException("not a flat JSON object of strings");
        Map<String, String> found = new HashMap<>();
        Matcher matcher = Pattern.compile("\"([^\"]*)\":\"([^\"]*)\"").matcher(json);
        while (matcher.find())
            found.put(matcher.group(1), matcher.group(2));
        return found;
    }

    /** The access key id of a valid payload. */
    private static String verified(Map<String, String> got) throws Exception {
        require("version", VERSION, got.get("version"));
        require("action", "kafka-cluster:Connect", got.get("action"));
        require("host", options.get("host"), got.get("host"));
        require("x-amz-algorithm", "AWS4-HMAC-SHA256", got.get("x-amz-algorithm"));
        require("x-amz-signedheaders", "host", got.get("x-amz-signedheaders"));
        if (got.getOrDefault("user-agent", "").isEmpty())
            throw new SaslException("no user-agent");
        String date = got.get("x-amz-date");
        Instant signed = Instant.from(
            DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'").withZone(ZoneOffset.UTC).parse(date));
        long expires = Long.parseLong(got.get("x-amz-expires"));
        Duration age = Duration.between(signed, Instant.now());
        if (expires > 900 || age.toSeconds() > expires || age.toSeconds() < -300)
            throw new SaslException("expired");
        String[] credential = got.get("x-amz-credential").split("/");
        String id = credential[0];
        require("region", options.get("region"), credential[2]);
        require("token", options.get("token_" + id), got.get("x-amz-security-token"));
        require("scope", date.substring(0, 8) + "/" + credential[2] + "/kafka-cluster/aws4_request",
            credential[1] + "/" + credential[2] + "/" + credential[3] + "/" + credential[4]);
        Object secret = options.get("secret_" + id);
        if (secret == null)
            throw new SaslException("unknown access key");
        require("x-amz-signature", signature((String) secret, credential, date, canonical(got)), got.get("x-amz-signature"));
        return id;
    }

    private static String canonical(Map<String, String> got) throws Exception {
        Map<String, String> query = new TreeMap<>();
        query.put("Action", got.get("action"));
        query.put("X-Amz-Algorithm", got.get("x-amz-algorithm"));
        query.put("X-Amz-Credential", got.get("x-amz-credential"));
        query.put("X-Amz-Date", got.get("x-amz-date"));
        query.put("X-Amz-Expires", got.get("x-amz-expires"));
        query.put("X-Amz-SignedHeaders", got.get("x-amz-signedheaders"));
        if (got.containsKey("x-amz-security-token"))
            query.put("X-Amz-Security-Token", got.get("x-amz-security-token"));
        String text = query.entrySet().stream().map(e -> encoded(e.getKey()) + "=" + encoded(e.getValue()))
            .collect(Collectors.joining("&"));
        return "GET\n/\n" + text + "\nhost:" + got.get("host") + "\n\nhost\n" + sha256("");
    }

    private static String signature(String secret, String[] credential, String date, String request) throws Exception {
        byte[] key = ("AWS4" + secret).getBytes(StandardCharsets.UTF_8);
        for (int part = 1; part < credential.length; part++)
            key = hmac(key, credential[part]);
        String scope = String.join("/", credential[1], credential[2], credential[3], credential[4]);
        return HexFormat.of().formatHex(hmac(key, "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + sha256(request)));
    }

    private static byte[] hmac(byte[] key, String text) throws Exception {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String sha256(String text) throws Exception {
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
        return HexFormat.of().formatHex(digest);
    }

    private static String encoded(String text) {
        StringBuilder out = new StringBuilder();
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            char c = (char) (b & 0xFF);
            boolean plain = c < 128 && (Character.isLetterOrDigit(c) || "-._~".indexOf(c) >= 0);
            out.append(plain ? String.valueOf(c) : String.format("%%%02X", b & 0xFF));
        }
        return out.toString();
    }

    private static void require(String name, Object wanted, Object got) throws SaslException {
        if (wanted == null ? got != null : !wanted.equals(got))
            throw new SaslException("wrong " + name);
    }
}
