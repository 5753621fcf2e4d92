package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

const (
	// keepEvery is how often a process compares what it knows of the store with what is there.
	keepEvery = 2 * time.Second
	// differAfter is how many comparisons in a row must differ before the process says so: a file that changes is read by one process
	// before another.
	differAfter = 2
	// differFor is how long a process counts among those with another file after it last said so.
	differFor = 5 * keepEvery
)

// Agreement is whether the policies of this process's configuration file are in force.
type Agreement struct {
	InForce   bool
	Since     time.Time // of this state
	Differing int       // processes, this one included, whose files are not in force
}

// Agreement returns what the last comparison with the store found. A reporter has no file and always agrees.
func (q *Queue) Agreement() Agreement {
	if a := q.agreement.Load(); a != nil {
		return *a
	}
	return Agreement{InForce: true}
}

// keeper compares, beside everything else, what this process knows of the store with what is there. It follows policies that another process
// puts into force, and writes the layout and the policies again if the store was emptied.
type keeper struct {
	q       *Queue
	id      string // of this process, among those with another file
	born    string // of the store
	differs int    // comparisons in a row
	end     context.CancelFunc
	ended   chan struct{}

	lost    prometheus.Counter
	inForce prometheus.Gauge
	others  prometheus.Gauge
}

func newKeeper(q *Queue, born string, r prometheus.Registerer) (*keeper, error) {
	ctx, end := context.WithCancel(context.Background())
	k := &keeper{q: q, id: shortHash(uuid.NewString()), born: born, end: end, ended: make(chan struct{})}
	k.lost = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_store_lost_total", Help: "Times that this process found the store emptied while it ran: all jobs, API keys and API overrides gone.",
	})
	k.inForce = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sluice_policies_in_force", Help: "1 if the policies of this process's configuration file are in force, 0 if those of another process's file are.",
	})
	k.others = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sluice_policies_differing_processes", Help: "Processes at this Redis whose configuration file states other policies than those in force.",
	})
	if r != nil {
		for _, c := range []prometheus.Collector{k.lost, k.inForce, k.others} {
			if err := r.Register(c); err != nil {
				end()
				return nil, fmt.Errorf("register metrics: %w", err)
			}
		}
	}
	k.agree(true, 0)
	go k.run(ctx)
	return k, nil
}

func (k *keeper) close() {
	k.end()
	<-k.ended
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.ended)
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := k.compare(ctx)
		switch {
		case err == nil:
			told = ""
		case ctx.Err() != nil || errors.Is(err, ErrUnavailable): // the next comparison is soon enough
		case err.Error() != told:
			told = err.Error()
			k.q.log.Error("the store no longer fits this process", "error", err)
		}
	}
}

// compare makes one comparison.
func (k *keeper) compare(ctx context.Context) error {
	var meta *redis.SliceCmd
	var now *redis.TimeCmd
	var differing *redis.ZSliceCmd
	if _, err := k.q.engine.patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		meta = p.HMGet(ctx, metaKey, metaBorn, metaDigest, metaRevision)
		now, differing = p.Time(ctx), p.ZRangeWithScores(ctx, differingKey, 0, -1)
		return nil
	}); err != nil {
		return unavailable(err)
	}
	var found struct {
		Born     string `redis:"born"`
		Digest   string `redis:"policies_digest"`
		Revision int64  `redis:"policies_revision"`
	}
	if err := meta.Scan(&found); err != nil {
		return unavailable(err)
	}
	if found.Born != k.born || found.Revision == 0 {
		return k.restore(ctx, found.Born)
	}
	if found.Revision != k.q.policies.Load().revision {
		if err := k.q.follow(ctx); err != nil {
			return err
		}
	}
	others, since := 0, float64(now.Val().Add(-differFor).UnixMilli())
	for _, z := range differing.Val() {
		if z.Score >= since && z.Member != k.id {
			others++
		}
	}
	return k.note(ctx, found.Digest, others, now.Val())
}

// note keeps up with whether this process's file is in force, and says so where that changes.
func (k *keeper) note(ctx context.Context, digest string, others int, now time.Time) error {
	was := k.q.Agreement().InForce
	file := k.q.file.Load()
	if digest == file.digest {
		k.differs = 0
		k.agree(true, others)
		if was {
			return nil
		}
		k.q.log.Info("the policies of this process's configuration file are in force again")
		return unavailable(k.q.engine.patient.ZRem(ctx, differingKey, k.id).Err())
	}
	if k.differs++; k.differs < differAfter {
		return nil
	}
	k.agree(false, others+1)
	if was {
		k.q.log.Warn("the policies of this process's configuration file are not in force: another process put others into force since, "+
			"and this one follows them; give all processes the same file", "file", file.digest, "in_force", digest)
	}
	_, err := k.q.engine.patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZRemRangeByScore(ctx, differingKey, "-inf", strconv.FormatInt(now.Add(-differFor).UnixMilli(), 10))
		p.ZAdd(ctx, differingKey, redis.Z{Score: float64(now.UnixMilli()), Member: k.id})
		return nil
	})
	return unavailable(err)
}

func (k *keeper) agree(inForce bool, differing int) {
	a := Agreement{InForce: inForce, Since: time.Now(), Differing: differing}
	if before := k.q.agreement.Load(); before != nil && before.InForce == inForce {
		a.Since = before.Since
	}
	k.q.agreement.Store(&a)
	k.others.Set(float64(differing))
	k.inForce.Set(0)
	if inForce {
		k.inForce.Set(1)
	}
}

// restore writes again what a process states at its start, after the store or its record was deleted. born is that of another store, or
// empty.
func (k *keeper) restore(ctx context.Context, born string) error {
	q := k.q
	left, err := q.declared(ctx)
	if err != nil {
		return err
	}
	emptied := born != "" && born != k.born || left == 0
	if emptied {
		k.lost.Inc()
		q.log.Error("the store was emptied while this process ran: all jobs, API keys, API overrides and histories in it are gone; " +
			"the layout and the policies of the configuration file are written again")
	} else {
		q.log.Warn("the record of the store's layout was deleted and is written again; the jobs are there", "key", metaKey)
		born = k.born
	}
	inForce := q.Agreement().InForce
	born, err = q.checkMeta(ctx, q.keys.Len(), born)
	if err != nil {
		return err
	}
	k.born = born
	found, err := readRecord(ctx, q.engine.patient)
	if err != nil {
		return unavailable(err)
	}
	if found.Revision != 0 && !inForce {
		return nil // the next comparison follows them
	}
	file := q.file.Load()
	return q.SetPolicies(ctx, file.baseline, file.tenants)
}

// declared counts the shards whose clocks still know of policies.
func (q *Queue) declared(ctx context.Context) (left int, err error) {
	cmds := make([]*redis.BoolCmd, q.keys.Len())
	if _, err := q.engine.patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range cmds {
			cmds[i] = p.HExists(ctx, q.keys.Shard(i).Clock(), "revision")
		}
		return nil
	}); err != nil {
		return 0, unavailable(err)
	}
	for _, cmd := range cmds {
		if cmd.Val() {
			left++
		}
	}
	return left, nil
}
