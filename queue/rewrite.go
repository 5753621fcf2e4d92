package queue

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// rewriteFiles makes each master write its append-only file anew, if it has not done so since its
// start. A power cut in the middle of a transaction leaves the first half of it in the file: Redis
// does not run that half, but neither does it remove it. The next start would run it together with
// the transaction behind it, or, with Valkey, neither (its pull request 4342). What Redis holds in
// memory is right, so a file made of that is, too.
func (b *Broker) rewriteFiles() {
	if !b.rewriting.CompareAndSwap(false, true) {
		return // all shards meet a new master at the same time
	}
	b.restoring.Go(func() {
		defer b.rewriting.Store(false)
		ctx, cancel := context.WithTimeout(b.running, memoryAge)
		defer cancel()
		if err := store.EachMaster(ctx, b.store.Patient, rewriteFile); err != nil && ctx.Err() == nil {
			b.log.Warn("redis has not rewritten its append-only file: after a power cut half a transaction may stand "+
				"there, which its next start runs; permit +bgrewriteaof, or run BGREWRITEAOF by hand", "error", err)
		}
	})
}

// rewriteFile has one master rewrite its file. Redis 6.2 and later report -1 s for a rewrite that
// never was.
func rewriteFile(ctx context.Context, c scripts.Client) error {
	node := c.(redis.Cmdable)
	info, err := node.Info(ctx, "persistence").Result()
	if err != nil {
		return err
	}
	for _, sign := range []string{
		"aof_enabled:1", "aof_last_rewrite_time_sec:-1", "aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0",
	} {
		if !strings.Contains(info, sign+"\r\n") {
			return nil
		}
	}
	if err := node.BgRewriteAOF(ctx).Err(); err != nil && !strings.Contains(err.Error(), "already in progress") {
		return err
	}
	return nil
}
