package policies

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

const (
	// keepEvery is how often a process compares what it knows of the store with what is there.
	keepEvery = 2 * time.Second
	// differAfter is how many comparisons in a row must find the same before the process acts: a
	// file that changes is read by one process before another, and a change takes a while to reach
	// all tenants.
	differAfter = 2
	// fileFor is how long the file of a process counts after its last report.
	fileFor = 5 * keepEvery
	// abandonedAfter is how many comparisons in a row must find no live process with the file in
	// force: a process that is started again takes a while.
	abandonedAfter = 5
)

// Agreement is whether the policies of this process's configuration file are in force.
type Agreement struct {
	InForce   bool      // false: the policies of another file are in force
	Since     time.Time // of this state
	Differing int       // processes, this one included, whose files are not in force
	Abandoned bool      // no live process has the file in force
}

// Keeper keeps the policies in force. It follows policies that another process puts into force, and
// writes the layout and the policies again if the store was emptied.
type Keeper struct {
	Environment string // of this process; empty: none. Set before Start.

	store   *store.Store
	horizon time.Duration
	log     *slog.Logger
	layout  func(ctx context.Context, born string) (string, error)

	publish   sync.Mutex           // held while policies are put into force or adopted
	current   atomic.Pointer[Set]  // in force
	file      atomic.Pointer[File] // of this process, in force or not
	agreement atomic.Pointer[Agreement]
	lost      prometheus.Counter
	id        string // of this process, among all
	stop      context.CancelFunc
	stopped   sync.WaitGroup

	mu         sync.Mutex // held during a comparison
	born       string     // when the store was first used
	member     string     // of store.FilesKey: the file of this process
	differs    int        // comparisons in a row that found another file in force
	unheld     int        // comparisons in a row that found no live process with that file
	unresolved int        // comparisons in a row that found tenants which do not have it yet
	spreading  []string   // tenants whose settings were about to change at the last comparison
}

// New returns a keeper without policies; call Start or Assume before any other method.
func New(s *store.Store, horizon time.Duration, log *slog.Logger) *Keeper {
	return &Keeper{store: s, horizon: horizon, log: log, stop: func() {}, id: store.ShortHash(uuid.NewString())}
}

// Assume uses the policies of the file and leaves the store as it is. It is for a process that only
// reports the ends of jobs.
func (k *Keeper) Assume(file *File) {
	k.current.Store(newSet(file, 0, k.store.Keyspace))
	k.agree(true, 0, false)
}

// Start puts the file into force, unless it was in force before another one that a live process
// has. Then it compares until Close. layout writes the layout of the store where it is missing,
// with the given instant of birth, or now if that is empty, and returns the instant that is stored.
func (k *Keeper) Start(
	ctx context.Context, r prometheus.Registerer, file *File,
	born string, layout func(ctx context.Context, born string) (string, error),
) error {
	k.layout, k.born = layout, born
	k.agree(true, 0, false)
	k.lost = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_store_lost_total",
		Help: "Times that this process found the store emptied while it ran: all jobs, API keys and API " +
			"overrides gone.",
	})
	inForce := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_policies_in_force",
		Help: "1 if the policies of this process's configuration file are in force, 0 if those of another " +
			"process's file are.",
	}, func() float64 {
		if k.Agreement().InForce {
			return 1
		}
		return 0
	})
	others := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_policies_differing_processes",
		Help: "Processes at this Redis whose configuration file states other policies than those in force.",
	}, func() float64 { return float64(k.Agreement().Differing) })
	abandoned := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_policies_abandoned",
		Help: "1 if no live process has the configuration file whose policies are in force, else 0.",
	}, func() float64 {
		if k.Agreement().Abandoned {
			return 1
		}
		return 0
	})
	if r != nil {
		for _, c := range []prometheus.Collector{k.lost, inForce, others, abandoned} {
			if err := r.Register(c); err != nil {
				return fmt.Errorf("register metrics: %w", err)
			}
		}
	}
	if err := k.start(ctx, file); err != nil {
		return err
	}
	ctx, k.stop = context.WithCancel(context.Background())
	k.stopped.Go(func() { k.run(ctx) })
	return nil
}

// Current returns the policies in force.
func (k *Keeper) Current() *Set { return k.current.Load() }

// Agreement returns the result of the last comparison.
func (k *Keeper) Agreement() Agreement { return *k.agreement.Load() }

// Close stops the comparisons.
func (k *Keeper) Close() {
	k.stop()
	k.stopped.Wait()
	if k.member != "" {
		ctx, cancel := context.WithTimeout(context.Background(), keepEvery)
		defer cancel()
		k.store.Fast.ZRem(ctx, store.FilesKey, k.member) // after an error it runs out
	}
}

func (k *Keeper) run(ctx context.Context) {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	logged := ""
	for {
		err := k.compare(ctx)
		switch {
		case err == nil:
			logged = ""
		case ctx.Err() != nil || errors.Is(err, store.ErrUnavailable): // the next comparison is soon enough
		case err.Error() != logged:
			logged = err.Error()
			k.log.Error("the store no longer fits this process", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Follow puts the policies in force into this process, if another one has changed them.
func (k *Keeper) Follow(ctx context.Context) error { return k.compare(ctx) }

// Reinstate puts the policies in force into a shard that has lost them or has others.
func (k *Keeper) Reinstate(ctx context.Context, shard store.ShardKeys) error {
	if k.layout == nil || ctx.Value(enforcing{}) != nil {
		return fmt.Errorf("%w: shard %d has lost its policies", store.ErrUnavailable, shard.Index)
	}
	if err := k.compare(ctx); err != nil {
		return err
	}
	return k.declare(ctx, k.Current(), shard)
}

// compare makes one comparison.
func (k *Keeper) compare(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var meta *redis.SliceCmd
	var now *redis.TimeCmd
	var files, spread *redis.StringSliceCmd
	if _, err := k.store.Patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		meta = p.HMGet(ctx, store.MetaKey, "born", "policies_digest", metaRevision, metaResolved)
		now, files, spread = p.Time(ctx), p.ZRange(ctx, store.FilesKey, 0, -1), p.SMembers(ctx, store.SpreadKey)
		return nil
	}); err != nil {
		return store.Unavailable(err)
	}
	var found record
	if err := meta.Scan(&found); err != nil {
		return store.Unavailable(err)
	}
	if found.Born != k.born || found.Revision == 0 {
		return k.restore(ctx)
	}
	if k.unresolved++; found.Resolved == found.Revision {
		k.unresolved = 0
	}
	if late := k.unresolved >= differAfter; late || found.Revision != k.Current().Revision {
		if err := k.follow(ctx, late); err != nil {
			return err
		}
	}
	if err := k.spreadLeft(ctx, spread.Val()); err != nil {
		return err
	}
	others := 0
	k.unheld++
	for _, member := range files.Val() {
		digest, id, _ := strings.Cut(member, " ")
		switch {
		case digest == found.Digest:
			k.unheld = 0
		case id != k.id:
			others++
		}
	}
	k.note(found.Digest, others)
	return k.reportFile(ctx, now.Val())
}

// spreadLeft finishes changes of tenants that a process has begun and not finished since the last
// comparison.
func (k *Keeper) spreadLeft(ctx context.Context, tenants []string) error {
	before := k.spreading
	k.spreading = tenants
	for _, tenant := range tenants {
		if !slices.Contains(before, tenant) {
			continue
		}
		if err := k.Spread(ctx, k.Current(), Tenant(tenant), false); err != nil {
			return err
		}
	}
	return nil
}

// note records whether this process's file is in force, and logs a change.
func (k *Keeper) note(digest string, others int) {
	before, file := k.Agreement(), k.file.Load().digest
	was := before.InForce
	if digest == file {
		k.differs, k.unheld = 0, 0
		k.agree(true, others, false)
		if !was {
			k.log.Info("the policies of this process's configuration file are in force again")
		}
		return
	}
	if k.differs++; k.differs < differAfter {
		return
	}
	abandoned := k.unheld >= abandonedAfter
	k.agree(false, others+1, abandoned)
	if abandoned && !before.Abandoned {
		k.log.Warn("no running process has the configuration file whose policies are in force; "+
			"send this process SIGHUP, or restart it, to put its file into force",
			"file", file, "in_force", digest)
	}
	if was {
		k.log.Warn("the policies of this process's configuration file are not in force: "+
			"those of another process are, and this one follows them; "+
			"give all processes the same file, or send this one SIGHUP to put its file into force",
			"file", file, "in_force", digest)
	}
}

// reportFile reports the file of this process to the others, unless the file may be about to
// change.
func (k *Keeper) reportFile(ctx context.Context, now time.Time) error {
	if k.differs > 0 && k.differs < differAfter {
		return nil
	}
	before := k.member
	k.member = k.file.Load().digest + " " + k.id
	_, err := k.store.Patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		if before != k.member {
			p.ZRem(ctx, store.FilesKey, before)
		}
		p.ZRemRangeByScore(ctx, store.FilesKey, "-inf", strconv.FormatInt(now.Add(-fileFor).UnixMilli(), 10))
		p.ZAdd(ctx, store.FilesKey, redis.Z{Score: float64(now.UnixMilli()), Member: k.member})
		return nil
	})
	return store.Unavailable(err)
}

func (k *Keeper) agree(inForce bool, differing int, abandoned bool) {
	a := Agreement{InForce: inForce, Since: time.Now(), Differing: differing, Abandoned: abandoned}
	if before := k.agreement.Load(); before != nil && before.InForce == inForce {
		a.Since = before.Since
	}
	k.agreement.Store(&a)
}

// restore writes the layout and the policies again, after the store or its record was deleted. If
// another process has written a new birth of the store meanwhile, that one holds.
func (k *Keeper) restore(ctx context.Context) error {
	declared, err := store.Pipeline(ctx, k.store.Patient, k.store.Shards(),
		func(p redis.Pipeliner, s store.ShardKeys) *redis.BoolCmd {
			return p.HExists(ctx, s.Clock(), "revision")
		})
	if err != nil {
		return err
	}
	given := k.born
	if !slices.Contains(declared, true) {
		given = "" // no shard has policies: the store is born again
	}
	born, err := k.layout(ctx, given)
	if err != nil {
		return err
	}
	if born != k.born {
		k.lost.Inc()
		k.log.Error("the store was emptied while this process ran: all jobs, API keys, API overrides and " +
			"histories in it are gone; the layout and the policies of the configuration file are written " +
			"again")
	} else {
		k.log.Warn("the record of the store's layout was deleted and is written again; the jobs are there",
			"key", store.MetaKey)
	}
	k.born = born
	if _, err := k.mark(ctx); err != nil {
		return err
	}
	found, err := readRecord(ctx, k.store.Patient)
	if err != nil {
		return err
	}
	if found.Revision != 0 && !k.Agreement().InForce {
		return nil // the next comparison follows them
	}
	return k.Set(ctx, k.file.Load())
}
