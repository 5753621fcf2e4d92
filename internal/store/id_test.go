package store

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestIDNamesItsShard(t *testing.T) {
	all := NewKeyspace(MaxShards)
	for shard := range MaxShards {
		id, err := NewID(ShardKeys{Index: shard})
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := all.ShardOfID(id); !ok || got.Index != shard || len(id) != idLength {
			t.Errorf("id %q of shard %d is read as %d, %v", id, shard, got.Index, ok)
		}
		if _, ok := (Keyspace{shards: all.shards[:shard]}).ShardOfID(id); ok {
			t.Errorf("id %q of shard %d is taken where there are %d", id, shard, shard)
		}
	}
}

func TestIDsSortByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		for i := range 1000 {
			id, err := NewID(ShardKeys{Index: (7 * i) % 64})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
			if i%10 == 0 {
				<-time.After(time.Millisecond)
			}
		}
		if !slices.IsSorted(ids) {
			t.Error("ids made one after another do not sort so")
		}
		if slices.Sort(ids); len(slices.Compact(ids)) != 1000 {
			t.Error("an id was made twice")
		}
	})
}

func TestInvalidIDs(t *testing.T) {
	id, err := NewID(ShardKeys{Index: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"", id + "x", id + "0", id[1:], id[:27], strings.ToUpper(id), "w" + id[1:], id[:10] + "-" + id[11:],
		id[:25] + "1" + id[26:],
		id[:25] + "v" + id[26:], id[:26] + "\x00\x05", strings.Repeat("é", 14), " " + id[1:], id[:26] + "vv",
	} {
		if shard, ok := NewKeyspace(64).ShardOfID(bad); ok {
			t.Errorf("%q is taken for an id of shard %d", bad, shard.Index)
		}
	}
}

func FuzzShardOfID(f *testing.F) {
	id, err := NewID(ShardKeys{Index: 63})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		"", id, id + "x", id[:27], strings.ToUpper(id), strings.Repeat("v", 28), strings.Repeat("0", 28),
	} {
		f.Add(seed, 64)
	}
	all := NewKeyspace(MaxShards)
	f.Fuzz(func(t *testing.T, id string, n int) {
		n = min(max(0, n), MaxShards)
		found, ok := (Keyspace{shards: all.shards[:n]}).ShardOfID(id)
		if !ok {
			return
		}
		shard := found.Index
		if shard >= n {
			t.Errorf("%q is of shard %d of %d", id, shard, n)
		}
		raw, err := idEncoding.DecodeString(id[:uuidLength])
		if err != nil ||
			idEncoding.EncodeToString(raw)+string(idAlphabet[shard>>5])+string(idAlphabet[shard&31]) != id {
			t.Errorf("%q is taken, though its parts would be written otherwise (%v)", id, err)
		}
	})
}
