package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

const (
	// keepEvery is how often a process compares what it knows of the store with what is there.
	keepEvery = 2 * time.Second
	// differAfter is how many comparisons in a row must find the same before the process acts: a
	// file that changes is read by one process before another, and a change takes a while to reach
	// all tenants.
	differAfter = 2
	// fileFor is how long the file of a process counts after it last said that it has it.
	fileFor = 5 * keepEvery
)

// Agreement is whether the policies of this process's configuration file are in force.
type Agreement struct {
	InForce   bool
	Since     time.Time // of this state
	Differing int       // processes, this one included, whose files are not in force
}

// Agreement returns what the last comparison with the store found. A reporter has no file and
// always agrees.
func (q *Queue) Agreement() Agreement {
	if a := q.agreement.Load(); a != nil {
		return *a
	}
	return Agreement{InForce: true}
}

// keeper compares, beside everything else, what this process knows of the store with what is there.
// It follows policies that another process puts into force, and writes the layout and the policies
// again if the store was emptied.
type keeper struct {
	q     *Queue
	id    string // of this process, among all
	end   context.CancelFunc
	ended chan struct{}

	mu         sync.Mutex // held by the one that compares
	born       string     // of the store
	member     string     // of filesKey: the file of this process
	differs    int        // comparisons in a row that found another file in force
	unresolved int        // comparisons in a row that found tenants which do not obey it yet

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
	ctx, cancel := context.WithTimeout(context.Background(), keepEvery)
	defer cancel()
	k.q.engine.fast.ZRem(ctx, filesKey, k.member) // one that fails runs out
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.ended)
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	told := ""
	for {
		err := k.compare(ctx)
		switch {
		case err == nil:
			told = ""
		case ctx.Err() != nil || errors.Is(err, ErrUnavailable): // the next comparison is soon enough
		case err.Error() != told:
			told = err.Error()
			k.q.log.Error("the store no longer fits this process", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// reinstate puts the policies in force into a shard that has lost them or has others.
func (q *Queue) reinstate(ctx context.Context, shard ShardKeys) error {
	if q.keeper == nil || ctx.Value(enforcing{}) != nil {
		return fmt.Errorf("%w: shard %d has lost its policies", ErrUnavailable, shard.Index)
	}
	if err := q.keeper.compare(ctx); err != nil {
		return err
	}
	return q.declare(ctx, q.policies.Load(), shard)
}

// compare makes one comparison.
func (k *keeper) compare(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var meta *redis.SliceCmd
	var now *redis.TimeCmd
	var files *redis.StringSliceCmd
	if _, err := k.q.engine.patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		meta = p.HMGet(ctx, metaKey, metaBorn, metaDigest, metaRevision, metaResolved)
		now, files = p.Time(ctx), p.ZRange(ctx, filesKey, 0, -1)
		return nil
	}); err != nil {
		return unavailable(err)
	}
	var found struct {
		Born     string `redis:"born"`
		Digest   string `redis:"policies_digest"`
		Revision int64  `redis:"policies_revision"`
		Resolved int64  `redis:"policies_resolved"`
	}
	if err := meta.Scan(&found); err != nil {
		return unavailable(err)
	}
	if found.Born != k.born || found.Revision == 0 {
		return k.restore(ctx)
	}
	if k.unresolved++; found.Resolved == found.Revision {
		k.unresolved = 0
	}
	if late := k.unresolved >= differAfter; late || found.Revision != k.q.policies.Load().revision {
		if err := k.q.follow(ctx, late); err != nil {
			return err
		}
	}
	others := 0
	for _, member := range files.Val() {
		if digest, id, _ := strings.Cut(member, " "); digest != found.Digest && id != k.id {
			others++
		}
	}
	k.note(found.Digest, others)
	return k.sayFile(ctx, now.Val())
}

// note keeps up with whether this process's file is in force, and says so where that changes.
func (k *keeper) note(digest string, others int) {
	was, file := k.q.Agreement().InForce, k.q.file.Load().digest
	if digest == file {
		k.differs = 0
		k.agree(true, others)
		if !was {
			k.q.log.Info("the policies of this process's configuration file are in force again")
		}
		return
	}
	if k.differs++; k.differs < differAfter {
		return
	}
	k.agree(false, others+1)
	if was {
		k.q.log.Warn("the policies of this process's configuration file are not in force: "+
			"those of another process are, and this one follows them; "+
			"give all processes the same file, or send this one SIGHUP to put its file into force",
			"file", file, "in_force", digest)
	}
}

// sayFile notes in the store that this process has its file, unless the file may be about to
// change.
func (k *keeper) sayFile(ctx context.Context, now time.Time) error {
	if k.differs > 0 && k.differs < differAfter {
		return nil
	}
	before := k.member
	k.member = k.q.file.Load().digest + " " + k.id
	_, err := k.q.engine.patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		if before != k.member {
			p.ZRem(ctx, filesKey, before)
		}
		p.ZRemRangeByScore(ctx, filesKey, "-inf", strconv.FormatInt(now.Add(-fileFor).UnixMilli(), 10))
		p.ZAdd(ctx, filesKey, redis.Z{Score: float64(now.UnixMilli()), Member: k.member})
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

// restore writes again what a process states at its start, after the store or its record was
// deleted. Where another process has written a new birth of the store meanwhile, that counts.
func (k *keeper) restore(ctx context.Context) error {
	q := k.q
	left, err := q.declared(ctx)
	if err != nil {
		return err
	}
	inForce, given := q.Agreement().InForce, k.born
	if left == 0 {
		given = "" // the store is born again
	}
	born, err := q.checkMeta(ctx, q.keys.Len(), given)
	if err != nil {
		return err
	}
	if born != k.born {
		k.lost.Inc()
		q.log.Error("the store was emptied while this process ran: all jobs, API keys, API overrides and histories in it are gone; " +
			"the layout and the policies of the configuration file are written again")
	} else {
		q.log.Warn("the record of the store's layout was deleted and is written again; the jobs are there", "key", metaKey)
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
	return q.SetPolicies(ctx, file.Baseline, file.Tenants)
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
