package worker

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker/internal/outbound"
)

// maxBody is how much of an answer's body is kept, maxKeptHeader how much of a header, in bytes.
const maxBody, maxKeptHeader = 4 << 10, 1 << 10

// httpDeliverer sends jobs to one HTTP upstream: exactly one request per attempt, and none to anywhere else.
type httpDeliverer struct {
	route  Route
	client *outbound.Client
	now    func() time.Time // the wall clock, which receivers compare the signature's timestamp with
}

func newHTTPDeliverer(r Route) (*httpDeliverer, error) {
	client, err := outbound.New(r.Timeout, r.Connections, r.Secrets)
	return &httpDeliverer{route: r, client: client, now: time.Now}, err
}

// Deliver makes one request and judges the answer; see judge for the outcomes.
func (d *httpDeliverer) Deliver(ctx context.Context, l queue.Lease) queue.Settlement {
	limited, cancel := context.WithTimeout(ctx, d.route.Timeout)
	defer cancel()
	req, err := d.request(limited, l)
	if err != nil {
		return d.route.Retry.again(l, err.Error(), 0)
	}
	resp, err := d.client.Transport.RoundTrip(req)
	if err != nil {
		why := d.client.Explain(ctx, limited, err, "worker", "upstream")
		s := d.route.Retry.again(l, why.Message, 0)
		s.Error.Detail = why.Detail
		return s
	}
	answer := readAnswer(resp)
	return d.route.Retry.judge(l, answer, resp.Header.Get("Retry-After"), d.now())
}

// request is the request of an attempt, as the contract with receivers has it.
func (d *httpDeliverer) request(ctx context.Context, l queue.Lease) (*http.Request, error) {
	req, err := d.client.Request(ctx, d.route.URL, l.ID, l.Payload, d.now())
	if err != nil {
		return nil, err
	}
	h := req.Header
	h.Set("Sluice-Attempt", strconv.Itoa(l.Attempt))
	h.Set("Sluice-Tenant", percentEncode(l.Tenant))
	h.Set("Sluice-Job-Type", percentEncode(l.Type))
	if l.TraceParent != "" {
		h.Set("traceparent", l.TraceParent)
	}
	if u := req.URL.User; u != nil {
		password, _ := u.Password()
		req.SetBasicAuth(u.Username(), password)
	}
	return req, nil
}

// keptHeaders are those of an answer that help whoever looks at the job.
var keptHeaders = []string{"Content-Type", "Location", "Retry-After"}

// readAnswer takes what is kept of an answer and closes its body. A body that breaks off changes
// nothing: the status alone decides.
func readAnswer(resp *http.Response) *queue.Response {
	defer resp.Body.Close()
	a := &queue.Response{Status: resp.StatusCode}
	for _, name := range keptHeaders {
		if v := resp.Header.Get(name); v != "" {
			if a.Headers == nil {
				a.Headers = make(map[string]string, len(keptHeaders))
			}
			a.Headers[strings.ToLower(name)] = outbound.CutTo(v, maxKeptHeader)
		}
	}
	if resp.StatusCode < 200 {
		return a // 101: what follows is not a body, and may never end
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	a.Truncated = err != nil || len(body) > maxBody
	a.Body = body[:min(len(body), maxBody)]
	if err == nil && a.Truncated && resp.ContentLength <= outbound.MaxDrain {
		_, _ = io.CopyN(io.Discard, resp.Body, outbound.MaxDrain)
	}
	return a
}

// percentEncode makes client text fit for a header: every byte outside [A-Za-z0-9._:@-] becomes % and
// two upper-case hex digits. So it is reversible and cannot end the line.
func percentEncode(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r > 127 || !unreserved(byte(r)) }) < 0 {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; unreserved(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// unreserved are the bytes of most tenants' names, left readable.
func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._:@-", c) >= 0
}
