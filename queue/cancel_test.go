package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestCancelsGather: cancellations of one tenant that come during a call make the next one, those
// of another tenant do not wait for them, and damage of one job keeps none of the others.
func TestCancelsGather(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const jobs, call = 60, 10 * time.Millisecond
		e := embeddedEngine(t)
		q := encrypted(t, e, "", func(o *queue.Options) { o.Shards = 1 })
		ids := map[string][]string{}
		for _, tenant := range []string{"many", "one"} {
			for range map[string]int{"many": jobs, "one": 1}[tenant] {
				w := work()
				w.Tenant, w.Delay = tenant, time.Hour
				ids[tenant] = append(ids[tenant], admitted(t, q, w).ID)
			}
		}
		e.AddHook(&damagedJobs{ids: []string{ids["many"][7], ids["many"][37]}})
		var calls atomic.Int64
		q.AfterScript("cancel", func() {
			calls.Add(1)
			<-time.After(call)
		})
		began := time.Now()
		var all sync.WaitGroup
		var mu sync.Mutex
		results := map[string]int{}
		for tenant, of := range ids {
			for i, id := range of {
				all.Go(func() {
					j, err := q.Cancel(t.Context(), tenant, id)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil && j.State == shaper.Cancelled:
						results[tenant]++
					case errors.Is(err, queue.ErrScript) && slices.Contains([]int{7, 37}, i):
						results["damaged"]++
					default:
						results[fmt.Sprint(j.State, err)]++
					}
					if took := time.Since(began); tenant == "one" && took > 2*call {
						t.Errorf("another tenant's took %v", took)
					}
				})
			}
		}
		all.Wait()
		if results["many"] != jobs-2 || results["damaged"] != 2 || results["one"] != 1 || len(results) != 3 {
			t.Errorf("%v", results)
		}
		if n := calls.Load(); n > 6+2*16 { // the jobs beside a damaged one are cancelled one by one
			t.Errorf("%d calls", n)
		}
	})
}

// damagedJobs fails the cancellations of some jobs, as where what is stored of them is damaged.
type damagedJobs struct {
	ids []string
}

func (d *damagedJobs) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *damagedJobs) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (d *damagedJobs) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		text := fmt.Sprint(cmd.Args()...)
		if cmd.Name() == "evalsha" && slices.ContainsFunc(d.ids, func(id string) bool { return strings.Contains(text, "job:"+id) }) &&
			strings.Contains(text, ":outbox") {
			cmd.SetErr(reply("ERR user_script:7: attempt to perform arithmetic on a nil value script: 2b5c, on @user_script:7."))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}
