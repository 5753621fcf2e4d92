package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
)

// fakeStream gives events until it is closed.
type fakeStream struct {
	events chan client.Event
	closed chan struct{}
	once   sync.Once
}

func (s *fakeStream) Next() (client.Event, error) {
	select {
	case e, more := <-s.events:
		if !more {
			return e, io.EOF
		}
		return e, nil
	case <-s.closed:
		return client.Event{}, errors.New("closed")
	}
}

func (s *fakeStream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// streamOf is a stream of events, which then breaks, or stays open.
func streamOf(open bool, events ...string) eventStream {
	s := &fakeStream{events: make(chan client.Event, len(events)), closed: make(chan struct{})}
	for _, e := range events {
		name, data, _ := strings.Cut(e, "=")
		s.events <- client.Event{Name: name, Data: []byte(data)}
	}
	if !open {
		close(s.events)
	}
	return s
}

// runFeed follows streams, one a call of open, and returns what was opened and sent, with the time.
func runFeed(
	t *testing.T, patience time.Duration, open func(n int) (eventStream, error),
	meanwhile func(f *liveFeed, stop func()),
) (events []string, err error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	var mu sync.Mutex
	note := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, fmt.Sprintf("%v %s", time.Since(began), text))
	}
	n := 0
	f := &liveFeed{patience: patience, asked: make(chan client.View, 1)}
	f.open = func(_ context.Context, l client.View) (eventStream, error) {
		n++
		note("open " + l.Tenant)
		return open(n)
	}
	f.send = func(news any) {
		switch news := news.(type) {
		case linkNews:
			note(fmt.Sprintf("link %v", news.err))
		default:
			note(fmt.Sprintf("%T", news))
		}
	}
	if meanwhile != nil {
		go meanwhile(f, cancel)
	}
	err = f.run(ctx, client.View{Tenant: "a"})
	synctest.Wait()
	return events, err
}

// A stream that breaks is opened again after growing pauses, one of another view at once.
func TestFeedConnectsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, err := runFeed(t, 0, func(n int) (eventStream, error) {
			switch n {
			case 1:
				return streamOf(false, `overview={}`, `of another version=[]`, `tenants={"items":[]}`, `tenant={}`), nil
			case 2, 3:
				return nil, errors.New("connection refused")
			}
			return streamOf(true, `overview={}`), nil
		}, func(f *liveFeed, stop func()) {
			time.Sleep(10 * time.Second)
			f.ask(client.View{Tenant: "b"})
			time.Sleep(time.Second)
			stop()
		})
		want := []string{
			"0s open a", "0s link <nil>", "0s top.overviewNews", "0s top.tenantsNews", "0s top.tenantNews",
			"0s link the server has ended the stream: EOF",
			"250ms open a", "250ms link connection refused", "750ms open a", "750ms link connection refused",
			"1.75s open a", "1.75s link <nil>", "1.75s top.overviewNews",
			"10s open b", "10s link <nil>", "10s top.overviewNews",
		}
		if diff := cmp.Diff(want, events); diff != "" || err != nil {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}

// The feed ends if the first stream fails, if the server refuses it, or after an outage beyond its
// patience.
func TestFeedGivesUp(t *testing.T) {
	refused := &client.Error{Problem: wire.Problem{
		Title: "Credentials are missing or wrong", Status: http.StatusUnauthorized,
	}}
	starting := &client.Error{Problem: wire.Problem{Status: http.StatusServiceUnavailable}}
	away := errors.New("connection refused")
	for name, c := range map[string]struct {
		open  func(n int) (eventStream, error)
		opens int
		want  error
	}{
		"no server":         {func(int) (eventStream, error) { return nil, away }, 1, away},
		"refused":           {func(int) (eventStream, error) { return nil, refused }, 1, refused},
		"starting too long": {func(int) (eventStream, error) { return nil, starting }, 9, starting},
		"not Sluice": {func(int) (eventStream, error) {
			return streamOf(false, "overview=<html>"), nil
		}, 1, nil},
		"ends at once": {func(int) (eventStream, error) { return streamOf(false), nil }, 1, io.EOF},
		"refused later": {func(n int) (eventStream, error) {
			if n == 1 {
				return streamOf(false, "overview={}"), nil
			}
			return nil, refused
		}, 2, refused},
		"away too long": {func(n int) (eventStream, error) {
			if n == 1 {
				return streamOf(false, "overview={}"), nil
			}
			return nil, away
		}, 9, away},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opens := 0
				_, err := runFeed(t, 20*time.Second, func(n int) (eventStream, error) {
					opens = n
					return c.open(n)
				}, nil)
				if err == nil || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("it ends with %v, want %v", err, c.want)
				}
				queuetest.Compare(t, "streams that it opened", opens, c.opens)
			})
		})
	}
}

// The command requests its view, prints the lines, and has the exit code of its outcome.
func TestTopCommand(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		for name, want := range map[string]string{"q": "ac", "limit": "7", "sort": "name"} {
			queuetest.Compare(t, "the parameter "+name, r.URL.Query().Get(name), want)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w,
				"event: overview\n"+
					"data: {\"at\":\"2026-03-01T12:00:0%dZ\",\"tenants\":1,\"store\":{\"ok\":true},"+
					"\"routes\":[{\"route\":\"mail\",\"breaker\":\"closed\",\"in_flight\":2,\"ended\":40,\"failed\":7,"+
					"\"last_failure\":{\"tenant\":\"acme\",\"job\":\"j\",\"message\":\"the upstream answered 500\"}},"+
					"{\"route\":\"away\",\"breaker\":\"open\"},{\"route\":\"fine\",\"breaker\":\"closed\",\"ended\":40,\"failed\":1,"+
					"\"last_failure\":{\"tenant\":\"acme\",\"job\":\"j\",\"message\":\"m\"}}]}\n\n", i)
			_, _ = fmt.Fprintf(w,
				"event: tenants\n"+
					"data: {\"at\":\"2026-03-01T12:00:0%dZ\",\"matching\":1,\"items\":[{\"tenant\":\"acme\",\"rate\":{\"limit\":5,\"period_ms\":1000}}]}\n\n", i)
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	}))
	defer srv.Close()
	run := func(args ...string) (code int, out, problems string) {
		var o, e strings.Builder
		code = run(t.Context(), append([]string{"top", "--admin", srv.URL, "--search", "ac", "--limit", "7",
			"--sort", "name"}, args...), cli.Stdio{Out: &o, Err: &e}, nil)
		return code, o.String(), e.String()
	}
	code, out, problems := run("--admin-token", "s3cret", "-n", "2")
	want := "12:00:01 all: tenants 1 depth 0 running 0 in 0/s out 0/s refused 0/s workers 0 store ok\n" +
		"12:00:01 route mail: breaker closed in flight 2 7 of 40 failed, last acme: the upstream answered 500\n" +
		"12:00:01 route away: breaker open in flight 0\n" +
		"12:00:01 acme: rate 5/s by  depth 0/0 running 0 in 0/s out 0/s refused 0/s oldest -\n"
	if code != cli.ExitOK {
		t.Errorf("exit code %d\n%s%s", code, out, problems)
	}
	if !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 8 {
		t.Errorf("got\n%swant eight lines, the first four being\n%s", out, want)
	}
	if code, out, problems = run("--admin-token", "s3cret", "-n", "1", "--json"); code != cli.ExitOK {
		t.Errorf("with --json: exit code %d\n%s%s", code, out, problems)
	}
	if !strings.HasPrefix(out, `{"overview":`) || strings.Count(out, "\n") != 1 {
		t.Errorf("with --json: got\n%swant one line, an overview", out)
	}
	code, out, problems = run("--admin-token", "wrong")
	queuetest.Compare(t, "the exit code with a wrong token", code, cli.ExitFailed)
	queuetest.Compare(t, "the output with a wrong token", out, "")
	queuetest.Contains(t, "the errors with a wrong token", problems, "401")
	if code, _, problems = run("--limit", "501"); code != cli.ExitUsage ||
		!strings.Contains(problems, "--limit: 501: must be") {
		t.Errorf("exit code %d, %s", code, problems)
	}
}
