package queue

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash/fnv"
	"strconv"
	"strings"
)

// This file builds every key there is. Client text never enters one raw: see EncodeName.

const (
	metaKey        = "sluice:meta"
	workersKey     = "sluice:{workers}:live"
	workersClock   = "sluice:{workers}:clock"
	latenessPrefix = "sluice:{workers}:late:"   // and the id of the worker
	filesKey       = "sluice:{workers}:files"   // digests of the policy files of processes, each with its process, by when it last said so
	routesPrefix   = "sluice:{workers}:routes:" // and the id of the worker
	wakeChannel    = "sluice:wake"
	doneChannel    = "sluice:done:" // and the id of the job
	clusterSlots   = 16384
	maxShards      = 1024
	defaultShards  = 64
	maxPlainLength = 64
)

// Keyspace knows the shards and their hash tags.
type Keyspace struct {
	shards  []ShardKeys
	byClock map[string]int
}

// NewKeyspace lays out n shards, 1 to 1,024. The hash tag of shard i is the smallest number whose
// cluster slot lies in the i-th of n equal ranges, so the shards spread evenly over the slots.
func NewKeyspace(n int) Keyspace {
	k := Keyspace{shards: make([]ShardKeys, n), byClock: make(map[string]int, n)}
	for tag, found := 0, 0; found < n; tag++ {
		text := strconv.Itoa(tag)
		i := int(clusterSlot(text)) * n / clusterSlots
		if k.shards[i].prefix != "" {
			continue
		}
		k.shards[i] = ShardKeys{Index: i, prefix: "sluice:{" + text + "}:"}
		k.byClock[k.shards[i].Clock()] = i
		found++
	}
	return k
}

// Len is the number of shards.
func (k Keyspace) Len() int { return len(k.shards) }

// Shard is the keys of shard i.
func (k Keyspace) Shard(i int) ShardKeys { return k.shards[i] }

// ShardOf is the shard that all flows of the tenant live in.
func (k Keyspace) ShardOf(tenant string) ShardKeys {
	h := fnv.New64a()
	_, _ = h.Write([]byte(tenant)) // never fails
	return k.shards[h.Sum64()%uint64(len(k.shards))]
}

// clusterSlot is the CRC-16/XMODEM of a hash tag modulo the number of slots, as the Redis Cluster
// specification says.
func clusterSlot(tag string) uint16 {
	var crc uint16
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= 0x1021
			}
		}
	}
	return crc % clusterSlots
}

// EncodeName makes a tenant or route fit for a key: [A-Za-z0-9._-]{1,64} stays as it is, anything
// else becomes ~ and the hex SHA-256.
func EncodeName(name string) string {
	plain := name != "" && len(name) <= maxPlainLength
	for i := 0; plain && i < len(name); i++ {
		c := name[i]
		plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	if plain {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "~" + hex.EncodeToString(sum[:])
}

// flowName names a flow in keys and index members.
func flowName(tenant, route string) string { return EncodeName(tenant) + "/" + EncodeName(route) }

// tierName is a tier in keys; empty for none.
func tierName(tier string) string {
	if tier == "" {
		return ""
	}
	return EncodeName(tier)
}

// tenantEntry is a tenant's member in the index of tenants: its name as in keys and, where that is
// a hash, the name itself. A member is not a key, so it may hold client text.
func tenantEntry(tenant string) string {
	if encoded := EncodeName(tenant); encoded != tenant {
		return encoded + " " + tenant
	}
	return tenant
}

// tenantOfEntry is the inverse of tenantEntry.
func tenantOfEntry(entry string) string {
	if _, name, found := strings.Cut(entry, " "); found && strings.HasPrefix(entry, "~") {
		return name
	}
	return entry
}

// sessionKey is where an operator's session is kept.
func sessionKey(id [sha256.Size]byte) string { return "sluice:session:" + hex.EncodeToString(id[:]) }

// shortHash is 128 bits of a SHA-256 in 22 characters, each part told from its neighbours by its
// length.
func shortHash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
}

// ShardKeys builds the keys of one shard. Flows, tenants and hashes are as EncodeName, flowName and
// shortHash give them.
type ShardKeys struct {
	Index  int
	prefix string
}

// The keys of a shard, in the order of the architecture's table.
func (s ShardKeys) Clock() string                { return s.prefix + "clock" }
func (s ShardKeys) Due() string                  { return s.prefix + "due" }
func (s ShardKeys) Expires() string              { return s.prefix + "expires" }
func (s ShardKeys) Leases() string               { return s.prefix + "leases" }
func (s ShardKeys) Outbox() string               { return s.prefix + "outbox" }
func (s ShardKeys) Claim() string                { return s.prefix + "claim" }
func (s ShardKeys) Tenants() string              { return s.prefix + "tenants" }
func (s ShardKeys) Tuned() string                { return s.prefix + "tuned" }
func (s ShardKeys) Lines() string                { return s.prefix + "lines" }
func (s ShardKeys) Grant(worker string) string   { return s.prefix + "grant:" + worker }
func (s ShardKeys) Policy(tenant string) string  { return s.prefix + "policy:" + tenant }
func (s ShardKeys) LinesOf(tenant string) string { return s.prefix + "lines:" + tenant }
func (s ShardKeys) History(tenant string) string { return s.prefix + "history:" + tenant }
func (s ShardKeys) Names(tenant string) string   { return s.prefix + "flows:" + tenant }
func (s ShardKeys) Flow(flow string) string      { return s.prefix + "flow:" + flow }
func (s ShardKeys) Queue(flow string) string     { return s.prefix + "queue:" + flow }
func (s ShardKeys) Later(flow string) string     { return s.prefix + "later:" + flow }
func (s ShardKeys) Returned(flow string) string  { return s.prefix + "returned:" + flow }
func (s ShardKeys) Dead(flow string) string      { return s.prefix + "dead:" + flow }
func (s ShardKeys) Done(flow string) string      { return s.prefix + "done:" + flow }
func (s ShardKeys) Job(id string) string         { return s.prefix + "job:" + id }
func (s ShardKeys) Key(id string) string         { return s.prefix + "key:" + id }
func (s ShardKeys) Keys(tenant string) string    { return s.prefix + "keys:" + tenant }
func (s ShardKeys) Idem(tenant, hash string) string {
	return s.prefix + "idem:" + tenant + ":" + hash
}

// The keys of limiters, by shortHash of the rule and the limiter's key; that of the blocked ones,
// of the rule.
func (s ShardKeys) Limit(hash string) string    { return s.prefix + "limit:" + hash }
func (s ShardKeys) LimitLog(hash string) string { return s.prefix + "limitlog:" + hash }
func (s ShardKeys) Blocked(hash string) string  { return s.prefix + "blocked:" + hash }
