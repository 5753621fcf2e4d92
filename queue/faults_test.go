package queue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

// reply is an error reply of Redis.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// FaultOf distinguishes an unreachable Redis, an error of its state and an error of the stored
// data. The replies are those of Redis 6.2, Redis 7 and the embedded engine.
func TestFaultOf(t *testing.T) {
	t.Parallel()
	const inScript = " script: 2b5c, on @user_script:7."
	for want, errs := range map[queue.Fault][]error{
		"": {nil, context.Canceled, fmt.Errorf("gone: %w", context.Canceled)},
		queue.FaultTransport: {
			io.EOF, context.DeadlineExceeded, redis.ErrClosed, redis.ErrPoolTimeout,
			errors.New("dial tcp: refused"), queue.ErrUnavailable,
		},
		queue.FaultState: {
			reply("LOADING Redis is loading the dataset in memory"),
			reply("OOM command not allowed when used memory > 'maxmemory'."),
			reply("OOM command not allowed when used memory > 'maxmemory'." + inScript),
			reply("READONLY You can't write against a read only replica."),
			reply("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist " +
				"to disk."), reply("CLUSTERDOWN The cluster is down"),
			reply("BUSY Redis is busy running a script."), reply("MASTERDOWN Link with MASTER is down"),
			reply("TRYAGAIN Multiple keys request during rehashing of slot"),
			reply("ERR Script attempted to access a non local key in a cluster node script: f1, on @user_script:1."),
			reply("NOREPLICAS Not enough good replicas to write."), reply("MOVED 3999 127.0.0.1:6381"),
			reply("ASK 3999 127.0.0.1:6381"),
			reply("NOSCRIPT No matching script."), reply("NOAUTH Authentication required."),
			reply("WRONGPASS invalid username-password pair"),
			reply("NOPERM this user has no permissions to run the 'info' command"),
			reply("ERR max number of clients reached"),
			reply("ERR Error running script (call to f_2b5c): @user_script:7: @user_script: 7: -OOM " +
				"command not allowed when used memory > 'maxmemory'."),
			reply("ERR Error running script (call to f_2b5c): @user_script:7: @user_script: 7: -READONLY " +
				"You can't write against a read only replica."),
			reply("ERR Error running script (call to f_2b5c): @user_script:1: Script killed by user with " +
				"SCRIPT KILL..."),
			reply("ERR unknown command 'EVALSHA', with args beginning with: "),
			reply("ERR The user executing the script can't run this command or subcommand" + inScript),
			reply("ERR Protocol error: unauthenticated multibulk length"),
			reply("ERR Unknown Redis command called from script" + inScript),
			reply("ERR something that this version does not know"), reply("NEWCODE of a later version"),
			reply("NEWCODE of a later version" + inScript),
			fmt.Errorf("script admit: %w", reply("LOADING Redis is loading the dataset in memory")),
		},
		queue.FaultScript: {
			reply("WRONGTYPE Operation against a key holding the wrong kind of value"), redis.Nil,
			reply("ERR user_script:7: DAMAGED clock" + inScript), reply("ERR hash value is not an integer"),
			reply("ERR Error compiling script (new function): <string>:7: DAMAGED clock"),
			reply("WRONGTYPE Operation against a key holding the wrong kind of value" + inScript),
			reply("ERR user_script:7: attempt to perform arithmetic on a nil value" + inScript),
			reply("ERR hash value is not an integer" + inScript),
			reply("ERR Error running script (call to f_2b5c): @user_script:7: WRONGTYPE Operation against " +
				"a key holding the wrong kind of value"),
			fmt.Errorf("script tick: %w", reply("ERR value is not a valid float")),
			fmt.Errorf("script tick: %w: too short", scripts.ErrReply), scripts.ErrRecord,
		},
	} {
		for _, err := range errs {
			if got := queue.FaultOf(err); got != want {
				t.Errorf("%v is %q, want %q", err, got, want)
			}
		}
	}
}

// TestFaultsOfAnEngine: the three kinds as the engines themselves cause them. Damage is no outage,
// and an outage is no damage.
func TestFaultsOfAnEngine(t *testing.T) {
	t.Parallel()
	want := func(t *testing.T, what string, err error, fault queue.Fault) {
		t.Helper()
		if got := queue.FaultOf(err); got != fault {
			t.Errorf("%s: %q, want %q: %v", what, got, fault, err)
		}
		if away := errors.Is(err, queue.ErrUnavailable); away == (fault == queue.FaultScript) {
			t.Errorf("%s: unavailable: %v: %v", what, away, err)
		}
		if errors.Is(err, queue.ErrState) != (fault == queue.FaultState) ||
			errors.Is(err, queue.ErrScript) != (fault == queue.FaultScript) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, c := damageable(t, options(t))
			if _, err := q.Submit(t.Context(), work()); err != nil {
				t.Fatal(err)
			}
			if err := c.HSet(t.Context(), store.NewKeyspace(1).Shard(0).Flow("acme/default"), "depth", "many").Err(); err != nil {
				t.Fatal(err)
			}
			_, err := q.Submit(t.Context(), work())
			want(t, "no number", err, queue.FaultScript)
		})
	}
	t.Run("maxmemory", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t, "--maxmemory", "1")
		e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: s.URL(), AllowUnsafe: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close() }()
		_, err = queue.Open(t.Context(), e, queue.Options{})
		want(t, "a full Redis", err, queue.FaultState)
		s.Kill()
		_, err = queue.Open(t.Context(), e, queue.Options{})
		want(t, "a Redis that has ended", err, queue.FaultTransport)
	})
}

// damageable opens a queue of one shard, and the client that damages what it stores.
func damageable(t *testing.T, o queue.EngineOptions) (*queue.Queue, redis.UniversalClient) {
	t.Helper()
	e, err := queue.OpenEngine(t.Context(), o)
	if err != nil {
		t.Fatalf("OpenEngine: %v", err)
	}
	q, err := queue.Open(t.Context(), e, queue.Options{Shards: 1})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(q.Close(), e.Close()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return q, e.Client()
}
