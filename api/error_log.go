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

// errorLog logs refused and failed requests for operators, one line per burst.
type errorLog struct {
	log     *slog.Logger
	refused *burstlog.Log // jobs
	failed  *burstlog.Log // requests, for what the server or its store cannot do
	signOn  *burstlog.Log // sign-ins at the provider

	away   atomic.Bool // the last call of the store failed
	mu     sync.Mutex
	since  time.Time // of the first failure
	latest time.Time // of the last failure
}

func newErrorLog(log *slog.Logger) *errorLog {
	return &errorLog{
		log:     log,
		refused: burstlog.New(log, slog.LevelWarn, "jobs were refused", nil),
		failed:  burstlog.New(log, slog.LevelWarn, "requests failed", nil),
		signOn:  burstlog.New(log, slog.LevelWarn, "single sign-on has failed", nil),
	}
}

// decided notes the outcome of a submission, or of a forwarded request.
func (e *errorLog) decided(s queue.Submission, forwarded bool, a shaper.Admission) {
	k := outcomeOf(a.Outcome).kind(a)
	if forwarded && k == problem.DeadlineFarAway {
		k = problem.HopelessWait
	}
	if k != (problem.Kind{}) {
		e.refused.Add(burstlog.Key{Tenant: s.Tenant, Route: s.Route, Kind: k.Name}, 1)
	}
}

// fault notes a failed request with the cause, which the client does not see.
func (e *errorLog) fault(p *problem.Problem) {
	k := burstlog.Key{Kind: strings.TrimPrefix(p.Type, problem.URN)}
	if errors.Is(p.Cause, queue.ErrUnavailable) {
		if problem.OutOfMemory(p.Cause) {
			k.Kind = "out-of-memory"
		} else {
			e.lost()
		}
	}
	example := []any{"error", p.Cause}
	if errors.Is(p.Cause, queue.ErrUnavailable) {
		if advice := queue.Advice(p.Cause); advice != "" {
			example = append(example, "advice", advice)
		}
	}
	e.failed.Add(k, 1, example...)
}

func (e *errorLog) lost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest = time.Now()
	if !e.away.Swap(true) {
		e.since = e.latest
	}
}

// worked notes a request that the store has answered. The store counts as recovered after a second
// without failures: some of its nodes may still be down.
func (e *errorLog) worked() {
	if !e.away.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := time.Now(); now.Sub(e.latest) >= time.Second && e.away.Swap(false) {
		e.log.Info("the store answers requests again", "after", now.Sub(e.since).Round(time.Millisecond).String())
	}
}

// end logs the rest.
func (e *errorLog) end() {
	e.refused.Flush()
	e.failed.Flush()
	e.signOn.Flush()
}

// faultText describes a panic: the text of a runtime error, else only the type of the value, which
// might quote a client.
func faultText(fault any) string {
	if err, is := fault.(runtime.Error); is {
		return err.Error()
	}
	return fmt.Sprintf("%T", fault)
}
