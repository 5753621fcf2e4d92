package store

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/redistest"
)

// anyName draws names that look like each other and like what they are encoded as.
func anyName() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[a-cA-C{}:/ ~._é%-]{1,4}`),
		rapid.StringN(1, 90, 255),
		rapid.Custom(func(t *rapid.T) string {
			return EncodeName(rapid.StringMatching(`[a ]{1,2}`).Draw(t, "encoded"))
		}),
	)
}

// subject is what a key is about.
type subject struct{ tenant, route, key string }

func (s subject) keys(shard ShardKeys) map[string]string {
	tenant, flow := EncodeName(s.tenant), FlowName(s.tenant, s.route)
	return map[string]string{
		"policy": shard.Policy(tenant), "history": shard.History(tenant), "names": shard.Names(tenant),
		"lines": shard.LinesOf(tenant), "flow": shard.Flow(flow),
		"keys": shard.Keys(tenant), "queue": shard.Queue(flow), "later": shard.Later(flow),
		"dead": shard.Dead(flow), "done": shard.Done(flow),
		"idem": shard.Idem(tenant, ShortHash(s.key)),
	}
}

// TestKeysAreUniquePerSubject: two keys are equal only if they have the same kind and subject.
func TestKeysAreUniquePerSubject(t *testing.T) {
	shard := NewKeyspace(1).Shard(0)
	ofTenant := map[string]bool{"policy": true, "history": true, "names": true, "keys": true, "lines": true}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(who string) subject {
			return subject{
				anyName().Draw(t, who+" tenant"), anyName().Draw(t, who+" route"),
				anyName().Draw(t, who+" key"),
			}
		}
		a, b := draw("a"), draw("b")
		if rapid.Bool().Draw(t, "same tenant") {
			b.tenant = a.tenant
		}
		for kindA, keyA := range a.keys(shard) {
			for kindB, keyB := range b.keys(shard) {
				same := kindA == kindB && a.tenant == b.tenant
				switch {
				case ofTenant[kindA]:
				case kindA == "idem":
					same = same && a.key == b.key
				default:
					same = same && a.route == b.route
				}
				if (keyA == keyB) != same {
					t.Fatalf("%s of %q is %q, %s of %q is %q", kindA, a, keyA, kindB, b, keyB)
				}
			}
		}
	})
}

func FuzzEncodeName(f *testing.F) {
	for _, seed := range []string{
		"", "acme", "a b", "}x", "{0}:", "~", EncodeName("a b"), strings.Repeat("x", 65), "\x00", "é",
	} {
		f.Add(seed, seed+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ea, eb := EncodeName(a), EncodeName(b)
		if (ea == eb) != (a == b) {
			t.Errorf("%q and %q become %q and %q", a, b, ea, eb)
		}
		if strings.ContainsAny(ea, "{}:/ *?[]\\\r\n\x00") || len(ea) == 0 || len(ea) > 65 {
			t.Errorf("%q becomes %q, which does not belong in a key", a, ea)
		}
		if got := TenantOfEntry(TenantEntry(a)); got != a {
			t.Errorf("tenant %q comes back from the index as %q", a, got)
		}
		if (TenantEntry(a) == TenantEntry(b)) != (a == b) {
			t.Errorf("%q and %q have one entry", a, b)
		}
	})
}

// tagOf is what Redis Cluster hashes of a key: what stands between the first opening brace and the
// first closing one after it, unless that is nothing; else all of it.
func tagOf(key string) string {
	if _, after, found := strings.Cut(key, "{"); found {
		if tag, _, closed := strings.Cut(after, "}"); closed && tag != "" {
			return tag
		}
	}
	return key
}

// FuzzKeys is target S2 on the keys: whatever tenants, routes and keys are called, all keys of a
// tenant lie in the one slot of its shard, and two subjects share a key only where they are the
// same.
func FuzzKeys(f *testing.F) {
	names := []string{"acme", "acme}1", "{acme}", "{", "}", "{}", "}{", "a:b", "a/b", "a b",
		EncodeName("a b"), "~", "", "é", "\x00", "\xff", "*",
		"sluice:{0}:job:x", strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("{", 255)}
	for i, name := range names {
		f.Add(name, names[(i+1)%len(names)], "default", name, "k", name)
		f.Add(name, name, name, "default", name, "k")
	}
	f.Add("a", "a/b", "b/c", "c", "", "")
	f.Add("a", "a:b", "b:c", "c", "b:", "")
	space := NewKeyspace(64)
	one := NewKeyspace(1).Shard(0) // where all tenants have the same shard
	f.Fuzz(func(t *testing.T, tenantA, tenantB, routeA, routeB, keyA, keyB string) {
		a, b := subject{tenantA, routeA, keyA}, subject{tenantB, routeB, keyB}
		for _, s := range []subject{a, b} {
			shard := space.ShardOf(s.tenant)
			low, high := shard.Index*clusterSlots/space.Len(), (shard.Index+1)*clusterSlots/space.Len()
			for kind, key := range s.keys(shard) {
				tag := tagOf(key)
				if tag != tagOf(shard.Clock()) || int(clusterSlot(tag)) < low ||
					int(clusterSlot(tag)) > high {
					t.Errorf("%s of %q is %q, which is not in the slot of its shard", kind, s, key)
				}
				if strings.ContainsAny(shard.Trim(key), "{}* ?[]\\\r\n\x00") {
					t.Errorf("%s of %q is %q, which holds client text", kind, s, key)
				}
			}
		}
		inA := map[string]bool{}
		for _, key := range a.keys(one) {
			inA[key] = true
		}
		if len(inA) != len(a.keys(one)) {
			t.Errorf("two keys of %q are one: %v", a, a.keys(one))
		}
		for kind, key := range b.keys(one) {
			same := tenantA == tenantB
			switch kind {
			case "policy", "history", "names", "keys", "lines":
			case "idem":
				same = same && keyA == keyB
			default:
				same = same && routeA == routeB
			}
			if inA[key] != same {
				t.Errorf("%s of %q is %q, among the keys of %q: %t", kind, b, key, a, inA[key])
			}
		}
	})
}

// TestHashPartsDoNotRunTogether: a fingerprint is of its parts, not of their text in a row.
func TestHashPartsDoNotRunTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.StringMatching(`[0-9:]{0,3}`), 1, 4)
		a, b := parts.Draw(t, "a"), parts.Draw(t, "b")
		if (ShortHash(a...) == ShortHash(b...)) != cmp.Equal(a, b) {
			t.Fatalf("%q and %q", a, b)
		}
	})
}

// TestClusterSlot holds the slot to the vector of the Redis Cluster specification.
func TestClusterSlot(t *testing.T) {
	if got := clusterSlot("123456789"); got != 0x31C3 {
		t.Errorf("the slot of 123456789 is %#x, want 0x31C3", got)
	}
}

// TestSlotsAgreeWithRedis asks a server in cluster mode for the slot of every kind of key, for
// names that try to break out.
func TestSlotsAgreeWithRedis(t *testing.T) {
	options, err := redis.ParseURL(redistest.Start(t, "--cluster-enabled", "yes").URL())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(options)
	defer c.Close()
	space := NewKeyspace(64)
	names := []string{"acme", "}x", "{x}", "acme}1", "{", "}", "{}", "é", "a b", strings.Repeat("{", 255)}
	want := map[string]int64{}
	for i := range space.Len() {
		shard := space.Shard(i)
		slot := int64(clusterSlot(strings.TrimSuffix(strings.TrimPrefix(shard.prefix, "sluice:{"), "}:")))
		name := names[i%len(names)]
		keys := subject{name, names[(i+1)%len(names)], name}.keys(shard)
		for kind, key := range map[string]string{"clock": shard.Clock(), "due": shard.Due(),
			"expires": shard.Expires(), "leases": shard.Leases(),
			"tenants": shard.Tenants(), "tuned": shard.Tuned(), "lines": shard.Lines(),
			"grant": shard.Grant("w1"), "job": shard.Job("id")} {
			keys[kind] = key
		}
		for _, key := range keys {
			want[key] = slot
		}
	}
	for key, slot := range want {
		if got, err := c.ClusterKeySlot(context.Background(), key).Result(); err != nil || got != slot {
			t.Errorf("%q is in slot %d (%v), want %d", key, got, err, slot)
		}
	}
	workers, _ := c.ClusterKeySlot(context.Background(), WorkersKey).Result()
	if clock, _ := c.ClusterKeySlot(context.Background(), WorkersClock).Result(); clock != workers {
		t.Errorf("the workers' keys are in slots %d and %d", workers, clock)
	}
}

func TestShardsSpreadOverSlots(t *testing.T) {
	for _, n := range []int{1, 2, 3, 16, 64, 100, 1024} {
		space := NewKeyspace(n)
		seen := map[string]bool{}
		for i := range n {
			tag := strings.TrimSuffix(strings.TrimPrefix(space.Shard(i).prefix, "sluice:{"), "}:")
			slot := int(clusterSlot(tag))
			if low, high := i*clusterSlots/n, (i+1)*clusterSlots/n; slot < low || slot > high {
				t.Errorf("shard %d of %d is in slot %d, want %d to %d", i, n, slot, low, high)
			}
			if seen[tag] || space.byClock[space.Shard(i).Clock()] != i || space.Shard(i).Index != i {
				t.Errorf("shard %d of %d has the tag %q", i, n, tag)
			}
			seen[tag] = true
		}
	}
}

func TestTenantsSpreadOverShards(t *testing.T) {
	const tenants, shards = 100_000, 64
	for _, pattern := range []string{"tenant-%d", "%08d", "10.0.%d", "user%dx@example.com"} {
		space := NewKeyspace(shards)
		count := make([]int, shards)
		for i := range tenants {
			count[space.ShardOf(fmt.Sprintf(pattern, i)).Index]++
		}
		for shard, n := range count {
			if mean := tenants / shards; n < mean*8/10 || n > mean*12/10 {
				t.Errorf("%s: shard %d has %d tenants, the mean is %d", pattern, shard, n, mean)
			}
		}
	}
}
