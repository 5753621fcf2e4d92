package browsertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/7509e464/sluice/tools/internal/product"
)

// Token is the admin token of the programs started here.
const Token = "browsertest-0123456789"

const (
	startPatience = 30 * time.Second
	stopPatience  = 30 * time.Second
	pause         = 20 * time.Millisecond
)

// Program is a running sluice serve with a private Redis, and the upstream that it delivers to.
type Program struct {
	API, Admin string // base URLs, the same after a restart
	Model      string // base URL of a listener whose requests are forwarded to what Serve serves

	binary, dir string
	upstream    *httptest.Server
	model       atomic.Pointer[http.Handler]
	failing     atomic.Value // the tenant, a string
	busy        atomic.Int64 // seconds of the Retry-After of a 503; 0: it answers otherwise
	client      *http.Client

	mu     sync.Mutex
	cmd    *exec.Cmd
	log    *os.File
	exited chan error
}

// Build compiles the program into dir and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "sluice")
	return binary, product.Build(ctx, binary)
}

// Start runs the program with its data in dir. policies are lines of the configuration below
// "tenants:", such as " acme: { rate: 5/s }".
func Start(ctx context.Context, binary, dir, policies string) (*Program, error) {
	p := &Program{binary: binary, dir: dir, client: &http.Client{Timeout: 10 * time.Second}}
	p.upstream = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := p.model.Load(); h != nil && strings.HasPrefix(r.URL.Path, "/model/") {
			http.StripPrefix("/model", *h).ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if seconds := p.busy.Load(); seconds > 0 {
			w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
			http.Error(w, "come back later", http.StatusServiceUnavailable)
			return
		}
		if tenant := r.Header.Get("Sluice-Tenant"); tenant != "" && tenant == p.failing.Load() {
			http.Error(w, "out of stock", http.StatusBadRequest)
			return
		}
		if r.Method == http.MethodPut { // only a forwarded request has it
			w.Header().Set("Content-Type", "image/png")
			w.Header().Set("Set-Cookie", "session=secret")
			_, _ = w.Write([]byte("\x89PNG\xff"))
		}
	}))
	ports, err := freePorts(3)
	if err != nil {
		p.upstream.Close()
		return nil, err
	}
	p.API, p.Admin, p.Model = "http://"+ports[0], "http://"+ports[1], "http://"+ports[2]
	config := fmt.Sprintf(`redis: { data_dir: %q }
api: { listen: %q }
admin: { listen: %q, token: %q, submit: true }
routes:
  default: { url: %[5]q }
  login: { url: %[5]q, headers: { X-Api-Key: "secret-of-the-route" } }
  orders: { url: %[5]q }
  partner: { forward: %[5]q }
  model: { forward: "%[5]s/model" }
forward:
  - { listen: %[7]q, route: model }
pools:
  erp: { rate: 40/s, capacity: 20000, concurrency: 100, routes: [orders] }
tenants:
%[6]s
`, filepath.Join(dir, "data"), ports[0], ports[1], Token, p.upstream.URL, policies, ports[2])
	if err := os.WriteFile(filepath.Join(dir, "sluice.yaml"), []byte(config), 0o600); err != nil {
		p.upstream.Close()
		return nil, err
	}
	if err := p.Run(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Serve serves what is forwarded by the listener of Model.
func (p *Program) Serve(h http.Handler) { p.model.Store(&h) }

// freePorts finds free addresses.
func freePorts(n int) ([]string, error) {
	var found []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // only once all are found, so that they differ
		found = append(found, l.Addr().String())
	}
	return found, nil
}

// Run starts the program, also after Stop, and waits until it accepts jobs.
func (p *Program) Run(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(filepath.Join(p.dir, "sluice.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(p.binary, "serve", "--config", filepath.Join(p.dir, "sluice.yaml"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	if err := cmd.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	p.cmd, p.log, p.exited = cmd, log, exited
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		if r, err := p.client.Get(p.Admin + "/readyz"); err == nil {
			_ = r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-exited:
			exited <- err
			logged, _ := os.ReadFile(log.Name())
			return fmt.Errorf("sluice ended: %w\n%s", err, logged)
		case <-ctx.Done():
			return fmt.Errorf("sluice is not ready: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}

// Stop ends the program in order.
func (p *Program) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil
	}
	defer func() { _ = p.log.Close() }()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	defer func() { p.cmd = nil }()
	select {
	case err := <-p.exited:
		return err
	case <-time.After(stopPatience):
		_ = p.cmd.Process.Kill()
		return errors.Join(errors.New("sluice does not stop"), <-p.exited)
	}
}

// Close ends the program and its upstream.
func (p *Program) Close() error {
	err := p.Stop()
	p.client.CloseIdleConnections()
	p.upstream.Close()
	return err
}

// Fail makes the upstream refuse every delivery of one tenant permanently; with "" it accepts them
// again. Another test may have left jobs, which do not fail.
func (p *Program) Fail(tenant string) { p.failing.Store(tenant) }

// Busy makes the upstream answer 503 with a Retry-After of that many seconds. With 0 it accepts
// deliveries.
func (p *Program) Busy(seconds int64) { p.busy.Store(seconds) }

// Call sends a request to the admin listener with the token, and decodes the answer into out unless
// that is nil.
func (p *Program) Call(ctx context.Context, method, path string, body, out any) error {
	return p.send(ctx, method, p.Admin+path, body, out)
}

// Submit submits n jobs of a tenant in one batch; those beyond the capacity are refused.
func (p *Program) Submit(ctx context.Context, tenant string, n int) error {
	return p.SubmitTo(ctx, tenant, "default", n)
}

// Forward sends a request of a tenant to route partner, with headers as pairs. It does not wait for
// the answer, and returns the id of the job.
func (p *Program) Forward(
	ctx context.Context, tenant, method, target, body string, header ...string,
) (string, error) {
	url := p.API + "/v1/forward/partner" + target
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	r.Header.Set("Sluice-Tenant", tenant)
	r.Header.Set("Prefer", "respond-async")
	answer, err := p.client.Do(r)
	if err != nil {
		return "", err
	}
	_ = answer.Body.Close()
	id := answer.Header.Get("Sluice-Job")
	if id == "" { // with one it is 202, or the answer of the upstream, if that was fast
		return "", fmt.Errorf("%s %s: %s", method, target, answer.Status)
	}
	return id, nil
}

// SubmitTo submits them to a route. Route orders is in the pool erp of 40/s.
func (p *Program) SubmitTo(ctx context.Context, tenant, route string, n int) error {
	type job struct {
		Type    string          `json:"type"`
		Route   string          `json:"route"`
		Payload json.RawMessage `json:"payload"`
	}
	batch := struct {
		Jobs []job `json:"jobs"`
	}{}
	for i := range n {
		batch.Jobs = append(batch.Jobs, job{"order.create", route, json.RawMessage(fmt.Sprintf(`{"order":%d}`, i))})
	}
	return p.sendAs(ctx, tenant, http.MethodPost, p.API+"/v1/jobs/batch", batch, nil)
}

func (p *Program) send(ctx context.Context, method, url string, body, out any) error {
	return p.sendAs(ctx, "", method, url, body, out)
}

func (p *Program) sendAs(ctx context.Context, tenant, method, url string, body, out any) error {
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(raw)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if tenant != "" {
		r.Header.Set("Sluice-Tenant", tenant)
	} else {
		r.Header.Set("Authorization", "Bearer "+Token)
	}
	answer, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	received, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode >= 300 {
		text := strings.TrimSpace(string(received))
		return fmt.Errorf("%s %s: %d %s", method, r.URL.Path, answer.StatusCode, text)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(received, out)
}
