package io.sluice.client;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Verifies callbacks by Standard Webhooks. */
public final class Webhook {
  /** A request is not from Sluice, or it is too old. */
  public static final class InvalidSignature extends Exception {
    private static final long serialVersionUID = 1;

    InvalidSignature(String why) {
      super(why);
    }
  }

  private static final Duration TOLERANCE = Duration.ofMinutes(5);

  private Webhook() {}

  /**
   * Checks that a callback is from Sluice and returns its event.
   *
   * @param header finds a header by its name, such as request::getHeader
   * @param body the bytes of the request before any parsing
   * @param secrets one or more "whsec_…", of which one must fit
   * @param tenant must be that of the job, unless it is null: where all tenants share a secret, only
   *     this tells them apart
   * @param now the present; a signature may be five minutes old or early
   */
  @SuppressWarnings("unchecked")
  public static Map<String, Object> verify(
      UnaryOperator<String> header, byte[] body, List<String> secrets, String tenant, Instant now)
      throws InvalidSignature {
    String id = header.apply("webhook-id");
    String at = header.apply("webhook-timestamp");
    String signed = header.apply("webhook-signature");
    if (id == null || signed == null || at == null || !at.matches("\\d{1,12}")) {
      throw new InvalidSignature("the request is not signed");
    }
    if (Duration.between(Instant.ofEpochSecond(Long.parseLong(at)), now).abs().compareTo(TOLERANCE) > 0) {
      throw new InvalidSignature("the signature is too old or too early");
    }
    for (String secret : secrets) {
      byte[] right = mac(Base64.getDecoder().decode(secret.replaceFirst("^whsec_", "")), id + "." + at + ".", body);
      for (String one : signed.split(" ")) {
        if (one.startsWith("v1,") && MessageDigest.isEqual(right, one.substring(3).getBytes(StandardCharsets.UTF_8))) {
          Map<String, Object> event = (Map<String, Object>) Json.parse(new String(body, StandardCharsets.UTF_8));
          if (tenant != null && !(event.get("data") instanceof Map<?, ?> data && tenant.equals(data.get("tenant")))) {
            throw new InvalidSignature("the event is of another tenant");
          }
          return event;
        }
      }
    }
    throw new InvalidSignature("no signature fits");
  }

  private static byte[] mac(byte[] key, String prefix, byte[] body) {
    try {
      Mac mac = Mac.getInstance("HmacSHA256");
      mac.init(new SecretKeySpec(key, "HmacSHA256"));
      mac.update(prefix.getBytes(StandardCharsets.UTF_8));
      return Base64.getEncoder().encode(mac.doFinal(body));
    } catch (GeneralSecurityException e) {
      throw new IllegalStateException(e);
    }
  }
}
