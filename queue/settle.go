package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// maxAttempts is what a record can count.
const maxAttempts = 1<<16 - 1

// Consumer returns a consumer of the shard for the worker with this id, which must be unique to the
// process. There may be only one consumer for a worker and a shard.
func (b *Broker) Consumer(worker string, shard int) *Consumer {
	return &Consumer{b: b, shard: b.store.Shard(shard), worker: worker, counter: 1}
}

var outcomeOf = map[shaper.Event]scripts.Outcome{
	shaper.Succeed: scripts.OutcomeSucceeded, shaper.Retry: scripts.OutcomeRetry, shaper.Die: scripts.OutcomeDead,
	shaper.Hold:    scripts.OutcomeHeld,
	shaper.Release: scripts.OutcomeReleased, shaper.LeaseExpired: scripts.OutcomeLapsed,
}

var settleResults = map[scripts.SettleCode]SettleResult{
	scripts.CodeSettled: Settled, scripts.CodeRepeated: Repeated, scripts.CodeStale: Stale, scripts.CodeDied: Died,
	scripts.CodeCut: Cut,
}

// Settle ends leases, of any shards. results[i] belongs to batch[i]. With an error, results[i] is
// empty where the outcome is unknown. After ErrUnavailable send these settlements again. ErrScript
// concerns these settlements alone, because each was also sent by itself. A shard that does not
// answer does not stop the others, but the call waits for it until ctx ends.
func (b *Broker) Settle(ctx context.Context, batch []Settlement) (results []SettleResult, err error) {
	results = make([]SettleResult, len(batch))
	for i := range results {
		results[i] = Stale // remains for an id that no shard has
	}
	items, answered := make([]scripts.SettleItem, len(batch)), int64(0)
	for i, t := range batch {
		if t.Answer != nil && b.headroom.noAnswers(ctx) {
			t.Answer = []byte{}
		}
		answered += int64(len(t.Answer))
		if items[i], err = b.settleItem(t); err != nil {
			return nil, err
		}
	}
	kind := func(i int) (string, time.Duration, int) {
		bytes := len(items[i].Result)
		if bytes > 0 && batch[i].Event != shaper.Succeed {
			bytes += batch[i].PayloadBytes
		}
		return batch[i].ID, batch[i].Retention, bytes
	}
	failed := b.perShard(ctx, len(batch), kind, func(g group) (scripts.Call, func([]any) error) {
		s := g.shard
		call := scripts.SettleCall{
			Clock: s.Clock(), Due: s.Due(), Expires: s.Expires(), Leases: s.Leases(), Outbox: s.Outbox(),
			Horizon: b.horizon, Retention: b.retention, Pools: b.policies.Current().HasPools(s),
		}
		if g.retention > 0 {
			call.Retention.Finished, call.Kept = g.retention, b.headroom.answers(ctx)
		}
		for _, i := range g.items {
			items[i].Key = s.Job(batch[i].ID)
			if t := batch[i]; t.Event == shaper.Succeed && t.PayloadAt > 0 && len(items[i].Result) >= scripts.AsideFrom {
				items[i].Aside, items[i].PayloadAt = s.Aside(t.ID, t.Epoch), t.PayloadAt
			}
			call.Items = append(call.Items, items[i])
		}
		return call.Call(), func(values []any) error {
			codes, err := call.Decode(values)
			for k, code := range codes {
				results[g.items[k]] = settleResults[code]
			}
			return err
		}
	})
	b.headroom.answered(answered)
	var relayed []string
	for _, t := range batch {
		if t.Relayed {
			relayed = append(relayed, t.ID)
		}
	}
	if len(relayed) > 0 {
		b.linger(ctx, relayed)
	}
	for _, f := range failed {
		for _, i := range f.items {
			results[i] = ""
		}
	}
	return results, errorOf(failed)
}

// settleItem encodes a settlement, without its key.
func (b *Broker) settleItem(t Settlement) (scripts.SettleItem, error) {
	if t.MaxAttempts < 0 || t.MaxAttempts > maxAttempts {
		return scripts.SettleItem{}, fmt.Errorf("queue: max_attempts %d, want 0 to %d", t.MaxAttempts, maxAttempts)
	}
	if c := t.ActualCost; c != nil && (*c < 0 || *c > shaper.MaxCost) {
		return scripts.SettleItem{}, fmt.Errorf("queue: actual cost %d, want 0 to %d", *c, shaper.MaxCost)
	}
	delay := min(max(t.Delay, 0), shaper.MaxPeriod)
	item := scripts.SettleItem{Epoch: t.Epoch, Outcome: outcomeOf[t.Event], Delay: delay, MaxAttempts: t.MaxAttempts}
	if t.Event == shaper.Hold {
		item.Cause = t.Cause.encode()
	}
	if item.Outcome == 0 {
		return item, fmt.Errorf("queue: a lease does not end by %q", t.Event)
	}
	if t.Event == shaper.Die && t.Final {
		item.Outcome = scripts.OutcomeFailed
	}
	if t.Event == shaper.Retry && t.Overload {
		item.Outcome = scripts.OutcomeOverload
	}
	if t.Event == shaper.Release && t.Missed {
		item.Outcome = scripts.OutcomeMissed
	}
	if t.Event == shaper.Release { // no attempt: the record keeps its result
		return item, nil
	}
	item.ActualCost = t.ActualCost
	if t.Event == shaper.LeaseExpired { // no attempt either
		return item, nil
	}
	if t.Error != nil || t.Response != nil || len(t.Log) > 0 || t.ActualCost != nil || t.Answer != nil {
		if b.box.Sealing() && t.Tenant == "" {
			return item, fmt.Errorf("queue: the settlement of job %s needs its tenant, because the store is encrypted", t.ID)
		}
		r := result{Error: t.Error, Response: t.Response, Log: t.log(), ActualCost: t.ActualCost, answer: t.Answer}
		if n := len(t.Log); r.Error == nil && n > 0 {
			r.Error = &JobError{Message: t.Log[n-1].Message, Status: t.Log[n-1].Status, At: t.Log[n-1].At}
		}
		var err error
		if item.Result, err = r.encode(b.box, store.EncodeName(t.Tenant), t.ID); err != nil {
			return item, err
		}
	}
	return item, nil
}

// Bounds of the log of a job's attempts.
const (
	maxLog     = 20
	logMessage = 200
)

// log is the log of attempts with this one. A job that succeeds at the first attempt has none,
// because its response is enough.
func (t Settlement) log() []Attempt {
	if len(t.Log) == 0 && t.Error == nil {
		return nil
	}
	a := Attempt{Number: t.Attempt, Event: t.Event, At: time.Now().UTC()}
	if t.Event == shaper.Retry && t.MaxAttempts > 0 && t.Attempt >= t.MaxAttempts {
		a.Event = shaper.Die
	}
	if t.Error != nil {
		a.Status, a.Message = t.Error.Status, t.Error.Message
		a.Message = strings.ToValidUTF8(a.Message[:min(len(a.Message), logMessage)], "")
		if !t.Error.At.IsZero() {
			a.At = t.Error.At
		}
	} else if t.Response != nil {
		a.Status = t.Response.Status
	}
	log := append(slices.Clone(t.Log), a)
	return log[max(0, len(log)-maxLog):]
}
