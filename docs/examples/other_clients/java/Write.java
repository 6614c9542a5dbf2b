import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** One fenced write with what comes with Java: Write ROLE PATH KEY JSON ORIGIN..., exit codes as write.sh. */
class Write {
    static final int APPLIED = 0, NOT_APPLIED = 1, NOT_KNOWN = 75;
    static final Pattern LEADER = Pattern.compile("\"leader\":\\{[^}]*?\"url\":\"([^\"]*)\"");
    static final Pattern TOKEN = Pattern.compile("\"token\":([0-9]+)"); // or a JSON library's long, never a double

    // It follows no redirect and repeats no write. HttpURLConnection does, unseen, when a connection breaks.
    static final HttpClient CLIENT = HttpClient.newBuilder()
        .followRedirects(HttpClient.Redirect.NEVER)
        .version(HttpClient.Version.HTTP_1_1)
        .connectTimeout(Duration.ofSeconds(2))
        .build();

    record Found(String leader, String token) { }

    /** Who leads, and the token, by the first gateway that can tell; null where none can. */
    static Found discover(String role, List<String> origins) throws InterruptedException {
        for (String origin : origins) {
            URI uri = URI.create(origin + "/.well-known/fencegate/leader/" + role);
            try {
                HttpResponse<String> answer = CLIENT.send(
                    HttpRequest.newBuilder(uri).timeout(Duration.ofSeconds(2)).build(), BodyHandlers.ofString());
                Matcher leader = LEADER.matcher(answer.body());
                Matcher token = TOKEN.matcher(answer.body());
                boolean ours = answer.statusCode() == 200
                    && answer.headers().firstValue("X-Fencing-Region").isPresent();
                if (ours && leader.find() && token.find()) {
                    return new Found(leader.group(1), token.group(1));
                }
            } catch (IOException error) {
                continue;
            }
        }
        return null;
    }

    static int write(String role, String path, String key, String body, List<String> origins)
            throws InterruptedException {
        boolean unknown = false;
        String why = "nobody leads";
        long wait = 0;
        for (int attempt = 0; attempt < 6; attempt++) {
            Thread.sleep(wait);
            wait = 1000 + ThreadLocalRandom.current().nextLong(500);
            Found found = discover(role, origins);
            if (found == null || !origins.contains(found.leader())) { // Nothing else is ever sent to, whoever names it.
                why = found == null ? why : "not one of the origins given: " + found.leader();
                continue;
            }
            HttpRequest request = HttpRequest.newBuilder(URI.create(found.leader() + path))
                .timeout(Duration.ofSeconds(10))
                .header("X-Fencing-Token", found.token())
                .header("Idempotency-Key", key) // the same on each try
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(body))
                .build();
            HttpResponse<String> answer;
            try {
                answer = CLIENT.send(request, BodyHandlers.ofString());
            } catch (IOException error) {
                unknown = true;
                why = error.toString();
                continue;
            }
            String outcome = answer.headers().firstValue("X-Fencing-Outcome").orElse("");
            String applied = answer.headers().firstValue("X-Fencing-Applied").orElse("unknown");
            if (outcome.equals("accepted")) {
                System.out.println(answer.body());
                return answer.statusCode() < 300 ? APPLIED : NOT_APPLIED;
            }
            why = answer.body();
            if (outcome.isEmpty() || !applied.equals("no")) { // Not the gateway's answer, or it does not know either.
                unknown = true;
            } else if (answer.headers().firstValue("X-Fencing-Retry").orElse("").equals("never")) {
                break;
            }
            String after = answer.headers().firstValue("Retry-After").orElse("");
            if (after.matches("[2-9]|1[0-5]")) {
                wait = Long.parseLong(after) * 1000;
            }
        }
        System.err.println(unknown ? "not known: ask again with the key " + key : "not applied: " + why);
        return unknown ? NOT_KNOWN : NOT_APPLIED;
    }

    public static void main(String[] given) throws InterruptedException {
        List<String> origins = Arrays.asList(given).subList(4, given.length);
        System.exit(write(given[0], given[1], given[2], given[3], origins));
    }
}
