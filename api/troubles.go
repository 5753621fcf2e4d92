package api

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// troubles logs refused and failed requests for operators, one line per burst.
type troubles struct {
	log     *slog.Logger
	refused *burstlog.Log // jobs
	failed  *burstlog.Log // requests, for what the server or its store cannot do
	signOn  *burstlog.Log // sign-ins at the provider

	away   atomic.Bool // the last call of the store failed
	mu     sync.Mutex
	since  time.Time // of the first failure
	latest time.Time // of the last failure
}

func newTroubles(log *slog.Logger) *troubles {
	return &troubles{
		log:     log,
		refused: burstlog.New(log, slog.LevelWarn, "jobs were refused", nil),
		failed:  burstlog.New(log, slog.LevelWarn, "requests failed", nil),
		signOn:  burstlog.New(log, slog.LevelWarn, "single sign-on has failed", nil),
	}
}

// decided notes the outcome of a submission, or of a forwarded request.
func (t *troubles) decided(s queue.Submission, forwarded bool, a shaper.Admission) {
	k := outcomeOf(a.Outcome).kind(a)
	if forwarded && k == problem.DeadlineFarAway {
		k = problem.HopelessWait
	}
	if k != (problem.Kind{}) {
		t.refused.Add(burstlog.Key{Tenant: s.Tenant, Route: s.Route, Kind: k.Name}, 1)
	}
}

// fault notes a failed request with the cause, which the client does not see.
func (t *troubles) fault(p *problem.Problem) {
	k := burstlog.Key{Kind: strings.TrimPrefix(p.Type, problem.URN)}
	if errors.Is(p.Cause, queue.ErrUnavailable) {
		if strings.Contains(p.Cause.Error(), "OOM ") { // of Redis at its maxmemory
			k.Kind = "out-of-memory"
		} else {
			t.lost()
		}
	}
	example := []any{"error", p.Cause}
	if errors.Is(p.Cause, queue.ErrUnavailable) {
		if advice := queue.Advice(p.Cause); advice != "" {
			example = append(example, "advice", advice)
		}
	}
	t.failed.Add(k, 1, example...)
}

func (t *troubles) lost() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = time.Now()
	if !t.away.Swap(true) {
		t.since = t.latest
	}
}

// worked notes a request that the store has answered. The store counts as recovered after a second
// without failures: some of its nodes may still be down.
func (t *troubles) worked() {
	if !t.away.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.latest) >= time.Second && t.away.Swap(false) {
		t.log.Info("the store answers requests again", "after", now.Sub(t.since).Round(time.Millisecond).String())
	}
}

// end logs the rest.
func (t *troubles) end() {
	t.refused.Flush()
	t.failed.Flush()
	t.signOn.Flush()
}

// faultText describes a panic: the text of a runtime error, else only the type of the value, which
// might quote a client.
func faultText(fault any) string {
	if err, is := fault.(runtime.Error); is {
		return err.Error()
	}
	return fmt.Sprintf("%T", fault)
}
