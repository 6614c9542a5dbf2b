import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Map;

/**
 * What the clients that come with Java do by themselves: Plain KIND METHOD URL TIMES [NAME:VALUE]... with one client of
 * its defaults. A # in a value is the number of the request. KIND: java.net.http or HttpURLConnection.
 * A line of JSON for each request: [status, {header: value}], or the error.
 */
class Plain {
    static final HttpClient CLIENT = HttpClient.newHttpClient();

    public static void main(String[] arguments) throws Exception {
        List<String> given = List.of(arguments).subList(4, arguments.length);
        for (int number = 1; number <= Integer.parseInt(arguments[3]); number++) {
            String told = "" + number;
            List<String> lines = given.stream().map(line -> line.replace("#", told)).toList();
            try {
                URI uri = URI.create(arguments[2]);
                System.out.println(arguments[0].equals("java.net.http")
                    ? withClient(arguments[1], uri, lines) : withConnection(arguments[1], uri, lines));
            } catch (IOException error) {
                System.out.println(quoted(error.toString()));
            }
        }
        System.out.flush();
        System.exit(0);
    }

    static String withClient(String method, URI uri, List<String> lines) throws IOException, InterruptedException {
        HttpRequest.Builder request = HttpRequest.newBuilder(uri);
        request.method(method, HttpRequest.BodyPublishers.ofString("{}"));
        for (String line : lines) {
            request.header(line.split(":", 2)[0], line.split(":", 2)[1]);
        }
        HttpResponse<String> answer = CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
        return said(answer.statusCode(), answer.headers().map());
    }

    static String withConnection(String method, URI uri, List<String> lines) throws IOException {
        HttpURLConnection connection = (HttpURLConnection) uri.toURL().openConnection();
        connection.setRequestMethod(method);
        connection.setDoOutput(true);
        for (String line : lines) {
            connection.setRequestProperty(line.split(":", 2)[0], line.split(":", 2)[1]);
        }
        connection.getOutputStream().write("{}".getBytes());
        int status = connection.getResponseCode();
        InputStream body = status < 400 ? connection.getInputStream() : connection.getErrorStream();
        if (body != null) {
            body.readAllBytes();
        }
        return said(status, connection.getHeaderFields());
    }

    static String said(int status, Map<String, List<String>> headers) {
        StringBuilder text = new StringBuilder("[" + status + ", {");
        String between = "";
        for (Map.Entry<String, List<String>> header : headers.entrySet()) {
            if (header.getKey() != null) {
                text.append(between).append(quoted(header.getKey())).append(": ").append(quoted(header.getValue().get(0)));
                between = ", ";
            }
        }
        return text.append("}]").toString();
    }

    static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }
}
