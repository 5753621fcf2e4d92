package io.sluice.client;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeParseException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;

/**
 * A client of the intake of one Sluice server. It needs JDK 17 and nothing else, and may be used by
 * several threads. Jobs are maps, as the schema Job of /openapi.json.
 *
 * <p>A call is repeated for retryFor after 429, 502, 503, 504 and lost connections, each time after
 * what Retry-After says. A submission without a key gets a random one, so a repeated submission is
 * the same job.
 */
public final class Sluice {
  private static final Duration LONGEST_WAIT = Duration.ofSeconds(30); // of the server, in one request
  private static final Duration PATIENCE = Duration.ofSeconds(15); // for an answer that waits for nothing

  private final HttpClient http;
  private final String base;
  private final String token;
  private final String tenant;
  private final Duration retryFor;

  private Sluice(HttpClient http, String base, String token, String tenant, Duration retryFor) {
    this.http = http;
    this.base = base;
    this.token = token;
    this.tenant = tenant;
    this.retryFor = retryFor;
  }

  /** A client of the server at a URL, such as http://127.0.0.1:8080. */
  public static Sluice at(String base) {
    URI uri = URI.create(base);
    if (uri.getHost() == null || !("http".equals(uri.getScheme()) || "https".equals(uri.getScheme()))) {
      throw new IllegalArgumentException("base: " + base + ": must start with http:// or https:// and name a host");
    }
    return new Sluice(
        HttpClient.newHttpClient(), base.replaceAll("/+$", ""), null, null, Duration.ofSeconds(60));
  }

  /** The same with an API key or a JWT. */
  public Sluice token(String token) {
    return new Sluice(http, base, token, tenant, retryFor);
  }

  /** The same for a tenant; without one it is that of the token, or the server's "default". */
  public Sluice tenant(String tenant) {
    return new Sluice(http, base, token, tenant, retryFor);
  }

  /** The same with another time for which calls are repeated, zero for not at all. */
  public Sluice retryFor(Duration time) {
    return new Sluice(http, base, token, tenant, time);
  }

  /** The same with another HTTP client, for example with certificates of its own. */
  public Sluice http(HttpClient client) {
    return new Sluice(client, base, token, tenant, retryFor);
  }

  /** Submits one job: a type, and a payload that Json can format. */
  public Map<String, Object> submit(String type, Object payload) throws IOException, InterruptedException {
    return submit(type, payload, UUID.randomUUID().toString(), Map.of());
  }

  /**
   * Submits one job. The key makes repeated submissions one job. options are further fields of the
   * schema Submission: route, delay_ms, max_wait_ms, cost, callback_url, headers, path.
   */
  public Map<String, Object> submit(String type, Object payload, String key, Map<String, ?> options)
      throws IOException, InterruptedException {
    Map<String, Object> body = new LinkedHashMap<>(options);
    body.put("type", type);
    body.put("payload", payload);
    return call("POST", "/v1/jobs", body, Map.of("Idempotency-Key", Json.format(key)), Duration.ZERO);
  }

  /**
   * Submits up to 1,000 jobs, each a map as the schema BatchJob, and returns the result of each, in
   * order. A job without an idempotency_key gets one.
   */
  @SuppressWarnings("unchecked")
  public List<Map<String, Object>> submitBatch(List<? extends Map<String, ?>> jobs, boolean atomic)
      throws IOException, InterruptedException {
    List<Object> keyed = new ArrayList<>();
    for (Map<String, ?> job : jobs) {
      Map<String, Object> one = new LinkedHashMap<>(job);
      one.putIfAbsent("idempotency_key", UUID.randomUUID().toString());
      keyed.add(one);
    }
    Map<String, Object> body = Map.of("atomic", atomic, "jobs", keyed);
    return (List<Map<String, Object>>) call("POST", "/v1/jobs/batch", body, Map.of(), Duration.ZERO).get("items");
  }

  /** Reads a job: its state, its position and, once it is done, the answer of the upstream. */
  public Map<String, Object> job(String id) throws IOException, InterruptedException {
    return call("GET", path(id), null, Map.of(), Duration.ZERO);
  }

  /** Waits for the end of a job. */
  public Map<String, Object> await(String id, Duration timeout)
      throws IOException, InterruptedException, TimeoutException {
    Instant end = Instant.now().plus(timeout);
    while (true) {
      Duration left = Duration.between(Instant.now(), end);
      left = left.isNegative() ? Duration.ZERO : left.compareTo(LONGEST_WAIT) > 0 ? LONGEST_WAIT : left;
      long seconds = left.plusMillis(999).toSeconds();
      Map<String, Object> job = call("GET", path(id), null, Map.of("Prefer", "wait=" + seconds), left);
      if (Boolean.TRUE.equals(job.get("done"))) {
        return job;
      }
      if (Instant.now().isAfter(end)) {
        throw new TimeoutException("job " + id + " is " + job.get("state") + " after " + timeout);
      }
    }
  }

  /**
   * Calls each time that the state or the position of a job changes, until it is done or each
   * returns false.
   */
  @SuppressWarnings("unchecked")
  public void follow(String id, Predicate<Map<String, Object>> each) throws IOException, InterruptedException {
    String last = "";
    while (true) {
      Map<String, String> headers = new LinkedHashMap<>(Map.of("Accept", "text/event-stream"));
      if (!last.isEmpty()) {
        headers.put("Last-Event-ID", last);
      }
      HttpResponse<InputStream> response = send("GET", path(id) + "/events", null, headers, Duration.ZERO);
      try (BufferedReader lines =
          new BufferedReader(new InputStreamReader(response.body(), StandardCharsets.UTF_8))) {
        String name = "";
        StringBuilder data = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
          String value = line.substring(line.indexOf(':') + 1).replaceFirst("^ ", "");
          if (line.startsWith("event:")) {
            name = value;
          } else if (line.startsWith("id:")) {
            last = value;
          } else if (line.startsWith("data:")) {
            data.append(data.length() > 0 ? "\n" : "").append(value);
          } else if (line.isEmpty()) {
            if (name.equals("state")) {
              Map<String, Object> job = (Map<String, Object>) Json.parse(data.toString());
              if (!each.test(job) || Boolean.TRUE.equals(job.get("done"))) {
                return;
              }
            }
            name = "";
            data.setLength(0);
          }
        }
      } catch (IOException lost) {
        continue; // behind the last event
      }
    }
  }

  /** Cancels a waiting job. */
  public Map<String, Object> cancel(String id) throws IOException, InterruptedException {
    return call("DELETE", path(id), null, Map.of(), Duration.ZERO);
  }

  /** Queues a dead job again. After a lost answer this may be a "job-state-conflict". */
  public Map<String, Object> replay(String id) throws IOException, InterruptedException {
    return call("POST", path(id) + "/replay", Map.of(), Map.of(), Duration.ZERO);
  }

  @SuppressWarnings("unchecked")
  private Map<String, Object> call(
      String method, String path, Object body, Map<String, String> headers, Duration longest)
      throws IOException, InterruptedException {
    try (InputStream answer = send(method, path, body, headers, longest).body()) {
      return (Map<String, Object>) Json.parse(new String(answer.readAllBytes(), StandardCharsets.UTF_8));
    }
  }

  /** Sends a request until it succeeds, is refused for good, or retryFor is over. */
  private HttpResponse<InputStream> send(
      String method, String path, Object body, Map<String, String> headers, Duration longest)
      throws IOException, InterruptedException {
    HttpRequest.Builder request =
        HttpRequest.newBuilder(URI.create(base + path)).timeout(PATIENCE.plus(longest));
    headers.forEach(request::setHeader);
    if (token != null) {
      request.setHeader("Authorization", "Bearer " + token);
    }
    if (tenant != null) {
      request.setHeader("Sluice-Tenant", tenant);
    }
    if (body == null) {
      request.method(method, HttpRequest.BodyPublishers.noBody());
    } else {
      request.setHeader("Content-Type", "application/json");
      request.method(method, HttpRequest.BodyPublishers.ofString(Json.format(body)));
    }
    Instant end = Instant.now().plus(retryFor);
    for (int attempt = 0; ; attempt++) {
      long most = Math.min(5_000, 100L << Math.min(attempt, 6));
      Duration pause = Duration.ofMillis(ThreadLocalRandom.current().nextLong(most / 2, most));
      try {
        HttpResponse<InputStream> response = http.send(request.build(), BodyHandlers.ofInputStream());
        if (response.statusCode() / 100 == 2) {
          return response;
        }
        SluiceException refusal = refusal(response);
        pause = refusal.retryAfter == null ? pause : refusal.retryAfter;
        if (!refusal.isTemporary() || Instant.now().plus(pause).isAfter(end)) {
          throw refusal;
        }
      } catch (IOException lost) {
        if (Instant.now().plus(pause).isAfter(end)) {
          throw lost;
        }
      }
      Thread.sleep(pause.toMillis());
    }
  }

  @SuppressWarnings("unchecked")
  private static SluiceException refusal(HttpResponse<InputStream> response) throws IOException {
    Map<String, Object> problem = Map.of();
    try (InputStream body = response.body()) {
      if (Json.parse(new String(body.readAllBytes(), StandardCharsets.UTF_8)) instanceof Map<?, ?> map) {
        problem = (Map<String, Object>) map;
      }
    } catch (IllegalArgumentException none) {
      // perhaps the page of a proxy
    }
    Duration after = null;
    String header = response.headers().firstValue("Retry-After").orElse("").trim();
    if (header.matches("\\d{1,9}")) { // which gives each client a turn of its own
      after = Duration.ofSeconds(Long.parseLong(header));
    } else if (header.isEmpty() && problem.get("retry_after_ms") instanceof Long ms && ms > 0) {
      after = Duration.ofMillis(ms);
    } else if (!header.isEmpty()) {
      try {
        Instant at = ZonedDateTime.parse(header, DateTimeFormatter.RFC_1123_DATE_TIME).toInstant();
        after = at.isAfter(Instant.now()) ? Duration.between(Instant.now(), at) : Duration.ZERO;
      } catch (DateTimeParseException unknown) {
        // no time
      }
    }
    return new SluiceException(response.statusCode(), problem, after);
  }

  private static String path(String id) {
    return "/v1/jobs/" + URLEncoder.encode(id, StandardCharsets.UTF_8).replace("+", "%20");
  }
}
