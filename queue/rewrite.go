package queue

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Pauses of rewriteFiles.
const (
	rewriteLooks = time.Second      // while a file is rewritten, or Redis is away
	rewriteAgain = 10 * time.Minute // after a failure
)

var errNotRewritten = errors.New("the rewrite has failed (aof_last_bgrewrite_status:err)")

// rewriteFiles makes each master write its append-only file anew, if it has not done so since its
// start. A power cut in the middle of a transaction leaves the first half of it in the file: Redis
// does not run that half, but neither does it remove it. The next start would run it together with
// the transaction behind it, or, with Valkey, neither (its pull request 4342). What Redis holds in
// memory is right, so a file made of that is, too. id is the replication id of the master that has
// been met.
func (b *Broker) rewriteFiles(id string) {
	if _, begun := b.rewritten.LoadOrStore(id, true); begun {
		return // all shards meet a new master at the same time
	}
	b.restoring.Go(func() {
		for {
			err := store.EachMaster(b.running, b.store.Patient, rewriteFile)
			if err == nil || b.running.Err() != nil {
				return
			}
			pause := rewriteLooks
			if errors.Is(err, errNotRewritten) || store.FaultOf(err) != store.FaultTransport {
				pause = rewriteAgain
				b.log.Warn("redis has not rewritten its append-only file: after a power cut half a transaction may "+
					"stand there, which its next start runs; permit +bgrewriteaof, or run BGREWRITEAOF by hand",
					"error", err)
			}
			select {
			case <-time.After(pause):
			case <-b.running.Done():
			}
		}
	})
}

// rewriteFile has one master rewrite its file, and waits for the end. Redis 6.2 and later report -1
// s for a rewrite that never was.
func rewriteFile(ctx context.Context, c scripts.Client) error {
	node := c.(redis.Cmdable)
	for asked := false; ctx.Err() == nil; {
		info, err := node.Info(ctx, "persistence").Result()
		if err != nil {
			return err
		}
		says := func(field string) bool { return strings.Contains(info, field+"\r\n") }
		failed := says("aof_last_bgrewrite_status:err")
		switch {
		case !says("aof_enabled:1"):
			return nil
		case says("aof_rewrite_in_progress:1"), says("aof_rewrite_scheduled:1"):
			select {
			case <-time.After(rewriteLooks):
			case <-ctx.Done():
			}
		case !asked && (failed || says("aof_last_rewrite_time_sec:-1")):
			asked = true
			if err := node.BgRewriteAOF(ctx).Err(); err != nil && !strings.Contains(err.Error(), "already in progress") {
				return err
			}
		case failed:
			return errNotRewritten
		default:
			return nil
		}
	}
	return ctx.Err()
}
