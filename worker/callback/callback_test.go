package callback

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func TestRequestIsAsTheContractSays(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(204)
		s := b.service(Config{Secrets: []string{newSecret, oldSecret}})
		defer b.run(s)()
		states := map[shaper.State]string{
			shaper.Succeeded: "succeeded", shaper.Dead: "dead", shaper.Expired: "expired",
			shaper.Cancelled: "cancelled",
		}
		for state, name := range states {
			b.handOver(s, completion(state, 3))
			b.pass(3 * time.Second)
			calls := b.got()
			last := calls[len(calls)-1]
			if want := "POST partner.example/hooks?token=hunter2"; last.target != want {
				t.Errorf("%s, want %s", last.target, want)
			}
			body := `{"type":"job.` + name +
				`","timestamp":"2026-07-01T10:00:00.25Z","data":{"id":"06ah2job",` +
				`"note":"\u003cconfidential\u003e"}}`
			if string(last.body) != body {
				t.Errorf("body %s, want %s", last.body, body)
			}
			if err := errors.Join(b.verify(last, newSecret), b.verify(last, oldSecret)); err != nil {
				t.Error(err)
			}
			if n := len(strings.Fields(last.header.Get("webhook-signature"))); n != 2 {
				t.Errorf("%d signatures, want 2", n)
			}
			last.header.Del("webhook-signature")
			want := http.Header{
				"Content-Type": {"application/json"}, "User-Agent": {"sluice"},
				"Content-Length": {strconv.Itoa(len(body))},
				"Webhook-Id":     {"06ah2job:3:" + name}, "Webhook-Timestamp": {strconv.FormatInt(last.at.Unix(), 10)},
			}
			if diff := cmp.Diff(want, last.header); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
		}
		if got := counts(s); len(b.got()) != 4 || got != [4]float64{4, 0, 0, 4} {
			t.Errorf("%d requests, counted %v", len(b.got()), got)
		}
	})
}

func TestWithoutSecretsNothingIsSigned(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(200)
		s := b.service(Config{})
		defer b.run(s)()
		b.handOver(s, completion(shaper.Dead, 1))
		b.pass(3 * time.Second)
		if calls := b.got(); len(calls) != 1 || calls[0].header["Webhook-Signature"] != nil {
			t.Errorf("the requests are %+v, want one without a signature", calls)
		}
	})
}

// A receiver that fails in every way gets the same body and id each time, signed anew, after
// growing pauses.
func TestRetries(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(500, 302, 0, 101, 200)
		s := b.service(Config{Secrets: []string{oldSecret}})
		defer b.run(s)()
		b.handOver(s, completion(shaper.Succeeded, 1))
		b.pass(3 * time.Minute)
		calls := b.got()
		if got := counts(s); len(calls) != 5 || got != [4]float64{1, 4, 0, 1} {
			t.Fatalf("%d requests, counted %v", len(calls), got)
		}
		for i := range 4 {
			// asynq looks for what is due every five seconds, and for tasks twice a second.
			low := firstPause << i
			high := low*3/2 + 7*time.Second
			if i == 2 {
				high += s.cfg.Timeout
			}
			if gap := calls[i+1].at.Sub(calls[i].at); gap < low-time.Second || gap > high {
				t.Errorf("pause %d is %v, want %v to %v", i, gap, low, high)
			}
			if !bytes.Equal(calls[i+1].body, calls[0].body) ||
				calls[i+1].header.Get("webhook-id") != calls[0].header.Get("webhook-id") {
				t.Errorf("attempt %d differs", i+2)
			}
			err := b.verify(calls[i+1], oldSecret)
			if err != nil ||
				calls[i+1].header.Get("webhook-timestamp") == calls[i].header.Get("webhook-timestamp") {
				t.Errorf("attempt %d is not signed anew: %v", i+2, err)
			}
		}
	})
}

func TestRetriesAreSignedWithTheSecretsOfToday(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(503, 200)
		s := b.service(Config{Secrets: []string{oldSecret}})
		stop := b.run(s)
		b.handOver(s, completion(shaper.Succeeded, 1))
		b.pass(3 * time.Second)
		stop()
		defer b.run(b.service(Config{Secrets: []string{newSecret}}))()
		b.pass(20 * time.Second)
		calls := b.got()
		if len(calls) != 2 {
			t.Fatalf("%d requests", len(calls))
		}
		if err := b.verify(calls[0], oldSecret); err != nil {
			t.Errorf("the first attempt is not signed with the secret of then: %v", err)
		}
		if err := b.verify(calls[1], newSecret); err != nil {
			t.Errorf("the second attempt is not signed with the secret of now: %v", err)
		}
		if b.verify(calls[1], oldSecret) == nil {
			t.Error("the second attempt is signed with a secret that was removed")
		}
	})
}

// A callback is archived with the reason: after the last attempt, or at once where a retry cannot
// help.
func TestArchive(t *testing.T) {
	for name, row := range map[string]struct {
		status   int
		url      string
		requests int
		why      string
	}{
		"after the last attempt": {500, "", 3, "the receiver answered 500 Internal Server Error"},
		"redirects":              {307, "", 3, "the receiver answered 307 Temporary Redirect"},
		"too slow":               {0, "", 3, "no answer within 10s"},
		"gone":                   {410, "", 1, "the receiver answered 410 Gone: skip retry for the task"},
		"no longer allowed": {
			200, "http://user:hunter2@partner.example/", 0,
			"the callback URL must not have user information: skip retry for the task",
		},
		"not a public address": {
			200, "http://[64:ff9b::7f00:1]/hunter2", 0,
			"the callback URL must lead to a public address, or be below a URL of callbacks.allow or an endpoint of the tenant: skip retry for the task",
		},
		"no URL, by a stranger": {
			200, " ", 0,
			"the callback URL must be ASCII without spaces, backslashes and control characters: other " +
				"characters are percent-encoded, names of hosts in their xn-- form: skip retry for the task",
		},
		"a status without a name": {599, "", 3, "the receiver answered 599"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				b.answers(row.status)
				s := b.service(Config{MaxAttempts: 3})
				defer b.run(s)()
				c := completion(shaper.Expired, 0)
				if row.url != "" {
					c.CallbackURL = row.url
				}
				b.handOver(s, c)
				b.pass(2 * time.Minute)
				archived, err := b.inspector.ListArchivedTasks(Queue)
				if err != nil || len(archived) != 1 {
					t.Fatalf("%d archived, %v", len(archived), err)
				}
				if a := archived[0]; a.ID != "06ah2job:0:expired" || a.LastErr != row.why {
					t.Errorf("%s: %q, want %q", a.ID, a.LastErr, row.why)
				}
				want := [4]float64{0, float64(max(0, row.requests-1)), 1, 1}
				if len(b.got()) != row.requests || counts(s) != want {
					t.Errorf("%d requests, counted %v, want %d and %v", len(b.got()), counts(s), row.requests, want)
				}
			})
		})
	}
}

// A process delivers tasks that others left, in its first moment or within 75 seconds.
func TestTasksOfOthers(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(200)
		other := b.service(Config{})
		stop := b.run(b.service(Config{}))
		b.pass(10 * time.Second)
		b.handOver(other, completion(shaper.Dead, 1))
		b.pass(77 * time.Second)
		if n := len(b.got()); n != 1 {
			t.Errorf("%d requests", n)
		}
		stop()
		b.handOver(other, completion(shaper.Dead, 2))
		defer b.run(b.service(Config{}))()
		b.pass(2 * time.Second)
		if n := len(b.got()); n != 2 {
			t.Errorf("%d requests", n)
		}
	})
}

// TestStop: a stop waits for a running attempt, but not for longer than the grace; then the task is
// put back and no attempt is counted.
func TestStop(t *testing.T) {
	for name, row := range map[string]struct {
		grace     time.Duration
		delivered bool
	}{"within the grace": {20 * time.Second, true}, "beyond the grace": {3 * time.Second, false}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				slow := func(n int) int {
					if n == 1 {
						b.pass(8 * time.Second)
					}
					return 200
				}
				b.answer.Store(&slow)
				s := b.service(Config{Grace: row.grace})
				stop := b.run(s)
				b.handOver(s, completion(shaper.Dead, 1))
				b.pass(2 * time.Second)
				took := stop()
				synctest.Wait()
				want := [4]float64{0, 0, 0, 1}
				if row.delivered {
					want[0] = 1
				}
				if took > row.grace+time.Second || counts(s) != want {
					t.Errorf("stopped after %v, counted %v", took, counts(s))
				}
				defer b.run(b.service(Config{}))()
				b.pass(20 * time.Second)
				if n := len(b.got()); (n == 1) != row.delivered {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
}

// A callback passes through a real Redis, which was away at first.
func TestOnRedis(t *testing.T) {
	server := redistest.Start(t)
	options, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	options.MaxRetries, options.DialerRetries = -1, 1
	client := redis.NewClient(options)
	defer client.Close()
	got := make(chan string, 10)
	failed := false
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("webhook-id")
		if !failed {
			failed = true
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer receiver.Close()
	s := newService(t, Config{Redis: client, Receivers: receivers(t, receiver.URL)})
	s.server.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
	s.server.DelayedTaskCheckInterval = 20 * time.Millisecond
	c := completion(shaper.Succeeded, 1)
	c.CallbackURL = receiver.URL + "/hooks"

	server.Kill()
	if err := s.HandOver(t.Context(), c); err == nil {
		t.Error("a callback is handed over without Redis")
	}
	server.Restart()
	for range 2 {
		if err := s.HandOver(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for range 2 {
		select {
		case id := <-got:
			if id != "06ah2job:1:succeeded" {
				t.Errorf("webhook-id %q", id)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no request")
		}
	}
	cancel()
	if err := <-done; err != nil || len(got) != 0 {
		t.Errorf("%v, %d further requests", err, len(got))
	}
}

// Hostile answers are bounded, and the status alone decides on a retry.
func TestHostileAnswers(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 16 {
		_, _ = z.Write(make([]byte, 1<<20)) // into memory
	}
	_ = z.Close()
	for path, row := range map[string]struct {
		answer    func(w http.ResponseWriter)
		delivered bool
	}{
		"/endless body": {func(w http.ResponseWriter) {
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, true},
		"/slow body": {func(w http.ResponseWriter) {
			for {
				if _, err := w.Write([]byte("x")); err != nil || http.NewResponseController(w).Flush() != nil {
					return
				}
				<-time.After(10 * time.Millisecond)
			}
		}, true},
		"/endless headers": {func(w http.ResponseWriter) {
			for i := range 1000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 100))
			}
		}, false},
		"/gzip bomb": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			for {
				if _, err := w.Write(bomb.Bytes()); err != nil {
					return
				}
			}
		}, true},
		"/interim answers": {func(w http.ResponseWriter) {
			w.Header().Set("Link", "</"+strings.Repeat("x", 100)+">")
			for range 1000 {
				w.WriteHeader(http.StatusEarlyHints)
			}
		}, false},
		"/slow headers": {func(w http.ResponseWriter) {
			conn, _, err := http.NewResponseController(w).Hijack()
			for end := time.Now().Add(10 * time.Second); err == nil &&
				time.Now().Before(end); <-time.After(5 * time.Millisecond) {
				_, err = conn.Write([]byte("H"))
			}
			if conn != nil {
				_ = conn.Close()
			}
		}, false},
		"/claims gzip": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte("not gzip"))
		}, true},
		"/breaks off": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, false},
	} {
		t.Run(path[1:], func(t *testing.T) {
			encodings := make(chan string, 10)
			receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				encodings <- r.Header.Get("Accept-Encoding")
				row.answer(w)
			}))
			defer receiver.Close()
			s := newService(t, Config{Receivers: receivers(t, receiver.URL), Timeout: 500 * time.Millisecond})
			defer s.listed.Transport.CloseIdleConnections()
			err := s.attempt(t.Context(), "06ah:1:dead", task(receiver.URL+"/x"), true)
			if (err == nil) != row.delivered || errors.Is(err, asynq.SkipRetry) {
				t.Error(err)
			}
			if encoding := <-encodings; encoding != "" {
				t.Errorf("accepts %s", encoding)
			}
		})
	}
}

// Transports use no proxy and are bounded. Only those of public targets have a control of the dial.
func TestTransports(t *testing.T) {
	s := newService(t, Config{Receivers: receivers(t)})
	for name, c := range map[string]*outbound.Client{"listed": s.listed, "public": s.public} {
		tr := c.Transport
		for what, good := range map[string]bool{
			"uses no proxy": tr.Proxy == nil, "decompresses nothing": tr.DisableCompression,
			"verifies certificates by default": !tr.TLSClientConfig.InsecureSkipVerify,
			"bounds the connections of a host": tr.MaxConnsPerHost > 0,
			"bounds the headers of an answer":  tr.MaxResponseHeaderBytes > 0,
		} {
			queuetest.Compare(t, "the transport of "+name+" targets "+what, good, true)
		}
	}
	if s.listed.Dialer.Control("tcp4", "127.0.0.1:80", nil) != nil || s.public.Dialer.Control("tcp4", "127.0.0.1:80", nil) == nil {
		t.Error("a listed target is refused, or a public one may be loopback")
	}
}

// A certificate that cannot be verified fails the attempt, which is retried.
func TestCertificatesAreVerified(t *testing.T) {
	receiver := httptest.NewUnstartedServer(http.NotFoundHandler())
	receiver.Config.ErrorLog = log.New(io.Discard, "", 0)
	receiver.StartTLS()
	defer receiver.Close()
	s := newService(t, Config{Receivers: receivers(t, receiver.URL)})
	err := s.attempt(t.Context(), "06ah:1:dead", task(receiver.URL+"/x"), true)
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v, want an error of the certificate", err)
	}
	if errors.Is(err, asynq.SkipRetry) {
		t.Errorf("%v is final, want retries", err)
	}
}

// Pauses double up to the longest one, plus up to half at random. Fifteen attempts take about a
// day.
func TestPauses(t *testing.T) {
	for range 100 {
		var sum time.Duration
		for n := range 14 {
			wait := pause(n)
			if low := min(firstPause<<n, longestPause); wait < low || wait >= low*3/2 {
				t.Errorf("pause %d is %v", n, wait)
			}
			sum += wait
		}
		if sum < 17*time.Hour || sum > 26*time.Hour+30*time.Minute {
			t.Errorf("15 attempts take %v", sum)
		}
	}
	if wait := pause(1000); wait < longestPause || wait > 2*longestPause {
		t.Errorf("the last pause is %v", wait)
	}
}

// All problems of the settings are reported at once, without secrets.
func TestNewListsEveryProblem(t *testing.T) {
	_, err := New(Config{
		Secrets: []string{oldSecret, "whsec_", "whsec_hunter2?"}, MaxAttempts: 1, Timeout: -1,
		Concurrency: -1, Grace: -1,
	})
	var ps shaper.Problems
	if !errors.As(err, &ps) {
		t.Fatalf("error %v", err)
	}
	var fields []string
	for _, p := range ps {
		fields = append(fields, p.Field)
	}
	want := []string{
		"redis", "receivers", "job", "secrets[1]", "secrets[2]", "timeout", "max_attempts", "concurrency",
		"grace",
	}
	if diff := cmp.Diff(want, fields); diff != "" || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("fields (-want +got):\n%s\n%v", diff, err)
	}
}

// TestEncryptedTasks: of an encrypted store asynq keeps neither URL nor body of a callback, nor an
// error that names its receiver; the receiver gets both as they are. A process without the key
// spends no attempt.
func TestEncryptedTasks(t *testing.T) {
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	file := filepath.Join(t.TempDir(), "codec.key")
	if err := sealed.AddKey(file); err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(t.Context(), engine, queue.Options{Shards: 1, Encryption: queue.Encryption{KeyFile: file}})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	calls := make(chan string, 1)
	var fail atomic.Bool
	fail.Store(true)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if fail.Load() {
			panic(http.ErrAbortHandler)
		}
		body, _ := io.ReadAll(r.Body)
		calls <- r.URL.Path + " " + string(body)
	}))
	defer receiver.Close()
	s := newService(t, Config{Redis: engine.Client(), Receivers: receivers(t, receiver.URL), Sealer: q.Sealer()})
	c := completion(shaper.Succeeded, 1)
	c.CallbackURL = receiver.URL + "/hidden-path"
	if err := s.HandOver(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	tasks, err := asynq.NewInspectorFromRedisClient(engine.Client()).ListPendingTasks(usual(s, c).name)
	if err != nil || len(tasks) != 1 {
		t.Fatalf("%d tasks, %v", len(tasks), err)
	}
	stored := fmt.Sprint(tasks[0].Headers) + string(tasks[0].Payload)
	if strings.Contains(stored, "hidden-path") || strings.Contains(stored, "confidential") {
		t.Errorf("asynq keeps %q", stored)
	}
	task := asynq.NewTaskWithHeaders(taskType, tasks[0].Payload, tasks[0].Headers)
	if err := s.attempt(t.Context(), tasks[0].ID, task, false); err == nil || strings.Contains(unquoted{err}.Error(), "127.0.0.1") {
		t.Errorf("a failure is kept as %q", unquoted{err})
	}
	fail.Store(false)
	if err := s.attempt(t.Context(), tasks[0].ID, task, false); err != nil {
		t.Fatal(err)
	}
	if got := <-calls; !strings.HasPrefix(got, "/hidden-path ") || !strings.Contains(got, "confidential") {
		t.Errorf("the receiver got %q", got)
	}
	if err := s.attempt(t.Context(), "other:1:succeeded", task, false); !errors.Is(err, asynq.SkipRetry) {
		t.Errorf("a task under another id: %v", err)
	}
	without := newService(t, Config{Redis: engine.Client(), Receivers: receivers(t, receiver.URL)})
	if err := without.attempt(t.Context(), tasks[0].ID, task, true); err == nil || isFailure(err) {
		t.Errorf("without the key: %v, want it postponed", err)
	}
}

// TestFailuresAreLogged: operators learn soon why no call arrives. No log has what a URL hides, see
// inBubble.
func TestFailuresAreLogged(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(401)
		s := b.service(Config{})
		stop := b.run(s)
		b.handOver(s, completion(shaper.Succeeded, 1))
		b.pass(10 * time.Second)
		stop()
		if text := b.log.String(); !strings.Contains(text, "attempts at callbacks failed") {
			t.Error(text)
		}
	})
}
