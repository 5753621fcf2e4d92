package io.sluice.client;

import java.time.Duration;
import java.util.Map;

/** An answer that is not a success. */
public class SluiceException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** The status of HTTP. */
  public final int status;

  /** The last part of the problem's type, such as "queue-full"; empty if the answer is none. */
  public final String kind;

  /** The whole problem (RFC 9457); empty if the answer is none. */
  public final transient Map<String, Object> problem;

  /** When the request may succeed; null if the server does not say. */
  public final Duration retryAfter;

  SluiceException(int status, Map<String, Object> problem, Duration retryAfter) {
    super(text(problem) + " (" + (status + " " + kindOf(problem)).trim() + ")");
    this.status = status;
    this.kind = kindOf(problem);
    this.problem = problem;
    this.retryAfter = retryAfter;
  }

  /** Whether the queue, its pool or the store is full, or requests come too fast. */
  public boolean isFull() {
    return status == 429;
  }

  /** Whether the same request may succeed later. */
  public boolean isTemporary() {
    return (status == 429 && !kind.equals("never-fits")) || (status >= 502 && status <= 504);
  }

  private static String kindOf(Map<String, Object> problem) {
    String type = String.valueOf(problem.getOrDefault("type", ""));
    return type.substring(type.lastIndexOf(':') + 1);
  }

  private static Object text(Map<String, Object> problem) {
    return problem.getOrDefault("detail", problem.getOrDefault("title", "no reason given"));
  }
}
