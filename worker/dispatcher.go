package worker

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
)

// dispatcher decides which shards this worker polls: those that it owns, and those whose owner has
// requested help.
//
// Every shard has one owner among the live workers, by rendezvous hashing: no coordination, and
// when a worker comes or goes only its own shards move. For about a heartbeat two workers may both
// own a shard, or none may. The scripts make the first harmless, and the second ends with the next
// heartbeat.
type dispatcher struct {
	*Worker
	options queue.TickOptions // of every poll; a shard sets Max, Help and Lead, and extends Horizon

	shards []*shard
	live   []string // as of the last heartbeat

	mu    sync.Mutex
	beats distance // what heartbeats took: the estimate of shards without recent leases
	clock relation // by the heartbeats, where all shards are on the node that answers them

	beatNow chan struct{} // a worker has come or gone
}

func newDispatcher(w *Worker) *dispatcher {
	d := &dispatcher{
		Worker: w,
		options: queue.TickOptions{
			Lease: w.cfg.Lease, Horizon: w.cfg.Horizon, Sweep: w.cfg.Sweep, Outbox: w.outbox != nil,
		},
		shards:  make([]*shard, w.broker.Shards()),
		beatNow: make(chan struct{}, 1),
	}
	for n := range d.shards {
		d.shards[n] = newShard(d, n)
	}
	return d
}

// run sends heartbeats and polls until stop ends, when the worker is stopping and has woken all
// shards. It returns when every poll is answered, at the latest when work ends.
func (d *dispatcher) run(stop, work context.Context) {
	d.warmUp(stop)
	var running sync.WaitGroup
	for _, s := range d.shards {
		running.Go(func() { s.run(work) })
	}
	running.Go(func() { d.follow(stop) })
	d.beat(stop)
	running.Wait()
}

// wakeAll has all shards polled now, and those of others checked for a part in them.
func (d *dispatcher) wakeAll() {
	for _, s := range d.shards {
		signal(s.woken)
	}
}

// connections is how many connections for polls a worker makes before it polls.
const connections = 12

// warmUp makes the connections of the first polls: a poll that has to make one answers late, and
// what it leases leaves late.
func (d *dispatcher) warmUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollPatience)
	defer cancel()
	var readings sync.WaitGroup
	for _, s := range d.shards[:min(len(d.shards), connections)] {
		readings.Go(func() { _, _ = s.consumer.Clock(ctx) }) // the first heartbeat reports errors
	}
	readings.Wait()
}

// ofBeats returns what the heartbeats measured: the way to Redis, and the clock of all shards where
// one node has them all.
func (d *dispatcher) ofBeats(now moment) (way roundTrip, clock relation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.beats.estimate(now), d.clock
}

// beat reports that this worker lives, and follows which others do.
func (d *dispatcher) beat(ctx context.Context) {
	var pause pauses
	var rest time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(rest):
		case <-d.beatNow:
		}
		b, err := d.broker.Heartbeat(ctx, d.id, 3*d.cfg.beat())
		if ctx.Err() != nil {
			return
		}
		d.errors.report(d, err)
		if err != nil {
			// The worker keeps its shards: to poll one of another worker does no harm.
			rest = pause.next()
			continue
		}
		pause = pauses{}
		took := b.Received.Sub(b.Sent)
		d.mu.Lock()
		d.beats.observe(roundTrip{d.watch.at(b.Received), took, took / 2})
		if d.broker.OneNode() {
			d.clock.observe(b.Now, d.watch.at(b.Sent), d.watch.at(b.Received), ofReading)
		}
		d.mu.Unlock()
		d.assign(b.Live)
		rest = d.cfg.beat()
	}
}

// assign starts and ends loops where the live workers have changed.
func (d *dispatcher) assign(live []string) {
	if slices.Equal(live, d.live) {
		return
	}
	d.live = slices.Clone(live)
	owned := 0
	for n, s := range d.shards {
		mine := owner(live, n) == d.id
		if mine {
			owned++
		}
		s.own(mine)
	}
	d.log.Debug("ownership changed", "workers", len(live), "shards", owned)
}

// follow passes wake-ups on until ctx ends.
func (d *dispatcher) follow(ctx context.Context) {
	wakes := d.broker.Wakes(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case w, open := <-wakes:
			if !open {
				return
			}
			d.wake(w)
		}
	}
}

// wake passes one wake-up on to the shards that it concerns: of other workers' shards, only to
// those that request help.
func (d *dispatcher) wake(w queue.Wake) {
	switch {
	case w.Shard == queue.AllShards:
		// Wake-ups may have been missed, or a worker has left.
		signal(d.beatNow)
		d.wakeAll()
	case w.Shard < 0 || w.Shard >= len(d.shards):
		// Noise: the queue refuses to start a process that has more shards.
	case w.Help:
		if d.capacity.left() {
			d.shards[w.Shard].lend()
		}
	default:
		signal(d.shards[w.Shard].woken)
	}
}

// owner returns the live worker with the highest weight for the shard (Thaler and Ravishankar,
// 1998), or "" when there is none.
func owner(live []string, shard int) string {
	var best string
	var most uint64
	for _, w := range live {
		if h := weight(w, shard); best == "" || h > most || h == most && w < best {
			best, most = w, h
		}
	}
	return best
}

// weight is FNV-1a over the worker's id and the shard, mixed as in SplitMix64 because FNV alone
// hardly moves the high bits for the last bytes. Every process must compute the same, so it never
// changes.
func weight(worker string, shard int) uint64 {
	fnv := fnv.New64a()
	_, _ = fnv.Write(binary.LittleEndian.AppendUint32([]byte(worker), uint32(shard)))
	h := fnv.Sum64()
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
