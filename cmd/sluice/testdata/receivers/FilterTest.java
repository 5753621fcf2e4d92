import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ReadListener;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.ByteArrayInputStream;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Gives the filter one request: SECRET TENANT ID TIMESTAMP SIGNATURE BODY. It prints the status. */
public class FilterTest {
  static int status = 204;

  public static void main(String[] args) throws Exception {
    Map<String, String> headers =
        Map.of("webhook-id", args[2], "webhook-timestamp", args[3], "webhook-signature", args[4]);
    Map<Object, Object> attributes = new HashMap<>();
    ByteArrayInputStream body = new ByteArrayInputStream(args[5].getBytes(StandardCharsets.UTF_8));
    HttpServletRequest request = fake(HttpServletRequest.class, (method, a) -> switch (method) {
      case "getHeader" -> headers.get(a[0]);
      case "getInputStream" -> stream(body);
      case "setAttribute" -> attributes.put(a[0], a[1]);
      default -> throw new UnsupportedOperationException(method);
    });
    HttpServletResponse response = fake(HttpServletResponse.class, (method, a) -> status = (int) a[0]);
    FilterChain chain = (passed, to) -> {
      byte[] again = passed.getInputStream().readAllBytes();
      if (attributes.get("sluice.event") == null || !new String(again, StandardCharsets.UTF_8).equals(args[5])) {
        throw new IllegalStateException("the servlet gets another event or body");
      }
    };
    new SluiceFilter(List.of(args[0]), args[1]).doFilter(request, response, chain);
    System.out.println(status);
  }

  interface Call {
    Object of(String method, Object[] args) throws Exception;
  }

  static <T> T fake(Class<T> of, Call call) {
    return of.cast(Proxy.newProxyInstance(of.getClassLoader(), new Class<?>[] {of},
        (proxy, method, args) -> {
          Object result = call.of(method.getName(), args);
          return method.getReturnType() == void.class ? null : result;
        }));
  }

  static ServletInputStream stream(ByteArrayInputStream bytes) {
    return new ServletInputStream() {
      @Override
      public int read() {
        return bytes.read();
      }

      @Override
      public boolean isFinished() {
        return false;
      }

      @Override
      public boolean isReady() {
        return true;
      }

      @Override
      public void setReadListener(ReadListener listener) {}
    };
  }
}
