package queue

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Bounds of a subscription. Where nothing was heard for silence, a probe is published the way that
// scripts publish. If that is not heard within the same time, the connection is renewed.
const (
	silence      = 500 * time.Millisecond
	silenceLocal = time.Minute // of an engine that neither hangs alone nor fails over
	listenPause  = 100 * time.Millisecond
	deafEvery    = time.Second
	unusedAge    = time.Minute // how long a connection without channels is kept for the next one
)

// hearer handles what a listener hears. Its methods are called by one goroutine for each node.
type hearer interface {
	// joined is called when subscriptions are in force. Earlier messages may have been missed.
	joined(channels []string)
	heard(channel, message string)
	// deaf is called each second while subscriptions are not in force.
	deaf(channels []string)
}

// listener subscribes to channels of shards. Each node of a cluster has a connection of its own,
// with the channels of its shards: a node that hangs takes no messages from the others. A probe
// runs through the node that scripts publish on now, so it finds a connection that hangs, and also
// one to a former master.
type listener struct {
	store   *store.Store
	hearer  hearer
	silence time.Duration
	log     *slog.Logger
	stop    context.CancelFunc
	running sync.WaitGroup
	changed chan struct{} // a token: pending is not empty

	mu      sync.Mutex
	at      map[string]*line // of the channels that are wanted; nil: not placed yet
	pending []string         // channels to place
	lines   map[*redis.Client]*line
	refusal string // of Redis, logged last
}

// line is the connection to one node. The listener's lock guards its fields.
type line struct {
	node    *redis.Client
	want    map[string]bool // channels
	used    time.Time       // when one was last wanted
	dirty   []string        // channels whose subscription may have to change
	leaving map[string]int  // unsubscriptions that are not confirmed yet
	changed chan struct{}   // a token: dirty is not empty
}

func newListener(s *store.Store, h hearer, silence time.Duration, log *slog.Logger) *listener {
	ctx, stop := context.WithCancel(context.Background())
	l := &listener{
		store: s, hearer: h, silence: silence, log: log, stop: stop, changed: make(chan struct{}, 1),
		at: map[string]*line{}, lines: map[*redis.Client]*line{},
	}
	l.running.Go(func() { l.run(ctx) })
	return l
}

// close ends the connections and waits for the calls of the hearer.
func (l *listener) close() {
	l.stop()
	l.running.Wait()
}

func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// add subscribes to channels. It does not wait for that.
func (l *listener) add(channels ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, channel := range channels {
		l.at[channel] = nil
	}
	l.pending = append(l.pending, channels...)
	token(l.changed)
}

// remove ends the subscription to a channel.
func (l *listener) remove(channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.at[channel]; n != nil {
		n.set(channel, false)
	}
	delete(l.at, channel)
}

// set notes whether a channel is wanted here. The listener's lock must be held.
func (n *line) set(channel string, wanted bool) {
	if wanted {
		n.want[channel] = true
	} else {
		delete(n.want, channel)
	}
	n.used = time.Now()
	n.dirty = append(n.dirty, channel)
	token(n.changed)
}

// run keeps each channel on the line to the node of its shard, which changes in a cluster.
func (l *listener) run(ctx context.Context) {
	var again <-chan time.Time
	if l.store.Cluster() {
		ticker := time.NewTicker(l.silence)
		defer ticker.Stop()
		again = ticker.C
	}
	for {
		select {
		case <-l.changed:
			l.mu.Lock()
			channels := l.pending
			l.pending = nil
			l.mu.Unlock()
			l.place(ctx, channels)
		case <-again:
			l.mu.Lock()
			channels := slices.Collect(maps.Keys(l.at))
			l.mu.Unlock()
			l.place(ctx, channels)
		case <-ctx.Done():
			return
		}
	}
}

// place puts channels on the lines of their nodes. Where the map of the cluster is unknown, they
// stay where they are.
func (l *listener) place(ctx context.Context, channels []string) {
	nodes := map[string]*redis.Client{} // by shard
	for _, channel := range channels {
		shard := store.PrefixOf(channel)
		if _, known := nodes[shard]; !known {
			nodes[shard] = l.node(ctx, shard)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, channel := range channels {
		node := nodes[store.PrefixOf(channel)]
		from, wanted := l.at[channel]
		if !wanted || node == nil || from != nil && from.node == node {
			continue
		}
		if from != nil {
			from.set(channel, false)
		}
		to := l.lines[node]
		if to == nil {
			to = &line{node: node, want: map[string]bool{}, changed: make(chan struct{}, 1)}
			l.lines[node] = to
			l.running.Go(func() { l.listen(ctx, to) })
		}
		to.set(channel, true)
		l.at[channel] = to
	}
}

// node returns the client of the node that has a shard, nil if it is not known.
func (l *listener) node(ctx context.Context, shard string) *redis.Client {
	switch c := l.store.Patient.(type) {
	case *redis.ClusterClient:
		node, _ := c.MasterForKey(ctx, shard)
		return node
	case *redis.Client:
		return c
	}
	return nil
}

// listen keeps a line connected until it has no channels.
func (l *listener) listen(ctx context.Context, n *line) {
	for at := time.Now(); ctx.Err() == nil; {
		l.mu.Lock()
		channels := slices.Collect(maps.Keys(n.want))
		n.dirty, n.leaving = nil, map[string]int{}
		if len(channels) == 0 {
			delete(l.lines, n.node)
		}
		l.mu.Unlock()
		if len(channels) == 0 {
			return
		}
		if time.Since(at) >= deafEvery {
			l.hearer.deaf(channels)
			at = time.Now()
		}
		if l.connect(ctx, n, channels) {
			at = time.Now()
		}
		if c, cluster := l.store.Patient.(*redis.ClusterClient); cluster {
			c.ReloadState(ctx) // the shard may have moved
		}
		select {
		case <-time.After(listenPause):
		case <-ctx.Done():
		}
	}
}

// connect listens on a new connection until it breaks, and reports whether its subscriptions were
// in force. How a node publishes depends on its version and on the rights of the user, so it is
// asked.
func (l *listener) connect(ctx context.Context, n *line, channels []string) (joined bool) {
	shard := store.PrefixOf(channels[0])
	sharded, err := l.probe(ctx, shard)
	if err != nil {
		return false
	}
	ctx, hangUp := context.WithCancel(ctx)
	pubsub := n.node.Subscribe(ctx) // to nothing yet
	context.AfterFunc(ctx, func() { _ = pubsub.Close() })
	var others sync.WaitGroup
	defer others.Wait()
	defer hangUp()
	others.Go(func() {
		defer hangUp()
		l.subscribe(ctx, n, pubsub, sharded, channels, shard+scripts.ProbeChannel)
	})
	for silent, confirmed := false, []string(nil); ; {
		m, err := pubsub.ReceiveTimeout(ctx, l.silence)
		var timed net.Error
		if errors.As(err, &timed) && timed.Timeout() && !silent && l.inUse(n) {
			silent = true
			others.Go(func() {
				// One that fails is not heard either.
				if now, err := l.probe(ctx, shard); err == nil && now != sharded {
					hangUp()
				}
			})
			continue
		}
		if err != nil {
			l.note(ctx, err)
			return joined
		}
		silent = false
		switch m := m.(type) {
		case *redis.Message:
			if !isBeat(m.Channel) {
				l.hearer.heard(m.Channel, m.Payload)
			}
		case *redis.Subscription:
			switch {
			case strings.HasSuffix(m.Kind, "unsubscribe"):
				if l.left(n, m.Channel) {
					return joined // its slot has moved to another node
				}
			case m.Kind != subscribes(sharded): // the other way to hear wake-ups
			case isBeat(m.Channel): // it comes after those that were wanted at first
				l.hearer.joined(confirmed)
				joined = true
			case joined:
				l.hearer.joined([]string{m.Channel})
			default:
				confirmed = append(confirmed, m.Channel)
			}
		}
	}
}

func isBeat(channel string) bool { return strings.HasSuffix(channel, "}:"+scripts.ProbeChannel) }

func subscribes(sharded bool) string {
	if sharded {
		return "ssubscribe"
	}
	return "subscribe"
}

// probe publishes on the probe channel of a shard, and reports whether its channels are sharded.
func (l *listener) probe(ctx context.Context, shard string) (sharded bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.silence)
	defer cancel()
	return store.Invoke(ctx, l.store.RunPatient, scripts.PublishCall{
		Clock: store.FenceOf(shard), Channel: scripts.ProbeChannel,
	})
}

// inUse reports whether the line has channels, or had some lately.
func (l *listener) inUse(n *line) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(n.want) > 0 || time.Since(n.used) < unusedAge
}

// left notes the end of a subscription, and reports whether Redis ended it unasked.
func (l *listener) left(n *line, channel string) (unasked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.leaving[channel] == 0 {
		return true
	}
	if n.leaving[channel]--; n.leaving[channel] == 0 {
		delete(n.leaving, channel)
	}
	return false
}

// note logs why Redis refuses a subscription, once.
func (l *listener) note(ctx context.Context, err error) {
	var refusal redis.Error
	if ctx.Err() != nil || !errors.As(err, &refusal) || redis.HasErrorPrefix(err, "MOVED") {
		return
	}
	l.mu.Lock()
	again := l.refusal == err.Error()
	l.refusal = err.Error()
	l.mu.Unlock()
	if !again {
		l.log.Warn("redis refuses a subscription: jobs of its shards may leave a second late", "error", err)
	}
}

// subscribe subscribes to channels, then to the probe channel of the shard, and then follows what
// is wanted of the line. It returns when ctx ends or the connection breaks.
func (l *listener) subscribe(
	ctx context.Context, n *line, pubsub *redis.PubSub, sharded bool, channels []string, probe string,
) {
	have := map[string]bool{}
	for first := true; ; first = false {
		var add, drop []string
		l.mu.Lock()
		dirty := slices.Concat(channels, n.dirty)
		slices.Sort(dirty)
		for _, channel := range slices.Compact(dirty) {
			switch {
			case n.want[channel]: // also again: who has added it waits for a confirmation
				have[channel] = true
				add = append(add, channel)
			case have[channel]:
				delete(have, channel)
				drop = append(drop, channel)
				n.leaving[channel]++
			}
		}
		channels, n.dirty = nil, nil
		l.mu.Unlock()
		err := change(ctx, pubsub, sharded, add, drop)
		if first && err == nil {
			err = change(ctx, pubsub, sharded, []string{probe}, nil)
		}
		if err != nil {
			return
		}
		select {
		case <-n.changed:
		case <-ctx.Done():
			return
		}
	}
}

// change sends the commands. Redis takes sharded channels of one slot at a time.
func change(ctx context.Context, pubsub *redis.PubSub, sharded bool, add, drop []string) error {
	if !sharded {
		return errors.Join(send(ctx, pubsub.Subscribe, add), send(ctx, pubsub.Unsubscribe, drop))
	}
	wakes := slices.DeleteFunc(slices.Clone(add), func(c string) bool {
		return !strings.HasSuffix(c, "}:"+scripts.WakeChannel)
	})
	errs := []error{send(ctx, pubsub.Subscribe, wakes)} // see publish in lib/clock.lua
	for _, channels := range byShard(add) {
		errs = append(errs, send(ctx, pubsub.SSubscribe, channels))
	}
	for _, channels := range byShard(drop) {
		errs = append(errs, send(ctx, pubsub.SUnsubscribe, channels))
	}
	return errors.Join(errs...)
}

func send(
	ctx context.Context, command func(context.Context, ...string) error, channels []string,
) error {
	if len(channels) == 0 {
		return nil // none would be all
	}
	return command(ctx, channels...)
}

func byShard(channels []string) map[string][]string {
	out := map[string][]string{}
	for _, channel := range channels {
		shard := store.PrefixOf(channel)
		out[shard] = append(out[shard], channel)
	}
	return out
}
