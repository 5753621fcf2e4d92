package queue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// clusterShards is a power of two: the first half of the shards is on node 0, the rest on node 1.
const clusterShards = 8

// clustered opens a queue on a cluster, and returns its wake-ups once all shards have had theirs.
func clustered(t *testing.T) (*redistest.Cluster, *queue.Queue, <-chan queue.Wake) {
	t.Helper()
	c := redistest.StartCluster(t)
	q := open(t, queue.EngineOptions{URL: c.URL()}, func(o *queue.Options) { o.Shards = clusterShards })
	wakes := q.Broker().Wakes(t.Context())
	missing := map[int]bool{}
	for n := range clusterShards {
		missing[n] = true
	}
	for all := false; !all || len(missing) > clusterShards/2; {
		w := within(t, "the first wakes", wakes)
		all = all || w.Shard == queue.AllShards // of the node of the workers, and so of its shards
		delete(missing, w.Shard)
	}
	return c, q, wakes
}

// heard publishes a wake-up for a shard, and waits until it was heard.
func heard(t *testing.T, q *queue.Queue, wakes <-chan queue.Wake, shard int) {
	t.Helper()
	if err := q.Broker().Consumer("w", shard).Resign(t.Context()); err != nil {
		t.Fatalf("shard %d: %v", shard, err)
	}
	for within(t, "a wake", wakes).Shard != shard {
		continue
	}
}

// TestClusterHearsByShard: in a cluster no message goes to all nodes, while workers listen. On
// Redis 6.2 each does.
func TestClusterHearsByShard(t *testing.T) {
	t.Parallel()
	c, q, wakes := clustered(t)
	before := broadcasts(t, c) // the start had no listeners
	for n := range clusterShards {
		heard(t, q, wakes, n)
	}
	s := work()
	d, err := q.Submit(t.Context(), s)
	if err != nil || d.Outcome != shaper.Admitted {
		t.Fatalf("Submit: %+v, %v", d, err)
	}
	ended, stop, err := q.Watch(t.Context(), d.Job.ID)
	if err != nil {
		t.Fatalf("Watch: %v", err)
	}
	defer stop()
	if _, err := q.Cancel(t.Context(), s.Tenant, d.Job.ID); err != nil {
		t.Fatalf("Cancel: %v", err)
	}
	within(t, "the end of the job", ended)
	known, err := client(t, "redis://"+c.Address(0)).Do(t.Context(), "command", "info", "spublish").Slice()
	if err != nil {
		t.Fatal(err)
	}
	if after := broadcasts(t, c); (after == before) != (known[0] != nil) {
		t.Errorf("nodes had sent %q to all others before, then %q", before, after)
	}
}

// broadcasts returns how many messages each node has sent to all others.
func broadcasts(t *testing.T, c *redistest.Cluster) (sent [2]string) {
	t.Helper()
	for i := range sent {
		info, err := client(t, "redis://"+c.Address(i)).ClusterInfo(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(info, "messages_publish_sent:")
		sent[i], _, _ = strings.Cut(rest, "\r")
	}
	return sent
}

// TestWakesFollowASlot: wake-ups of a shard are heard while its slot moves, and after that.
func TestWakesFollowASlot(t *testing.T) {
	t.Parallel()
	c, q, wakes := clustered(t)
	shard := store.Of(q).Shard(0)
	other := client(t, "redis://"+c.Address(1))
	slot, err := other.ClusterKeySlot(t.Context(), shard.Clock()).Result()
	if err != nil {
		t.Fatal(err)
	}
	c.Move(t.Context(), int(slot), func() { heard(t, q, wakes, 0) })
	heard(t, q, wakes, 0)
	queuetest.Await(t, "the subscription is at the other node", func() bool {
		channels, err := other.PubSubShardChannels(t.Context(), shard.Channel(scripts.WakeChannel)).Result()
		return err == nil && len(channels) == 1
	})
	heard(t, q, wakes, 0)
}

// TestHungNodeTakesNoWakes: a node that hangs has an effect on its shards only.
func TestHungNodeTakesNoWakes(t *testing.T) {
	t.Parallel()
	c, q, wakes := clustered(t)
	thaw := c.Hang(t.Context(), 0)
	began := time.Now()
	for n := clusterShards / 2; n < clusterShards; n++ {
		heard(t, q, wakes, n)
	}
	if took := time.Since(began); took > failFast {
		t.Errorf("wake-ups of the other node took %v", took)
	}
	thaw()
	for n := range clusterShards {
		queuetest.Await(t, "the shard answers", func() bool {
			return q.Broker().Consumer("w", n).Resign(t.Context()) == nil
		})
		heard(t, q, wakes, n)
	}
}

// TestWatchLeavesAHangingConnection: nor does a client that waits for a job.
func TestWatchLeavesAHangingConnection(t *testing.T) {
	t.Parallel()
	h := newHanging(t, strings.TrimPrefix(redistest.Start(t).URL(), "unix://"))
	q := open(t, queue.EngineOptions{URL: "redis://" + h.Addr().String(), AllowUnsafe: true}, defaults)
	id := admit(t, q)
	ended, stop, err := q.Watch(t.Context(), id)
	if err != nil {
		t.Fatalf("Watch: %v", err)
	}
	defer stop()
	h.hang()
	queuetest.Await(t, "the job is cancelled", func() bool {
		_, err := q.Cancel(t.Context(), "acme", id)
		return err == nil
	})
	within(t, "the end of the job", ended)
}

// TestDeafWorkersPoll: where Redis refuses subscriptions, all shards are polled again and again.
func TestDeafWorkersPoll(t *testing.T) {
	t.Parallel()
	s, q := one(t)
	if err := client(t, s.URL()).Do(t.Context(), "acl", "setuser", "default", "-subscribe", "-ssubscribe").Err(); err != nil {
		t.Fatal(err)
	}
	wakes := q.Broker().Wakes(t.Context())
	for range 2 {
		if w := within(t, "a wake without a subscription", wakes); w.Shard != queue.AllShards {
			t.Errorf("the wake is %+v", w)
		}
	}
}

// TestUserWithoutShardedChannels: an ACL may lack the right to sharded channels.
func TestUserWithoutShardedChannels(t *testing.T) {
	t.Parallel()
	s, q := one(t)
	if err := client(t, s.URL()).Do(t.Context(), "acl", "setuser", "default", "-spublish", "-ssubscribe").Err(); err != nil {
		t.Fatal(err)
	}
	wakes := q.Broker().Wakes(t.Context())
	if w := within(t, "the first wake", wakes); w.Shard != queue.AllShards {
		t.Errorf("the first wake is %+v", w)
	}
	id := admit(t, q)
	if w := within(t, "a wake by the submission", wakes); w.Shard != 0 {
		t.Errorf("the wake is %+v", w)
	}
	ended, stop, err := q.Watch(t.Context(), id)
	if err != nil {
		t.Fatalf("Watch: %v", err)
	}
	defer stop()
	if _, err := q.Cancel(t.Context(), "acme", id); err != nil {
		t.Fatalf("Cancel: %v", err)
	}
	within(t, "the end of the job", ended)
}
