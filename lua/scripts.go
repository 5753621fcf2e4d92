// Package lua holds the scripts that run inside Redis: their sources, how they are sent, and the
// typed form of what they take and answer. One file is one command; its header is its contract, and
// a test reads it. The arithmetic in lib/bucket.lua is that of package shaper, step for step; a
// parity test holds the two together.
//
// The scripts are plain Lua 5.1 and use nothing that the embedded engine lacks. What several of
// them need stands once, in lib, and is put before the script that asks for it.
package lua

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed *.lua lib/*.lua
var sources embed.FS

// Script is one command. What is sent to Redis is composed when it is first asked for: many a
// program that imports this package sends none.
type Script struct {
	Name string // of its file, without .lua

	composed func() (source, sha string)
}

func newScript(name string, source func() string) *Script {
	return &Script{name, sync.OnceValues(func() (string, string) {
		text := source()
		sum := sha1.Sum([]byte(text))
		return text, hex.EncodeToString(sum[:])
	})}
}

// Source is the script with what it uses of lib, without comments.
func (s *Script) Source() string {
	source, _ := s.composed()
	return source
}

// SHA is what EVALSHA knows the script by.
func (s *Script) SHA() string {
	_, sha := s.composed()
	return sha
}

// Scripts are all the commands.
type Scripts struct {
	Tick, Redeliver, Reclaim, Expire, Retune, Forget *Script // of a poll; see TickCall

	Admit, Settle, Heartbeat, Cancel, Replay, Claim, Handed, Tune, Status, Scan, Beat, Declare, Mend *Script

	FixedWindow, SlidingLog, SlidingCounter, TokenBucket, LeakyMeter *Script
}

// Commands are the scripts of this build.
var Commands = Scripts{
	Tick: command("tick"), Redeliver: command("redeliver"), Reclaim: command("reclaim"), Expire: command("expire"), Retune: command("retune"),
	Forget: command("forget"),

	Admit: command("admit"), Settle: command("settle"), Heartbeat: command("heartbeat"),
	Cancel: command("cancel"), Replay: command("replay"), Claim: command("claim"), Handed: command("handed"), Tune: command("tune"), Status: command("status"),
	Scan: command("scan"), Beat: command("beat"), Declare: command("declare"), Mend: command("mend"),

	FixedWindow: command("fixed_window"), SlidingLog: command("sliding_log"), SlidingCounter: command("sliding_counter"),
	TokenBucket: command("token_bucket"), LeakyMeter: command("leaky_meter"),
}

func command(name string) *Script { return newScript(name, func() string { return compose(name) }) }

// All lists the scripts.
func (s Scripts) All() []*Script {
	return []*Script{
		s.Tick, s.Redeliver, s.Reclaim, s.Expire, s.Retune, s.Forget,
		s.Admit, s.Settle, s.Heartbeat, s.Cancel, s.Replay, s.Claim, s.Handed, s.Tune, s.Status, s.Scan, s.Beat, s.Declare, s.Mend,
		s.FixedWindow, s.SlidingLog, s.SlidingCounter, s.TokenBucket, s.LeakyMeter,
	}
}

const includeMark = "--! include "

// compose reads a script, puts what it uses of the parts of lib that it names before it, and drops
// comment lines, which the embedded engine would parse again on every call. The files are embedded,
// so a failure is a mistake in this package, which every test would show.
func compose(name string) string {
	text, includes := code(name + ".lua")
	var lib []statement
	for _, part := range includes {
		lib = append(lib, libraries()[part]...)
	}
	return fold(prune(lib, statements(text)))
}

// libraries are the parts of lib, read once for all scripts.
var libraries = sync.OnceValue(func() map[string][]statement {
	out := map[string][]statement{}
	files, _ := sources.ReadDir("lib")
	for _, file := range files {
		text, _ := code("lib/" + file.Name())
		out[strings.TrimSuffix(file.Name(), ".lua")] = statements(text)
	}
	// Behind the first line of record.lua, the short names of the string library.
	out["record"] = slices.Insert(out["record"], 1, statements(layout())...)
	return out
})

// code is a source without comments, and the parts of lib that it names.
func code(file string) (text string, includes []string) {
	raw, err := sources.ReadFile(file)
	if err != nil {
		panic(fmt.Sprintf("lua: %s is not embedded: %v", file, err))
	}
	var out strings.Builder
	out.Grow(len(raw))
	for line := range strings.Lines(string(raw)) {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, includeMark):
			includes = strings.Fields(strings.TrimPrefix(trimmed, includeMark))
		case trimmed == "" || strings.HasPrefix(trimmed, "--"):
		default:
			statement, _, _ := strings.Cut(line, " -- ")
			out.WriteString(strings.TrimRight(statement, "\n"))
			out.WriteByte('\n')
		}
	}
	return out.String(), includes
}

// Call is one script with its keys and arguments.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any
}

// Reply is the answer to a Call: an array, and the error of this call alone.
type Reply struct {
	Values []any
	Err    error
}

// Client is what the scripts need of a Redis client.
type Client interface {
	redis.Scripter
	Pipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error)
}

// Observer is called after each script call with its duration and error. Calls of one pipeline have
// the duration of the whole pipeline.
type Observer func(script string, took time.Duration, err error)

// Load makes all scripts known to the server, so that the first calls need not send their sources.
// In a cluster it loads them where the client sends keyless commands; the other nodes learn them by
// the fallback of Run.
func Load(ctx context.Context, c Client) error {
	for _, s := range Commands.All() {
		if err := c.ScriptLoad(ctx, s.Source()).Err(); err != nil {
			return fmt.Errorf("load script %s: %w", s.Name, err)
		}
	}
	return nil
}

// Run sends one call by its SHA and, where the server does not know the script, by its source.
func Run(ctx context.Context, c Client, observe Observer, call Call) ([]any, error) {
	start := time.Now()
	cmd := c.EvalSha(ctx, call.Script.SHA(), call.Keys, call.Args...)
	if unknown(cmd.Err()) {
		cmd = c.Eval(ctx, call.Script.Source(), call.Keys, call.Args...)
	}
	r := decode(call, cmd)
	if observe != nil {
		observe(call.Script.Name, time.Since(start), r.Err)
	}
	return r.Values, r.Err
}

// RunAll sends the calls in one pipeline, each by its SHA, then those whose script the server did
// not know once more by source. The replies are in the order of the calls; each has its own error.
func RunAll(ctx context.Context, c Client, observe Observer, calls []Call) []Reply {
	if len(calls) == 1 {
		values, err := Run(ctx, c, observe, calls[0])
		return []Reply{{values, err}}
	}
	start := time.Now()
	replies := make([]Reply, len(calls))
	send := func(which []int, by func(redis.Pipeliner, Call) *redis.Cmd) (again []int) {
		cmds := make([]*redis.Cmd, len(which))
		// The pipeline's own error is that of its first failed command; each command has its own.
		_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for n, i := range which {
				cmds[n] = by(p, calls[i])
			}
			return nil
		})
		for n, i := range which {
			if unknown(cmds[n].Err()) {
				again = append(again, i)
			}
			replies[i] = decode(calls[i], cmds[n])
		}
		return again
	}
	all := make([]int, len(calls))
	for i := range all {
		all[i] = i
	}
	again := send(all, func(p redis.Pipeliner, call Call) *redis.Cmd {
		return p.EvalSha(ctx, call.Script.SHA(), call.Keys, call.Args...)
	})
	if len(again) > 0 {
		send(again, func(p redis.Pipeliner, call Call) *redis.Cmd {
			return p.Eval(ctx, call.Script.Source(), call.Keys, call.Args...)
		})
	}
	if observe != nil {
		took := time.Since(start)
		for i, call := range calls {
			observe(call.Script.Name, took, replies[i].Err)
		}
	}
	return replies
}

func unknown(err error) bool {
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}

// ErrReply means that a script answered something else than its contract says.
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

// reader takes the fields of a reply one after another and remembers the first that is not what it
// should be.
type reader struct {
	values []any
	at     int
	err    error
}

func (r *reader) next() any {
	if r.at >= len(r.values) {
		r.fail("too short")
		return nil
	}
	r.at++
	return r.values[r.at-1]
}

func (r *reader) int() int64 {
	switch v := r.next().(type) {
	case int64:
		return v
	default:
		r.fail(fmt.Sprintf("field %d is a %T, not a number", r.at, v))
		return 0
	}
}

func (r *reader) text() string {
	switch v := r.next().(type) {
	case string:
		return v
	default:
		r.fail(fmt.Sprintf("field %d is a %T, not a string", r.at, v))
		return ""
	}
}

func (r *reader) list() []any {
	switch v := r.next().(type) {
	case []any:
		return v
	default:
		r.fail(fmt.Sprintf("field %d is a %T, not an array", r.at, v))
		return nil
	}
}

// join takes over the error of another reader, if this one has none.
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
