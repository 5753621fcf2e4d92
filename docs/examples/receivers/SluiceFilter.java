import io.sluice.client.Webhook;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.time.Instant;
import java.util.List;
import java.util.Map;

/**
 * Lets only requests pass that are from Sluice, and gives the event to the servlet as the attribute
 * "sluice.event". The servlet can still read the body.
 */
public class SluiceFilter extends HttpFilter {
  private static final long serialVersionUID = 1;
  private static final int MOST = 1 << 20; // bytes of a body

  private final transient List<String> secrets;
  private final String tenant;

  /**
   * @param secrets one or more "whsec_…", of which one must fit
   * @param tenant must be that of the job, unless it is null
   */
  public SluiceFilter(List<String> secrets, String tenant) {
    this.secrets = secrets;
    this.tenant = tenant;
  }

  @Override
  protected void doFilter(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
      throws IOException, ServletException {
    byte[] body = request.getInputStream().readNBytes(MOST + 1);
    if (body.length > MOST) {
      response.sendError(HttpServletResponse.SC_REQUEST_ENTITY_TOO_LARGE);
      return;
    }
    Map<String, Object> event;
    try {
      event = Webhook.verify(request::getHeader, body, secrets, tenant, Instant.now());
    } catch (Webhook.InvalidSignature why) {
      response.sendError(HttpServletResponse.SC_UNAUTHORIZED, why.getMessage());
      return;
    }
    request.setAttribute("sluice.event", event);
    chain.doFilter(new Kept(request, body), response);
  }

  /** A request whose body was read. */
  private static final class Kept extends HttpServletRequestWrapper {
    private final byte[] body;

    Kept(HttpServletRequest request, byte[] body) {
      super(request);
      this.body = body;
    }

    @Override
    public ServletInputStream getInputStream() {
      ByteArrayInputStream bytes = new ByteArrayInputStream(body);
      return new ServletInputStream() {
        @Override
        public int read() {
          return bytes.read();
        }

        @Override
        public boolean isFinished() {
          return bytes.available() == 0;
        }

        @Override
        public boolean isReady() {
          return true;
        }

        @Override
        public void setReadListener(ReadListener listener) {
          throw new UnsupportedOperationException("the body was read");
        }
      };
    }
  }
}
