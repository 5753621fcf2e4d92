package worker

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/burstlog"
)

// dispatcher knows which shards this worker owns and keeps a loop running for each of them, and for those whose owner asked
// for help.
//
// Every shard has one owner among the live workers, by rendezvous hashing: no coordination, and when a worker comes or goes only
// its own shards move. For a beat or so two workers may both take a shard for theirs, or none may; the scripts make the
// first harmless, and the second is over with the next beat.
type dispatcher struct {
	worker   string
	broker   broker
	capacity *capacity
	window   *window
	outbox   *outbox // may be nil
	watch    stopwatch
	accept   func([]*job)
	quiet    func(near moment, slack time.Duration) moment // when to look so that no departure is disturbed
	log      *slog.Logger
	damage   *burstlog.Log
	probe    *probe
	options  queue.TickOptions // of every look; Max, Help and Lead are set by the shard, which also extends Horizon
	beats    distance          // what heartbeats took: the estimate of shards that have leased nothing of late
	every    time.Duration     // between two beats

	shards []*shard
	live   []string // as of the last beat

	mu    sync.Mutex
	clock relation // by the beats, where all shards are on the node that answers them

	beatNow chan struct{} // a worker has come or gone
	loops   sync.WaitGroup
	stop    context.Context // ended: no further leases
	work    context.Context // ended: no further calls
}

func newDispatcher(w *Worker) *dispatcher {
	d := &dispatcher{
		worker: w.id, broker: w.broker, capacity: w.capacity, window: newWindow(), outbox: w.outbox, watch: w.watch, accept: w.accept, quiet: w.pacer.quiet, log: w.log, damage: w.troubles.damage,
		probe:   w.health.probe(),
		options: queue.TickOptions{Lease: w.cfg.Lease, Horizon: w.cfg.Horizon, Sweep: w.cfg.Sweep, Outbox: w.outbox != nil},
		every:   w.cfg.beat(),
		shards:  make([]*shard, w.broker.Shards()),
		beatNow: make(chan struct{}, 1),
	}
	for n := range d.shards {
		// Consumers live as long as the worker: they number their looks, and a number must not come twice.
		d.shards[n] = newShard(d, n, w.consumers, w.health)
	}
	return d
}

// run beats and dispatches until stop ends, and returns when every loop has ended, at the latest when work does.
func (d *dispatcher) run(stop, work context.Context) {
	d.stop, d.work = stop, work
	var following sync.WaitGroup
	d.warmUp(stop)
	following.Go(func() { d.follow(stop) })
	d.beat(stop)
	following.Wait()
	// Nothing starts a loop any more, so the count can only fall.
	d.loops.Wait()
}

// connections is how many connections for polls a worker makes before it polls.
const connections = 12

// warmUp makes the connections of the first polls before there are any: a poll that has to make one answers late, and what it
// leases leaves late.
func (d *dispatcher) warmUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollPatience)
	defer cancel()
	var readings sync.WaitGroup
	for _, s := range d.shards[:min(len(d.shards), connections)] {
		readings.Go(func() { _, _ = s.consumer.Clock(ctx) }) // the first beat will tell why not
	}
	readings.Wait()
}

// clockOfBeats is what the beats tell of the clocks of all shards; nothing where they are on several nodes.
func (d *dispatcher) clockOfBeats() relation {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clock
}

// beat tells the others that this worker lives and follows who else does.
func (d *dispatcher) beat(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var pause pauses
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-d.beatNow:
		}
		b, err := d.broker.Beat(ctx, d.worker, 3*d.every)
		if ctx.Err() != nil {
			return
		}
		d.probe.report(err)
		if err != nil {
			// What is owned stays owned: nobody can tell better now, and looking at a shard of another does no harm.
			timer.Reset(pause.next())
			continue
		}
		pause.reset()
		took := b.Received.Sub(b.Sent)
		d.beats.observe(roundTrip{d.watch.at(b.Received), took, took / 2})
		if d.broker.OneNode() {
			d.mu.Lock()
			d.clock.observe(b.Now, d.watch.at(b.Sent), d.watch.at(b.Received), ofReading)
			d.mu.Unlock()
		}
		d.assign(b.Live)
		timer.Reset(d.every)
	}
}

// assign starts and ends loops as the live workers make it necessary.
func (d *dispatcher) assign(live []string) {
	if slices.Equal(live, d.live) {
		return
	}
	d.live = slices.Clone(live)
	owned := 0
	for n, s := range d.shards {
		mine := owner(live, n) == d.worker
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

// wake passes one wake-up on to the loops that it concerns. Shards of other workers are left alone unless help is asked for.
func (d *dispatcher) wake(w queue.Wake) {
	switch {
	case w.Shard == queue.AllShards:
		// Wake-ups may have been missed, or a worker has left.
		signal(d.beatNow)
		for _, s := range d.shards {
			s.poke()
		}
	case w.Shard < 0 || w.Shard >= len(d.shards):
		// Of a process that has more shards: the queue refuses to start such a one, so it can only be noise.
	case w.Help:
		if d.capacity.left() {
			d.shards[w.Shard].lend()
		}
	default:
		d.shards[w.Shard].poke()
	}
}

// owner is the worker to which the shard belongs: the one with the highest weight for it (Thaler and Ravishankar, 1998).
// It is empty when there is none.
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

// weight is FNV-1a over the worker's id and the shard, mixed as in SplitMix64 because FNV alone hardly moves the high bits
// for the last bytes. Every process must compute the same, so it never changes.
func weight(worker string, shard int) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(worker) {
		h = (h ^ uint64(worker[i])) * prime
	}
	for shift := 0; shift < 32; shift += 8 {
		h = (h ^ uint64(byte(shard>>shift))) * prime
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
