package callback

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Whatever a service runs in the background must end with its Run.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	oldSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	newSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

// newService is a service that has what it needs, and no Redis behind it unless the configuration
// names one.
func newService(t *testing.T, cfg Config) *Service {
	t.Helper()
	if cfg.Redis == nil {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		t.Cleanup(func() { _ = client.Close() }) // never used
		cfg.Redis = client
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Job = func(j queue.Job) ([]byte, error) {
		return json.Marshal(map[string]any{"id": j.ID, "note": "<confidential>"})
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// completion is a job that has ended in this state.
func completion(state shaper.State, epoch int64) queue.Completion {
	return queue.Completion{
		Job: queue.Job{
			ID: "06ah2job", Tenant: "acme", State: state,
			Finished: time.Date(2026, 7, 1, 12, 0, 0, 250e6, time.FixedZone("", 7200)),
		},
		Epoch: epoch, CallbackURL: "http://partner.example/hooks?token=hunter2",
	}
}

// call is one request that a receiver got.
type call struct {
	at     time.Time
	target string
	header http.Header
	body   []byte
}

// bench is a bubble of virtual time with an embedded Redis and a receiver at
// http://partner.example/, both reached through pipes.
type bench struct {
	*testing.T
	redis     redis.UniversalClient
	inspector *asynq.Inspector
	dials     chan net.Conn
	answer    atomic.Pointer[func(n int) int] // the status of the nth request, from 1

	mu    sync.Mutex
	calls []call
	log   bytes.Buffer
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(*bench)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
			Embedded: true, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{
			T: t, redis: engine.Client(), inspector: asynq.NewInspectorFromRedisClient(engine.Client()),
			dials: make(chan net.Conn),
		}
		server := &http.Server{Handler: b, ErrorLog: log.New(io.Discard, "", 0)}
		served := make(chan error, 1)
		go func() { served <- server.Serve(b) }()
		t.Cleanup(func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
			<-served
			if err := engine.Close(); err != nil {
				t.Error(err)
			}
			for _, secret := range []string{
				"hunter2", "confidential", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "http://",
			} {
				if strings.Contains(b.log.String(), secret) {
					t.Errorf("the log tells %q:\n%s", secret, b.log.String())
				}
			}
		})
		test(b)
	})
}

// The bench is the listener of its receiver's server.
func (b *bench) Accept() (net.Conn, error) {
	if conn, ok := <-b.dials; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (b *bench) Close() error   { close(b.dials); return nil }
func (b *bench) Addr() net.Addr { return &net.UnixAddr{Name: "bench", Net: "unix"} }

// dial is what the service's callers dial.
func (b *bench) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	b.dials <- there
	return here, nil
}

// tarpitHost never answers.
const tarpitHost = "tarpit.example"

// answers sets the statuses of the requests to come, the last one from then on; 0 is no answer at
// all.
func (b *bench) answers(statuses ...int) {
	begin := len(b.got())
	answer := func(n int) int { return statuses[min(n-begin, len(statuses))-1] }
	b.answer.Store(&answer)
}

func (b *bench) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.Host == tarpitHost {
		<-r.Context().Done()
		return
	}
	b.mu.Lock()
	b.calls = append(b.calls, call{time.Now(), r.Method + " " + r.Host + r.URL.RequestURI(), r.Header, body})
	n := len(b.calls)
	b.mu.Unlock()
	status := (*b.answer.Load())(n)
	if status == 0 {
		<-r.Context().Done()
		return
	}
	w.Header().Set("Location", "/elsewhere")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "confidential")
}

func (b *bench) got() []call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// Write makes the bench the log.
func (b *bench) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(p)
}

// service is a service that may call the receiver, with a log at its most talkative.
func (b *bench) service(cfg Config) *Service {
	b.Helper()
	cfg.Redis, cfg.Receivers = b.redis, receivers(b.T, "http://partner.example/", "http://"+tarpitHost+"/")
	cfg.Logger = slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := newService(b.T, cfg)
	s.listed.Transport.DialContext = b.dial
	return s
}

// run starts a service; the returned function stops it and tells how long that took.
func (b *bench) run(s *Service) (stop func() time.Duration) {
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() time.Duration {
		begin := time.Now()
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		return time.Since(begin)
	}
}

func (b *bench) handOver(s *Service, completions ...queue.Completion) {
	b.Helper()
	for _, c := range completions {
		if err := s.HandOver(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}

// pass lets virtual time pass.
func (b *bench) pass(d time.Duration) { <-time.After(d) }

// counts are delivered, failed, archived and handed over.
func counts(s *Service) [4]float64 {
	of := func(outcome string) float64 { return testutil.ToFloat64(s.metrics.attempts.WithLabelValues(outcome)) }
	return [4]float64{of(delivered), of(failed), of(archived), testutil.ToFloat64(s.metrics.handedOver)}
}

// verify checks a request's signature; a receiver knows one secret.
func (b *bench) verify(c call, secret string) error {
	hook, err := webhooks.NewWebhook(secret)
	if err != nil {
		b.Fatal(err)
	}
	return hook.VerifyIgnoringTimestamp(c.body, c.header)
}

// onCommand is a hook of commands that are not in a pipeline.
type onCommand func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

func (onCommand) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h onCommand) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h(ctx, cmd, next) }
}

func (onCommand) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
