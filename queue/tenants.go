package queue

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
)

// Sources of a setting, the strongest first.
const (
	SourceAPI     = "api"
	SourceFile    = "file"
	SourceDefault = "default"
)

// stated is what the sources say of a tenant.
type stated struct {
	revision  int64
	api, file shaper.Overrides
}

func (q *Queue) policy(s stated) shaper.Policy { return s.api.Over(s.file.Over(q.defaults)) }

// Tenant reads the policy and figures of a tenant, also of one never seen.
func (q *Queue) Tenant(ctx context.Context, tenant string) (Tenant, error) {
	shard, name := q.keys.ShardOf(tenant), EncodeName(tenant)
	call := lua.StatCall{Clock: shard.Clock(), Policy: shard.Policy(name), Names: shard.Names(name), Defaults: q.encoded}
	values, err := q.run(ctx, call.Call())
	if err != nil {
		return Tenant{}, err
	}
	stat, err := call.Decode(values)
	if err != nil {
		return Tenant{}, unavailable(err)
	}
	s := stated{revision: stat.Revision}
	if s.api, err = readOverrides(stat.API); err != nil {
		return Tenant{}, err
	}
	if s.file, err = readOverrides(stat.File); err != nil {
		return Tenant{}, err
	}
	return q.tenantOf(tenant, s, stat), nil
}

// tenantOf joins what is said of a tenant with the figures of its flows.
func (q *Queue) tenantOf(tenant string, s stated, stat lua.Stat) Tenant {
	p := q.policy(s)
	t := Tenant{Name: tenant, Policy: p, Sources: map[string]string{}, Reason: stat.Reason, Revision: s.revision, LimitedBy: "idle"}
	for _, name := range shaper.Settings() {
		t.Sources[name] = SourceDefault
	}
	for _, name := range s.file.Set() {
		t.Sources[name] = SourceFile
	}
	for _, name := range s.api.Set() {
		t.Sources[name] = SourceAPI
	}
	if !p.Paused {
		t.EffectiveRate = p.Rate.PerSecond()
		for _, pace := range p.Rates {
			t.EffectiveRate = min(t.EffectiveRate, pace.Rate.PerSecond())
		}
	}
	slowest, full := 1.0, false
	for _, f := range stat.Flows {
		t.Depth += f.Depth
		t.Running += f.Running
		t.Admitted += f.Admitted
		t.Rejected += f.Rejected
		t.Departed += f.Departed
		t.Succeeded += f.Succeeded
		t.DeadTotal += f.Dead
		if f.Oldest > 0 {
			t.OldestWait = max(t.OldestWait, stat.Now.Sub(f.Oldest))
		}
		if f.Queued > 0 {
			t.LimitedBy = limitedBy(p, f, stat.Now)
		}
		slowest = min(slowest, f.Pace)
		full = full || f.FullUntil > stat.Now
	}
	t.EffectiveRate *= slowest
	switch {
	case p.Paused:
		t.LimitedBy = "paused"
	case full:
		t.LimitedBy, t.EffectiveRate = "paused", 0
		t.Reason = fmt.Sprintf("as many dead letters as are kept (%d): replay or purge them", q.retention.DeadCapacity)
	}
	return t
}

// overdue is how late the next job of a flow must be before the workers are taken for what it waits for.
const overdue = time.Second

// limitedBy names what keeps the next job of a flow with a backlog from leaving. It is concurrency, too, where the rate would let it leave
// and no worker has a place for it.
func limitedBy(p shaper.Policy, f lua.FlowStat, now shaper.Instant) string {
	switch {
	case f.HeldUntil > now:
		return "held"
	case p.Concurrency > 0 && f.Running >= p.Concurrency, f.Earliest < now.Add(-overdue):
		return "concurrency"
	}
	return "rate"
}

// tuneTries bounds how often a change is computed anew because others were faster.
const tuneTries = 20

// Tune changes a tenant's API overrides. The backlog obeys at once. Errors: ErrRevision, ErrUnavailable, shaper.Problems when the
// resulting policy breaks a rule, or the error of change.Edit.
func (q *Queue) Tune(ctx context.Context, tenant string, change Change) (Tenant, error) {
	for range tuneTries {
		s, err := q.stated(ctx, tenant)
		if err != nil {
			return Tenant{}, err
		}
		if change.IfRevision != nil && *change.IfRevision != s.revision {
			return Tenant{}, fmt.Errorf("%w: %d", ErrRevision, s.revision)
		}
		before := s.api
		if s.api, err = change.Edit(s.api); err != nil {
			return Tenant{}, err
		}
		if err := q.policy(s).Validate(); err != nil {
			return Tenant{}, err
		}
		changed, err := q.state(ctx, tenant, SourceAPI, s, before, change)
		if err != nil {
			return Tenant{}, err
		}
		if changed {
			return q.Tenant(ctx, tenant)
		}
	}
	return Tenant{}, fmt.Errorf("%w: the policy was changed by others again and again", ErrUnavailable)
}

// stated reads what the sources say of a tenant.
func (q *Queue) stated(ctx context.Context, tenant string) (s stated, err error) {
	var found struct {
		Revision int64  `redis:"revision"`
		API      string `redis:"api"`
		File     string `redis:"file"`
	}
	key := q.keys.ShardOf(tenant).Policy(EncodeName(tenant))
	if err := q.engine.fast.HMGet(ctx, key, "revision", "api", "file").Scan(&found); err != nil {
		return s, unavailable(err)
	}
	s.revision = found.Revision
	if s.api, err = readOverrides(found.API); err != nil {
		return s, err
	}
	s.file, err = readOverrides(found.File)
	return s, err
}

// state writes what one source says, unless the revision has changed since s was read.
func (q *Queue) state(ctx context.Context, tenant, source string, s stated, before shaper.Overrides, change Change) (changed bool, err error) {
	says := s.api
	if source == SourceFile {
		says = s.file
	}
	written, err := writeOverrides(says)
	if err != nil {
		return false, err
	}
	entry, err := json.Marshal(HistoryEntry{time.Now().UTC(), s.revision + 1, change.Actor, change.Reason, before, says})
	if err != nil {
		return false, fmt.Errorf("queue: encode a change: %w", err)
	}
	shard, name := q.keys.ShardOf(tenant), EncodeName(tenant)
	call := lua.TuneCall{
		Clock: shard.Clock(), Due: shard.Due(), Policy: shard.Policy(name), History: shard.History(name), Names: shard.Names(name),
		Tenants: shard.Tenants(), Filed: shard.Filed(), Horizon: q.horizon, Defaults: q.encoded, Name: shortHash(uuid.NewString()), Expected: &s.revision,
		Source: source, Says: written, Effective: strings.TrimSpace(lua.EncodeOverrides(s.file) + " " + lua.EncodeOverrides(s.api)),
		Reason: change.Reason, HistoryEntry: string(entry), Entry: tenantEntry(tenant),
	}
	values, err := q.run(ctx, call.Call())
	if err != nil {
		return false, err
	}
	changed, _, err = call.Decode(values)
	return changed, unavailable(err)
}

// History lists the last changes of a tenant's API overrides, at most 100, the newest first. Errors: ErrUnavailable.
func (q *Queue) History(ctx context.Context, tenant string) ([]HistoryEntry, error) {
	texts, err := q.engine.fast.LRange(ctx, q.keys.ShardOf(tenant).History(EncodeName(tenant)), 0, -1).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	entries := make([]HistoryEntry, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal([]byte(text), &entries[i]); err != nil {
			return nil, fmt.Errorf("%w: a stored change cannot be read by this version: %w", ErrSchema, err)
		}
	}
	return entries, nil
}

func readOverrides(text string) (o shaper.Overrides, err error) {
	if text == "" {
		return o, nil
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return o, fmt.Errorf("%w: a stored policy cannot be read by this version: %w", ErrSchema, err)
	}
	return o, nil
}

// writeOverrides is the inverse of readOverrides: nothing said is the empty text.
func writeOverrides(o shaper.Overrides) (string, error) {
	if len(o.Set()) == 0 {
		return "", nil
	}
	raw, err := json.Marshal(o)
	if err != nil {
		return "", fmt.Errorf("queue: encode a policy: %w", err)
	}
	return string(raw), nil
}

// publishFile states the policies of this process's configuration file, and unsays those of tenants that it does not name any more.
func (q *Queue) publishFile(ctx context.Context) error {
	cmds := make([]*redis.StringSliceCmd, q.keys.Len())
	if _, err := q.engine.patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range cmds {
			cmds[i] = p.SMembers(ctx, q.keys.Shard(i).Filed())
		}
		return nil
	}); err != nil {
		return unavailable(err)
	}
	wanted := maps.Clone(q.file)
	if wanted == nil {
		wanted = map[string]shaper.Overrides{}
	}
	for _, cmd := range cmds {
		for _, entry := range cmd.Val() {
			if tenant := tenantOfEntry(entry); len(wanted[tenant].Set()) == 0 {
				wanted[tenant] = shaper.Overrides{}
			}
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(wanted)) {
		if err := q.publishTenant(ctx, tenant, wanted[tenant]); err != nil {
			return fmt.Errorf("state the file's policies: %w", err)
		}
	}
	return nil
}

func (q *Queue) publishTenant(ctx context.Context, tenant string, file shaper.Overrides) error {
	want, err := writeOverrides(file)
	if err != nil {
		return err
	}
	for range tuneTries {
		s, err := q.stated(ctx, tenant)
		if err != nil {
			return err
		}
		if have, err := writeOverrides(s.file); err == nil && have == want {
			return nil
		}
		before := s.file
		s.file = file
		if changed, err := q.state(ctx, tenant, SourceFile, s, before, Change{}); err != nil || changed {
			return err
		}
	}
	return fmt.Errorf("%w: the policy was changed by others again and again", ErrUnavailable)
}

// Tenants lists the names of tenants, up to limit, shard by shard; pass next as cursor for the following page, "" starts and ends. A name
// whose activity changes between two pages may be listed twice or not at all.
func (q *Queue) Tenants(ctx context.Context, cursor string, limit int) (names []string, next string, err error) {
	shard, from, err := readCursor(cursor, q.keys.Len())
	if err != nil {
		return nil, "", err
	}
	for ; shard < q.keys.Len(); shard, from = shard+1, 0 {
		want := int64(limit - len(names))
		if want <= 0 {
			return names, fmt.Sprintf("%d-%d", shard, from), nil
		}
		entries, err := q.engine.fast.ZRevRange(ctx, q.keys.Shard(shard).Tenants(), from, from+want-1).Result()
		if err != nil {
			return nil, "", unavailable(err)
		}
		for _, e := range entries {
			names = append(names, tenantOfEntry(e))
		}
		if int64(len(entries)) == want {
			return names, fmt.Sprintf("%d-%d", shard, from+want), nil
		}
	}
	return names, "", nil
}

// ErrCursor means that a cursor is none that a listing gave.
var ErrCursor = fmt.Errorf("queue: not a cursor")

func readCursor(cursor string, shards int) (shard int, from int64, err error) {
	if cursor == "" {
		return 0, 0, nil
	}
	left, right, _ := strings.Cut(cursor, "-")
	shard, err = strconv.Atoi(left)
	if err != nil || shard < 0 || shard >= shards {
		return 0, 0, ErrCursor
	}
	if from, err = strconv.ParseInt(right, 10, 64); err != nil || from < 0 || from > 1<<40 {
		return 0, 0, ErrCursor
	}
	return shard, from, nil
}
