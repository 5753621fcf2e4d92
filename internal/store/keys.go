package store

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash/fnv"
	"strconv"
	"strings"
)

// This file builds every key. Client text enters a key only through EncodeName or ShortHash.

// Keys and channels that belong to no shard.
const (
	MetaKey      = "sluice:meta"
	CodecKey     = "sluice:codec" // the wrapped data keys of package sealed
	WorkersKey   = "sluice:{workers}:live"
	WorkersClock = "sluice:{workers}:clock"
	LatenessKey  = "sluice:{workers}:late:"      // and the id of the worker
	RoutesKey    = "sluice:{workers}:routes:"    // and the id of the worker
	FilesKey     = "sluice:{workers}:files"      // "DIGEST PROCESS" by the time of the process's last report
	SpreadKey    = "sluice:{workers}:spread"     // tenants whose settings are about to change in several shards
	SessionsKey  = "sluice:{operators}:sessions" // sessions of operators by their digests, as JSON
	OperatorsKey = "sluice:{operators}:ring"     // accounts of operators by id, as JSON
	TokensKey    = "sluice:{tokens}:not_before"  // from when tokens are accepted: by tenant and subject, in Unix milliseconds
	// OperatorsUsedKey has the last use of each account by id, in Unix milliseconds.
	OperatorsUsedKey = "sluice:{operators}:used"
	WorkersWake      = "sluice:{workers}:wake"  // channel: a worker has left
	AuditClock       = "sluice:{audit}:clock"   // the end of the chain of the audit, and its sums
	AuditKey         = "sluice:{audit}:entries" // the entries of the audit
)

// MaxShards is the greatest number of shards.
const MaxShards = 1024

const (
	clusterSlots   = 16384
	maxPlainLength = 64
)

// Keyspace holds the keys of all shards.
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

// Len returns the number of shards.
func (k Keyspace) Len() int { return len(k.shards) }

// Shard returns the keys of shard i.
func (k Keyspace) Shard(i int) ShardKeys { return k.shards[i] }

// Shards returns the keys of all shards; they must not be changed.
func (k Keyspace) Shards() []ShardKeys { return k.shards }

// ShardOfClock returns the shard with this clock key.
func (k Keyspace) ShardOfClock(key string) (s ShardKeys, ok bool) {
	i, ok := k.byClock[key]
	return k.shards[i], ok
}

// ShardOf returns the shard of the tenant's settings, and of its flows that are in no pool. A pool
// is named as PoolName names it.
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

// EncodeName encodes a tenant or route for a key: [A-Za-z0-9._-]{1,64} stays as it is, any other
// text becomes ~ and its SHA-256 in hex.
func EncodeName(name string) string {
	plain := name != "" && len(name) <= maxPlainLength
	for i := 0; plain && i < len(name); i++ {
		c := name[i]
		plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' ||
			c == '_' || c == '-'
	}
	if plain {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "~" + hex.EncodeToString(sum[:])
}

// FlowName returns a flow as keys and index members name it.
func FlowName(tenant, route string) string { return EncodeName(tenant) + "/" + EncodeName(route) }

// PoolName is a pool in keys. No tenant is named so there.
func PoolName(pool string) string { return poolMark + EncodeName(pool) }

// IsPool reports whether an entry of an index of tenants is that of a pool.
func IsPool(entry string) bool { return strings.HasPrefix(entry, poolMark) }

const poolMark = "+"

// TierName is a tier in keys; empty for none.
func TierName(tier string) string {
	if tier == "" {
		return ""
	}
	return EncodeName(tier)
}

// TenantEntry returns the member of a tenant in the index of tenants: its name as in keys and,
// where that is a hash, the name itself. A member is not a key, so it may hold client text.
func TenantEntry(tenant string) string {
	if encoded := EncodeName(tenant); encoded != tenant {
		return encoded + " " + tenant
	}
	return tenant
}

// TenantOfEntry is the inverse of TenantEntry.
func TenantOfEntry(entry string) string {
	if _, name, found := strings.Cut(entry, " "); found && strings.HasPrefix(entry, "~") {
		return name
	}
	return entry
}

// ShortHash returns 128 bits of a SHA-256 in 22 characters. The length of each part is hashed
// before it.
func ShortHash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
}

// ShardKeys builds the keys of one shard. Flows, tenants and hashes are as EncodeName, FlowName and
// ShortHash give them.
type ShardKeys struct {
	Index  int // of the shard, from 0
	prefix string
}

// Channel returns a channel of the shard, named as in package lua.
func (s ShardKeys) Channel(name string) string { return s.prefix + name }

// Trim returns a key of the shard without the prefix that names the shard.
func (s ShardKeys) Trim(key string) string { return strings.TrimPrefix(key, s.prefix) }

// The methods below return the keys of the shard in the order of the table in docs/architecture.md,
// which names what each key holds.
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

// Class is the set of the tenants of a class, as in keys.
func (s ShardKeys) Class(class string) string { return s.prefix + "class:" + class }

// WaitInClass is the index of a pool for the flows of tenants that claim a tier.
func (s ShardKeys) WaitInClass(pool, tier string) string { return s.Wait(pool) + "/" + TierName(tier) }

// Wait, Ready and Reserve are the indexes of a pool, named as PoolName names it.
func (s ShardKeys) Wait(pool string) string     { return s.prefix + "wait:" + pool }
func (s ShardKeys) Ready(pool string) string    { return s.prefix + "ready:" + pool }
func (s ShardKeys) Reserve(pool string) string  { return s.prefix + "reserve:" + pool }
func (s ShardKeys) Flow(flow string) string     { return s.prefix + "flow:" + flow }
func (s ShardKeys) Queue(flow string) string    { return s.prefix + "queue:" + flow }
func (s ShardKeys) Later(flow string) string    { return s.prefix + "later:" + flow }
func (s ShardKeys) Returned(flow string) string { return s.prefix + "returned:" + flow }
func (s ShardKeys) Dead(flow string) string     { return s.prefix + "dead:" + flow }
func (s ShardKeys) Kept(flow string) string     { return s.prefix + "kept:" + flow }
func (s ShardKeys) Done(flow string) string     { return s.prefix + "done:" + flow }
func (s ShardKeys) Job(id string) string        { return s.prefix + "job:" + id }
func (s ShardKeys) Stream(id string) string     { return s.prefix + "stream:" + id }
func (s ShardKeys) Beyond(id string) string     { return s.prefix + "beyond:" + id }
func (s ShardKeys) Reading(id string) string    { return s.prefix + "reading:" + id }
func (s ShardKeys) Key(id string) string        { return s.prefix + "key:" + id }
func (s ShardKeys) Keys(tenant string) string   { return s.prefix + "keys:" + tenant }

// Aside is a large result of the lease of a job with this epoch, before its settlement.
func (s ShardKeys) Aside(id string, epoch int64) string {
	return s.prefix + "aside:" + id + ":" + strconv.FormatInt(epoch, 10)
}

// Callbacks is the hash of the secrets and endpoints of a tenant's callbacks.
func (s ShardKeys) Callbacks(tenant string) string { return s.prefix + "callbacks:" + tenant }

func (s ShardKeys) Idem(tenant, hash string) string {
	return s.prefix + "idem:" + tenant + ":" + hash
}

// PrefixOf returns what all keys and channels of the shard begin with that this one belongs to.
func PrefixOf(key string) string { return key[:strings.Index(key, "}:")+len("}:")] }

// FenceOf returns the hash for a write that only proves that the earlier writes of its connection
// are replicated: the clock beside a key, which exists wherever the shard has anything. It is empty
// for a key that no shard has.
func FenceOf(key string) string {
	prefix, _, ok := strings.Cut(key, "}:")
	if !ok {
		return ""
	}
	return prefix + "}:clock"
}

// Limit, LimitLog and Blocked return the keys of limiters. hash is the ShortHash of the rule and
// the key of the limiter; for Blocked, of the rule alone.
func (s ShardKeys) Limit(hash string) string    { return s.prefix + "limit:" + hash }
func (s ShardKeys) LimitLog(hash string) string { return s.prefix + "limitlog:" + hash }
func (s ShardKeys) Blocked(hash string) string  { return s.prefix + "blocked:" + hash }
