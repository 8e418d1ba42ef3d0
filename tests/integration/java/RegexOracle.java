import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/**
 * Results of java.util.regex. Each line of the input has a pattern and names with a tab between them, each line of the output a 1 or
 * 0 for each name (Matcher.matches), or ERR.
 */
public class RegexOracle {
    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder output = new StringBuilder();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            int start = output.length();
            String[] words = line.split("\t", -1);
            try {
                Pattern pattern = Pattern.compile(words[0]);
                for (int i = 1; i < words.length; i++) {
                    output.append(pattern.matcher(words[i]).matches() ? '1' : '0');
                }
            } catch (PatternSyntaxException | NullPointerException e) { // of [^a&&], for example
                output.setLength(start);
                output.append("ERR");
            }
            output.append('\n');
        }
        System.out.print(output);
    }
}
