package queue_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
)

// cutAdmission cuts the append-only file in the middle of the last admission: its job is in the
// queue there, and nothing is counted.
func cutAdmission(t *testing.T, s *redistest.Server) {
	t.Helper()
	dir := filepath.Dir(strings.TrimPrefix(s.URL(), "unix://"))
	files, err := filepath.Glob(filepath.Join(dir, "appendonlydir", "*.incr.aof"))
	if err != nil || len(files) != 1 {
		t.Fatalf("append-only files: %q, %v", files, err)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(files[0], int64(bytes.LastIndex(content, []byte("MSET"))+6)); err != nil {
		t.Fatal(err)
	}
}

// TestHalfATransaction: after a power cut within a transaction, no later start of Redis runs its
// first half. Without the right to rewrite the file, the log has what to do.
func TestHalfATransaction(t *testing.T) {
	t.Parallel()
	for name, rights := range map[string]string{"permitted": "+@all", "denied": "-bgrewriteaof"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			c := client(t, s.URL())
			starts := 0
			start := func() {
				t.Helper()
				s.Kill()
				if starts++; starts == 2 {
					cutAdmission(t, s)
				}
				s.Restart()
				if err := c.Do(t.Context(), "acl", "setuser", "u", "on", ">p", "~*", "&*", "+@all", rights).Err(); err != nil {
					t.Fatal(err)
				}
			}
			rewritten := func() bool {
				info := c.Info(t.Context(), "persistence").Val()
				return strings.Contains(info, "aof_rewrite_in_progress:0") && !strings.Contains(info, "aof_last_rewrite_time_sec:-1")
			}
			var log queuetest.Log
			warned := func() bool { return strings.Count(log.String(), "run BGREWRITEAOF by hand") == starts-1 }
			done := map[string]func() bool{"permitted": rewritten, "denied": warned}[name]
			start()
			q := open(t, queue.EngineOptions{
				URL: strings.Replace(s.URL(), "://", "://u:p@", 1), Logger: slog.New(slog.DiscardHandler),
			}, func(o *queue.Options) {
				defaults(o)
				o.Shards, o.Logger = 1, log.Logger(slog.LevelInfo)
			})
			consumer := q.Broker().Consumer("w", 0)
			leaseAll(t, consumer)
			for range 3 {
				admit(t, q)
			}
			start()
			leaseAll(t, consumer)
			await(t, "the file is dealt with", done)
			if name == "denied" {
				return
			}
			admit(t, q)
			start()
			admit(t, q)
			if _, err := q.Check(t.Context(), false, func(found []queue.Finding) error {
				t.Errorf("found %+v", found)
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// failing has each rewrite of the append-only file fail, as INFO tells.
type failing struct{}

func (failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if info, is := cmd.(*redis.StringCmd); is && cmd.Name() == "info" {
			info.SetVal(strings.Replace(info.Val(), "aof_last_bgrewrite_status:ok", "aof_last_bgrewrite_status:err", 1))
		}
		return err
	}
}

// TestRewriteFails: the log has a rewrite that failed, and what to do, once for all shards.
func TestRewriteFails(t *testing.T) {
	t.Parallel()
	var log queuetest.Log
	s := redistest.Start(t)
	q := open(t, queue.EngineOptions{URL: s.URL(), Logger: slog.New(slog.DiscardHandler)}, func(o *queue.Options) {
		o.Logger = log.Logger(slog.LevelInfo)
	}, failing{})
	poll := func() {
		for shard := range 4 {
			leaseAll(t, q.Broker().Consumer("w", shard))
		}
	}
	poll()
	s.Kill()
	s.Restart()
	poll()
	await(t, "the log says that it failed", func() bool {
		return strings.Contains(log.String(), "aof_last_bgrewrite_status:err")
	})
	if n := strings.Count(log.String(), "run BGREWRITEAOF by hand"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}
