// Package store is Redis as Sluice uses it: its keys, the kinds of its errors, and the calls of
// scripts. The packages below queue share one Store.
package store

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
)

// Large is from how many bytes on a text is large. Who gathers for an exchange keeps large texts
// apart, because what waits with them waits as long.
const Large = 8 << 10

// Weight is how long the scripts of an exchange take Redis. A client sends one that is heavy at
// once, with rests between them, and two that are medium.
type Weight int

// The weights. That of a context without one is Light.
const (
	Light Weight = iota
	Medium
	Heavy
)

type weightKey struct{}

// Weigh marks what is sent with the context.
func Weigh(ctx context.Context, w Weight) context.Context {
	return context.WithValue(ctx, weightKey{}, w)
}

// WeightOf returns the weight of what is sent with the context.
func WeightOf(ctx context.Context) Weight {
	w, _ := ctx.Value(weightKey{}).(Weight)
	return w
}

// Store sends commands and scripts to one Redis.
type Store struct {
	Keyspace
	Fast redis.UniversalClient // fails fast, because its callers wait
	// Reads fails fast, too. It has connections of its own for what clients and operators read, so
	// that no admission and no settlement waits for a connection behind a read.
	Reads   redis.UniversalClient
	Patient redis.UniversalClient // waits longer, because its callers can only try again
	// Durable sends the changes that a caller relies on: it waits for replicas where
	// redis.durability is set, and else is Fast.
	Durable redis.UniversalClient
	Near    func() bool          // reports whether Redis answers Durable soon
	Way     func() time.Duration // what its shortest exchange of late took; 0: there was none
	Observe scripts.Observer     // may be nil
	// Repair repairs what a call that failed with err found damaged. It reports whether the call
	// may be sent again.
	Repair func(ctx context.Context, call scripts.Call, err error) bool
	// Rest is called when the call fails again after Repair.
	Rest func(call scripts.Call)
}

// Cluster reports whether Redis is a cluster.
func (s *Store) Cluster() bool {
	_, cluster := s.Patient.(*redis.ClusterClient)
	return cluster
}

// Of returns the store of a *queue.Queue. Package queue sets it: a method of Queue that returns it
// would be open to every program.
var Of func(queue any) *Store

// Exec sends calls with the client and returns their replies in order. A call that fails at damaged
// data is sent once more after a repair.
func (s *Store) Exec(ctx context.Context, c scripts.Client, calls []scripts.Call) []scripts.Reply {
	replies := scripts.RunAll(ctx, c, s.Observe, calls)
	for i, r := range replies {
		if FaultOf(r.Err) == FaultScript && s.Repair(ctx, calls[i], r.Err) {
			replies[i] = scripts.RunAll(ctx, c, s.Observe, calls[i:i+1])[0]
			if FaultOf(replies[i].Err) == FaultScript {
				s.Rest(calls[i])
			}
		}
	}
	return replies
}

// Run sends one call with the fail-fast client.
func (s *Store) Run(ctx context.Context, call scripts.Call) ([]any, error) {
	r := s.Exec(ctx, s.Fast, []scripts.Call{call})[0]
	return r.Values, r.Err
}

// Read sends one call that only reads.
func (s *Store) Read(ctx context.Context, call scripts.Call) ([]any, error) {
	r := s.Exec(ctx, s.Reads, []scripts.Call{call})[0]
	return r.Values, r.Err
}

// RunDurable sends one call whose effect the caller relies on.
func (s *Store) RunDurable(ctx context.Context, call scripts.Call) ([]any, error) {
	r := s.Exec(ctx, s.Durable, []scripts.Call{call})[0]
	return r.Values, r.Err
}

// Confirm returns once replicas have what is stored beside the key now, where redis.durability is
// set. It is for answers that rely on an earlier change.
func (s *Store) Confirm(ctx context.Context, key string) error {
	if s.Durable == s.Fast {
		return nil
	}
	return Unavailable(s.Durable.HSet(ctx, FenceOf(key), "fence", 1).Err())
}

// RunPatient sends one call with the patient client. It repairs nothing.
func (s *Store) RunPatient(ctx context.Context, call scripts.Call) ([]any, error) {
	return scripts.Run(ctx, s.Patient, s.Observe, call)
}

// Invoke sends a call of package lua by send and decodes its answer.
func Invoke[R any](ctx context.Context, send func(context.Context, scripts.Call) ([]any, error), c interface {
	Call() scripts.Call
	Decode(values []any) (R, error)
},
) (answer R, err error) {
	values, err := send(ctx, c.Call())
	if err == nil {
		answer, err = c.Decode(values)
	}
	return answer, Unavailable(err)
}

// InvokeAll sends calls of one kind in one exchange and decodes their answers in order. With an
// error it returns the answers before it.
func InvokeAll[R any, C interface{ Call() scripts.Call }](
	ctx context.Context, s *Store, c scripts.Client, calls []C, decode func(C, []any) (R, error),
) ([]R, error) {
	sent, answers := make([]scripts.Call, len(calls)), make([]R, 0, len(calls))
	for i, c := range calls {
		sent[i] = c.Call()
	}
	for i, r := range s.Exec(ctx, c, sent) {
		answer, err := decode(calls[i], r.Values)
		if r.Err != nil {
			err = r.Err
		}
		if err != nil {
			return answers, Unavailable(err)
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// Pipeline sends a command for each item in one exchange, and returns the answers in their order.
func Pipeline[K, V any, C interface{ Val() V }](
	ctx context.Context, c redis.UniversalClient, items []K, command func(redis.Pipeliner, K) C,
) ([]V, error) {
	cmds, values := make([]C, len(items)), make([]V, len(items))
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, item := range items {
			cmds[i] = command(p, item)
		}
		return nil
	}); err != nil {
		return nil, Unavailable(err)
	}
	for i, cmd := range cmds {
		values[i] = cmd.Val()
	}
	return values, nil
}

// EachMaster calls ask for every master of a cluster, or for the one Redis there is. A dead replica
// therefore has no effect.
func EachMaster(
	ctx context.Context, c redis.UniversalClient, ask func(context.Context, scripts.Client) error,
) error {
	if cluster, many := c.(*redis.ClusterClient); many {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return ask(ctx, c) })
	}
	return ask(ctx, c)
}
