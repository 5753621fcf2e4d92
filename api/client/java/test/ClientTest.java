import com.sun.net.httpserver.HttpServer;
import io.sluice.client.Json;
import io.sluice.client.Sluice;
import io.sluice.client.SluiceException;
import io.sluice.client.Webhook;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeoutException;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Tests of the client against a running server: SLUICE_API is its intake, SLUICE_ADMIN its admin
 * listener. Both are started by TestClients of cmd/sluice. It ends with an exception at the first
 * mistake.
 */
public class ClientTest {
  static final String API = System.getenv("SLUICE_API");

  public static void main(String[] args) throws Exception {
    json();
    signatures();
    oneKeyForAllAttempts();
    answersOfOthers();
    submitWaitFollow();
    batch();
    fullQueue();
  }

  static void json() {
    for (String text : List.of("{}", "[]", "[1,-2.5,true,null,\"a\\\"\\\\\\u000a\"]", "{\"a\":{\"b\":[{}]}}", "12345678901234567890")) {
      same(text, text, Json.format(Json.parse(text)));
    }
    same("an escape", "ä\n\uD83D\uDE00", Json.parse(" \"ä\\n\\ud83d\\ude00\" "));
    for (String text : List.of("", "{", "[1,]", "{\"a\"}", "tru", "1 2", "\"\\x\"", "\"a", "-", "[".repeat(1000))) {
      fails(IllegalArgumentException.class, () -> Json.parse(text));
    }
    fails(IllegalArgumentException.class, () -> Json.format(Double.NaN));
  }

  static void submitWaitFollow() throws Exception {
    Sluice jobs = Sluice.at(API).tenant("java");
    Map<String, Object> job = jobs.submit("order.create", Map.of("sku", 1), "order-1", Map.of());
    same("the same key", job.get("id"), jobs.submit("order.create", Map.of("sku", 1), "order-1", Map.of()).get("id"));
    String id = (String) job.get("id");
    same("the state", "succeeded", jobs.await(id, Duration.ofSeconds(30)).get("state"));
    List<Object> states = new ArrayList<>();
    jobs.follow(id, now -> states.add(now.get("state")));
    same("the last state", "succeeded", states.get(states.size() - 1));
    fails(IllegalArgumentException.class, () -> Sluice.at("127.0.0.1:8080"));
  }

  static void batch() throws Exception {
    List<Map<String, Object>> items =
        Sluice.at(API).tenant("java-batch").submitBatch(
            List.of(Map.of("type", "t", "payload", 1), Map.of("type", "", "payload", 2)), false);
    same("the results", List.of(202L, 422L), items.stream().map(item -> item.get("status")).toList());
  }

  static void fullQueue() throws Exception {
    tune("java-full", "{\"rate\":\"1/h\",\"capacity\":1}");
    Sluice jobs = Sluice.at(API).tenant("java-full").retryFor(Duration.ZERO);
    jobs.await((String) jobs.submit("t", 1).get("id"), Duration.ofSeconds(30));
    String waiting = (String) jobs.submit("t", 2).get("id");
    SluiceException full = fails(SluiceException.class, () -> jobs.submit("t", 3));
    same("the refusal", "429 queue-full true", full.status + " " + full.kind + " " + full.isFull());
    fails(TimeoutException.class, () -> jobs.await(waiting, Duration.ofMillis(200)));
    same("the state", "cancelled", jobs.cancel(waiting).get("state"));
    same("an unknown job", 404, fails(SluiceException.class, () -> jobs.job("no/such job")).status);
    tune("java-again", "{\"rate\":\"2/s\",\"capacity\":1}");
    HashSet<Object> ids = new HashSet<>();
    for (int n = 0; n < 4; n++) {
      ids.add(Sluice.at(API).tenant("java-again").submit("t", n).get("id"));
    }
    same("jobs through a full queue", 4, ids.size());
  }

  record Answer(int status, String retryAfter, String body) {}

  /** A server with these answers, which keeps the keys of its requests. */
  static HttpServer failing(List<String> keys, Answer... answers) throws Exception {
    Queue<Answer> left = new ArrayDeque<>(Arrays.asList(answers));
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.createContext("/", exchange -> {
      keys.add(exchange.getRequestHeaders().getFirst("Idempotency-Key"));
      exchange.getRequestBody().readAllBytes();
      Answer answer = left.remove();
      if (answer.status == 0) {
        exchange.close(); // the answer is lost
        return;
      }
      if (answer.retryAfter != null) {
        exchange.getResponseHeaders().set("Retry-After", answer.retryAfter);
      }
      byte[] body = answer.body.getBytes(StandardCharsets.UTF_8);
      exchange.sendResponseHeaders(answer.status, body.length);
      exchange.getResponseBody().write(body);
      exchange.close();
    });
    server.start();
    return server;
  }

  static void oneKeyForAllAttempts() throws Exception {
    List<String> keys = new ArrayList<>();
    HttpServer server = failing(keys, new Answer(0, null, ""), new Answer(503, "0", "{\"retry_after_ms\": 3600000}"),
        new Answer(429, null, "{\"retry_after_ms\": 20}"), new Answer(202, null, "{\"id\": \"1\"}"));
    same("the job", "1", Sluice.at("http://127.0.0.1:" + server.getAddress().getPort()).submit("t", 1).get("id"));
    same("keys", "4 1", keys.size() + " " + new HashSet<>(keys).size());
    server.stop(0);
  }

  static void answersOfOthers() throws Exception {
    List<String> keys = new ArrayList<>();
    HttpServer server = failing(keys, new Answer(502, null, "<html>"), new Answer(503, "3600", "not json"),
        new Answer(422, null, "{\"type\":\"urn:sluice:problem:invalid-request\",\"detail\":\"type: must be set\"}"));
    Sluice jobs = Sluice.at("http://127.0.0.1:" + server.getAddress().getPort()).retryFor(Duration.ofSeconds(10));
    SluiceException away = fails(SluiceException.class, () -> jobs.submit("t", 1));
    same("a long time", "503 " + Duration.ofHours(1), away.status + " " + away.retryAfter);
    same("a mistake", "invalid-request", fails(SluiceException.class, () -> jobs.submit("", 1)).kind);
    same("requests", 3, keys.size());
    server.stop(0);
  }

  static void signatures() throws Exception {
    byte[] body = "{\"type\":\"job.succeeded\",\"data\":{\"id\":\"1\",\"tenant\":\"acme\"}}".getBytes(StandardCharsets.UTF_8);
    String secret = "whsec_" + Base64.getEncoder().encodeToString("k".repeat(32).getBytes(StandardCharsets.UTF_8));
    Mac mac = Mac.getInstance("HmacSHA256");
    mac.init(new SecretKeySpec("k".repeat(32).getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
    mac.update("msg.1000000.".getBytes(StandardCharsets.UTF_8));
    Map<String, String> headers = Map.of("webhook-id", "msg", "webhook-timestamp", "1000000",
        "webhook-signature", "v1a,AAAA v1,%% v1," + Base64.getEncoder().encodeToString(mac.doFinal(body)));
    Instant now = Instant.ofEpochSecond(1_000_100);
    same("the event", "job.succeeded", Webhook.verify(headers::get, body, List.of("whsec_AAAA", secret), "acme", now).get("type"));
    fails(Webhook.InvalidSignature.class, () -> Webhook.verify(headers::get, body, List.of("whsec_AAAA"), null, now));
    fails(Webhook.InvalidSignature.class, () -> Webhook.verify(headers::get, "{}".getBytes(), List.of(secret), null, now));
    fails(Webhook.InvalidSignature.class, () -> Webhook.verify(headers::get, body, List.of(secret), "shop", now));
    fails(Webhook.InvalidSignature.class, () -> Webhook.verify(headers::get, body, List.of(secret), null, now.plusSeconds(300)));
    fails(Webhook.InvalidSignature.class, () -> Webhook.verify(name -> null, body, List.of(secret), null, now));
  }

  static void tune(String tenant, String settings) throws Exception {
    HttpRequest request = HttpRequest.newBuilder(URI.create(System.getenv("SLUICE_ADMIN") + "/v1/tenants/" + tenant))
        .header("Content-Type", "application/json")
        .method("PATCH", HttpRequest.BodyPublishers.ofString(settings)).build();
    same("the change", 200, HttpClient.newHttpClient().send(request, BodyHandlers.discarding()).statusCode());
  }

  static void same(String what, Object want, Object got) {
    if (!want.equals(got)) {
      throw new AssertionError(what + ": " + got + ", want " + want);
    }
  }

  static <E extends Exception> E fails(Class<E> with, Callable<?> call) {
    try {
      throw new AssertionError("no " + with.getSimpleName() + " but " + call.call());
    } catch (Exception e) {
      if (with.isInstance(e)) {
        return with.cast(e);
      }
      throw new AssertionError("no " + with.getSimpleName(), e);
    }
  }
}
