// Package scripts composes the scripts of package lua, sends them, and has a typed call and reply
// for each. It also holds the layout of the records and the lines of policies that they read.
package scripts

import (
	"context"
	"crypto/fips140"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Script is one command. Its source is linked when it is first asked for, because many programs
// that import this package send none.
type Script struct {
	Name   string        // of its file, without .lua; behind it _pools, if it is the Pools of another
	Source func() string // the script with what it uses of lib, without comments
	SHA    func() string // of the source, for EVALSHA
	Pools  *Script       // the same command for shards with pools; nil where one script is for all
}

func newScript(name string, source func() string) *Script {
	source = sync.OnceValue(source)
	return &Script{Name: name, Source: source, SHA: sync.OnceValue(func() string {
		var sum [sha1.Size]byte
		// It is a name that Redis chose and protects nothing, so FIPS mode may allow it.
		fips140.WithoutEnforcement(func() { sum = sha1.Sum([]byte(source())) })
		return hex.EncodeToString(sum[:])
	})}
}

// For returns the script for a shard that has pools, or has none.
func (s *Script) For(pools bool) *Script {
	if pools && s.Pools != nil {
		return s.Pools
	}
	return s
}

// File is the file of the script in package lua, without .lua.
func (s *Script) File() string { return strings.TrimSuffix(s.Name, poolsSuffix) }

const poolsSuffix = "_pools"

// NewScript returns a script that is none of the commands.
func NewScript(name, source string) *Script { return newScript(name, func() string { return source }) }

// Scripts are all the commands.
type Scripts struct {
	Tick, Redeliver, Reclaim, Expire, Retune, Forget *Script // of a poll; see TickCall

	Admit, Settle, Extend, Cancel, Replay, Claim, Handed, Tune, Status, Scan, Heartbeat, Publish, Declare, Repair, Restore, Used, Relay, Erase *Script

	FixedWindow, SlidingLog, SlidingCounter, TokenBucket, LeakyMeter *Script

	Chain, Trail *Script // of the audit
}

// Commands are the scripts of this build.
var Commands = Scripts{
	Tick: twice("tick"), Redeliver: command("redeliver"), Reclaim: command("reclaim"),
	Expire: command("expire"), Retune: command("retune"), Forget: command("forget"),

	Admit: twice("admit"), Settle: twice("settle"), Extend: command("extend"),
	Cancel: command("cancel"), Replay: command("replay"), Claim: command("claim"), Handed: command("handed"),
	Tune: command("tune"), Status: command("status"),
	Scan: command("scan"), Heartbeat: command("heartbeat"), Publish: command("publish"), Declare: command("declare"), Repair: command("repair"), Restore: command("restore"),
	Used: command("used"), Relay: command("relay"), Erase: command("erase"),

	FixedWindow: command("fixed_window"), SlidingLog: command("sliding_log"),
	SlidingCounter: command("sliding_counter"),
	TokenBucket:    command("token_bucket"), LeakyMeter: command("leaky_meter"),

	Chain: command("chain"), Trail: command("trail"),
}

var all []*Script

func command(name string) *Script {
	s := newScript(name, func() string { return link(name, true) })
	all = append(all, s)
	return s
}

// twice is a command that is linked without pools, and with them: a job outside pools costs Redis
// less that way. Without pools it stops before its first write where it meets one.
func twice(name string) *Script {
	s := newScript(name, func() string { return link(name, false) })
	all = append(all, s)
	s.Pools = command(name)
	s.Pools.Name += poolsSuffix
	return s
}

// All lists the scripts.
func (Scripts) All() []*Script { return slices.Clone(all) }

// Call is one script with its keys and arguments.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any
	// Before go to Redis in the same exchange, before the script. They carry large texts: to pass
	// 1 MB through a script takes Redis 4 ms, to store it by a command of its own 1 ms.
	Before []Command
	// Atomic makes the commands and the script one transaction: where Redis refuses one of them, it
	// does nothing. Such a call is sent by itself.
	Atomic bool
	// Inline makes the same call with the texts as arguments. It is sent where Redis had lost one
	// of them when the script ran; nil: none may get lost.
	Inline func() Call
	// Typed makes the same call with the types of its jobs. It is sent where a policy needs them;
	// nil: none does.
	Typed func() Call
}

func (s *Script) call(keys []string, args []any) Call { return Call{Script: s, Keys: keys, Args: args} }

// Command is a command of Redis.
type Command struct {
	Args []any
	// Harmless reports whether the call goes on without the command; nil: always.
	Harmless func(error) bool
}

// before sends the commands of a call, and returns their error once they were answered.
func (c Call) before(ctx context.Context, p redis.Pipeliner) (failed func() error) {
	sent := make([]*redis.Cmd, len(c.Before))
	for i, b := range c.Before {
		sent[i] = p.Do(ctx, b.Args...)
	}
	return func() error {
		for i, b := range c.Before {
			if err := sent[i].Err(); err != nil && b.Harmless != nil && !b.Harmless(err) {
				return err
			}
		}
		return nil
	}
}

// Reply is the answer to a Call: an array, and the error of this call alone.
type Reply struct {
	Values []any
	Err    error
}

// Client is the part of a Redis client that the scripts need.
type Client interface {
	redis.Scripter
	Pipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error)
	TxPipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error)
}

// Observer is called after each script call with its duration and error. Calls of one pipeline have
// the duration of the whole pipeline.
type Observer func(script string, took time.Duration, err error)

// Load loads the scripts that the server does not know, so that the first calls need not send their
// sources. In a cluster it loads them into one node; the others get them by the fallback of Run.
func Load(ctx context.Context, c Client) error {
	scripts := Commands.All()
	hashes := make([]string, len(scripts))
	for i, s := range scripts {
		hashes[i] = s.SHA()
	}
	known, err := c.ScriptExists(ctx, hashes...).Result()
	if err == nil {
		_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, s := range scripts {
				if !known[i] {
					p.ScriptLoad(ctx, s.Source())
				}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("load the scripts: %w", err)
	}
	return nil
}

// instead returns the call that must be sent in place of one that stopped before its first write,
// because it lacks something that it was not given for the sake of speed.
func (c Call) instead(err error) (again Call, is bool) {
	stopped := func(text string) bool { return err != nil && strings.Contains(err.Error(), text) }
	switch {
	case c.Script.Pools != nil && stopped("POOLS are needed"):
		c.Script = c.Script.Pools
		return c, true
	case c.Typed != nil && stopped("TYPES are needed"):
		again = c.Typed()
		again.Script = c.Script
		return again, true
	case c.Inline != nil && stopped("ASIDE is missing"): // Redis has lost what came before
		return c.Inline(), true
	}
	return c, false
}

// Run sends one call by its SHA, and by its source if the server has not loaded the script. It
// sends the call once more, with the script for shards with pools or inline, if that is needed.
func Run(ctx context.Context, c Client, observe Observer, call Call) ([]any, error) {
	if len(call.Before) > 0 {
		r := RunAll(ctx, c, observe, []Call{call})[0]
		return r.Values, r.Err
	}
	start := time.Now()
	cmd := bySHA(ctx, c, call)
	if unknown(cmd) {
		cmd = bySource(ctx, c, call)
	}
	r := decode(call, cmd)
	again, is := call.instead(r.Err)
	if is {
		r.Err = nil // for the observer: nothing is wrong
	}
	if observe != nil {
		observe(call.Script.Name, time.Since(start), r.Err)
	}
	if is {
		return Run(ctx, c, observe, again)
	}
	return r.Values, r.Err
}

// RunAll sends the calls in one pipeline, each by its SHA. It sends those whose script the server
// has not loaded again, by source, and those that need the script for shards with pools. The
// replies are in the order of the calls.
func RunAll(ctx context.Context, c Client, observe Observer, calls []Call) []Reply {
	if len(calls) == 1 && len(calls[0].Before) == 0 {
		values, err := Run(ctx, c, observe, calls[0])
		return []Reply{{values, err}}
	}
	start := time.Now()
	replies, left := make([]Reply, len(calls)), make([]int, len(calls))
	for i := range left {
		left[i] = i
	}
	failed := make([]func() error, len(calls))
	pipelined := c.Pipelined
	if len(calls) == 1 && calls[0].Atomic {
		pipelined = c.TxPipelined
	}
	for _, send := range []func(context.Context, redis.Scripter, Call) *redis.Cmd{bySHA, bySource} {
		cmds := make([]*redis.Cmd, 0, len(left))
		// The pipeline's own error is that of its first failed command; each command has its own.
		_, _ = pipelined(ctx, func(p redis.Pipeliner) error {
			for _, i := range left {
				if failed[i] == nil {
					failed[i] = calls[i].before(ctx, p)
				}
				cmds = append(cmds, send(ctx, p, calls[i]))
			}
			return nil
		})
		var again []int
		for n, i := range left {
			if replies[i] = decode(calls[i], cmds[n]); unknown(cmds[n]) {
				again = append(again, i)
			} else if err := failed[i](); err != nil && replies[i].Err == nil {
				replies[i] = Reply{Err: fmt.Errorf("before script %s: %w", calls[i].Script.Name, err)}
			}
		}
		if left = again; left == nil {
			break
		}
	}
	took := time.Since(start)
	for i, call := range calls {
		again, is := call.instead(replies[i].Err)
		if is {
			replies[i].Err = nil
		}
		if observe != nil {
			observe(call.Script.Name, took, replies[i].Err)
		}
		if is {
			replies[i].Values, replies[i].Err = Run(ctx, c, observe, again)
		}
	}
	return replies
}

func bySHA(ctx context.Context, c redis.Scripter, call Call) *redis.Cmd {
	return c.EvalSha(ctx, call.Script.SHA(), call.Keys, call.Args...)
}

func bySource(ctx context.Context, c redis.Scripter, call Call) *redis.Cmd {
	return c.Eval(ctx, call.Script.Source(), call.Keys, call.Args...)
}

func unknown(cmd *redis.Cmd) bool {
	return cmd.Err() != nil && redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT")
}

// ErrReply means that an answer breaks the contract of its script.
var ErrReply = errors.New("unexpected reply")

func decode(call Call, cmd *redis.Cmd) Reply {
	v, err := cmd.Result()
	if err != nil {
		return Reply{Err: fmt.Errorf("script %s: %w", call.Script.Name, err)}
	}
	values, ok := v.([]any)
	if !ok {
		return Reply{Err: fmt.Errorf("script %s: %w: %T instead of an array", call.Script.Name, ErrReply, v)}
	}
	return Reply{Values: values}
}

// reader reads the fields of a reply in order and keeps the first error.
type reader struct {
	values []any
	at     int
	err    error
}

func take[T int64 | string | []any](r *reader) (v T) {
	if r.at >= len(r.values) {
		r.fail("too short")
		return v
	}
	v, ok := r.values[r.at].(T)
	r.at++
	if !ok {
		r.fail(fmt.Sprintf("field %d is a %T, not a %T", r.at, r.values[r.at-1], v))
	}
	return v
}

func (r *reader) int() int64   { return take[int64](r) }
func (r *reader) text() string { return take[string](r) }
func (r *reader) list() []any  { return take[[]any](r) }

// join adopts the error of another reader, unless this one has an error.
func (r *reader) join(other reader) {
	if r.err == nil {
		r.err = other.err
	}
}

func (r *reader) more() bool { return r.err == nil && r.at < len(r.values) }

func (r *reader) fail(why string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrReply, why)
	}
}
