package lua_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// snapshot is a whole shard, by the part of each key after the hash tag: hashes as
// map[string]string, sorted sets as []member, sets and lists as []string, records as
// scripts.Record, other strings as they are. ends lists the keys that run out.
type snapshot struct {
	Keys map[string]any
	Ends []string
}

// dropGrants leaves the answers to polls out.
func (s *snapshot) dropGrants() {
	isGrant := func(key string) bool { return strings.HasPrefix(key, "grant:") }
	maps.DeleteFunc(s.Keys, func(key string, _ any) bool { return isGrant(key) })
	s.Ends = slices.DeleteFunc(s.Ends, isGrant)
}

func text[N ~int64](n N) string { return strconv.FormatInt(int64(n), 10) }

// snapshot is what the shard should hold.
func (m *model) snapshot() snapshot {
	s := snapshot{Keys: map[string]any{}}
	sorted := func(key string, z zset) {
		if len(z) > 0 {
			s.Keys[key] = z.list()
		}
	}
	c := m.stored
	if c != (clock{}) {
		looked := ""
		if c.scan {
			looked = "00"
		}
		numbers := fmt.Sprintf("%d %d %d %d %d %d %d %d %d %d %d %d %d", c.last, c.off, c.wake, c.depth,
			c.running, c.swept, c.grace, c.help,
			c.bytes, c.stored, c.admitted, c.rejected, c.departed)
		fields := map[string]string{
			"n": numbers, "looked": looked, "revision": text(c.revision), "lapsed": text(c.lapsed),
			"dead": text(c.dead),
		}
		for route, at := range m.lineEnds {
			fields["line:"+route] = text(at)
		}
		for class, sums := range m.classes {
			fields[scripts.ClassField(class)] = fmt.Sprintf("%d %d %d %d %d %d %d", sums.Stored, sums.Answers.Sum,
				sums.Answers.Before, sums.Answers.Since, sums.Keys.Sum, sums.Keys.Before, sums.Keys.Since)
		}
		s.Keys["clock"] = present(fields)
	}
	sorted("due", m.due)
	sorted("expires", m.expires)
	sorted("leases", m.leases)
	sorted("tenants", m.tenants)
	sorted("outbox", m.outbox)
	if m.claimed.name != "" {
		s.Keys["claim"] = m.claimed.name + " " + strings.Join(m.claimed.ids, " ")
		s.Ends = append(s.Ends, "claim")
	}
	if m.lines.revision > 0 {
		s.Keys["lines"] = m.lines.stored(m.lines.baselineLines())
	}
	for entry, own := range m.tuned {
		s.Keys["lines:"+tenantOfEntry(entry)] = own.stored(own.linesOf(tenantOfEntry(entry)))
	}
	if len(m.tuned) > 0 {
		s.Keys["tuned"] = slices.Sorted(maps.Keys(m.tuned))
	}
	for class, tenants := range m.members {
		if len(tenants) > 0 {
			s.Keys["class:"+class] = keysOf(tenants)
		}
	}
	for tenant, names := range m.names {
		s.Keys["flows:"+tenant] = keysOf(names)
	}
	for tenant, p := range m.policies {
		s.Keys["policy:"+tenant] = p.fields
		if len(p.history) > 0 {
			s.Keys["history:"+tenant] = p.history
		}
		if p.file.Empty() && p.api.Empty() && !isPool(tenant) {
			s.Ends = append(s.Ends, "policy:"+tenant)
			if len(p.history) > 0 {
				s.Ends = append(s.Ends, "history:"+tenant)
			}
		}
	}
	for name, f := range m.flows {
		cells := make([]string, len(f.Cells))
		for i, c := range f.Cells {
			cells[i] = fmt.Sprintf("%d:%d", c.TAT, c.Rem)
			if c.Credit > 0 {
				cells[i] += fmt.Sprintf(":%d", c.Credit)
			}
		}
		fields := map[string]string{
			"policy": fmt.Sprintf("%d =%s %s", f.revision, f.tier, lineIn(f.home, f.policy)), "cells": strings.Join(cells, ","), "last": text(f.Last), "ready": text(f.Ready), "held": text(f.HeldUntil), "depth": text(f.Depth),
			"queued": text(f.Queued), "cost": text(f.Cost), "seq": text(f.Seq), "running": text(f.Running), "seen": text(f.seen),
			"admitted": text(f.admitted), "rejected": text(f.rejected), "departed": text(f.departed), "succeeded": text(f.succeeded),
			"dead": text(f.dead), "share": text(f.Share), "spaced": text(f.Spaced), "full": text(f.full), "bytes": text(f.Bytes),
			"live": text(f.live), "dead_bytes": text(f.deadBytes),
			"answers": text(f.answers.Sum), "answers_before": text(f.answers.Before), "answers_at": text(f.answers.Since),
			"class": f.class, "owed": text(f.owed), "extra": text(f.extra),
			"keys": text(f.keys.Sum), "keys_before": text(f.keys.Before), "keys_at": text(f.keys.Since),
		}
		if f.turn.pool != "" {
			fields["turn"] = f.turn.String()
		}
		if p := m.pools[strings.TrimSuffix(name, "/")]; p != nil {
			fields["virtual"], fields["behind"], fields["weights"], fields["reserves"] = text(p.virtual), text(p.behind), text(p.weights), text(p.reserves)
			fields["probe"], fields["watched"] = text(f.Probe), text(shaper.Watched(p.pauses, p.refusals))
			if p.asked != "" {
				fields["asked"] = p.asked
			}
			if p.refused != "" {
				fields["refused"] = p.refused
			}
			fields["classes"] = p.classesText()
			fields["earlier_cost"], fields["changed_cost"], fields["ahead"] = text(p.earlier), text(p.changed), text(p.ahead)
			fields["spared"] = text(p.spared)
			for class, a := range p.awaited {
				fields["awaited:"+class] = fmt.Sprintf("%d %d", a.Due, a.Departed)
			}
		}
		if f.awaited != (shaper.Awaited{}) {
			fields["awaited"] = fmt.Sprintf("%d %d", f.awaited.Due, f.awaited.Departed)
		}
		if f.trial != (shaper.Trial{}) {
			fields["trial"] = fmt.Sprintf("%d %d %d", f.trial.Since, f.trial.Departed, f.trial.Refused)
		}
		if f.hindered.Cause != "" {
			fields["hindered"] = text(f.hindered.Until) + ":" + f.hindered.Cause
		}
		if f.cause != "" {
			fields["cause"] = f.cause
		}
		s.Keys["flow:"+name] = present(fields)
	}
	for name, p := range m.pools {
		sorted("wait:"+name, p.wait)
		sorted("ready:"+name, p.ready)
		sorted("reserve:"+name, p.reserve)
		for class, c := range p.classes {
			sorted("wait:"+name+"/"+class, c.line)
		}
	}
	for name, z := range m.queue {
		sorted("queue:"+name, z)
	}
	for name, z := range m.laters {
		sorted("later:"+name, z)
	}
	for name, z := range m.returned {
		sorted("returned:"+name, z)
	}
	for name, z := range m.deads {
		sorted("dead:"+name, z)
		if len(z) > 0 {
			s.Ends = append(s.Ends, "dead:"+name)
		}
	}
	for name, list := range m.done {
		s.Keys["done:"+name] = list
		s.Ends = append(s.Ends, "done:"+name)
	}
	for id, j := range m.jobs {
		s.Keys["job:"+id] = bare(*j)
		if _, awaited := m.outbox[id]; j.State.Done() && !awaited {
			s.Ends = append(s.Ends, "job:"+id)
		}
	}
	for key, known := range m.idem {
		s.Keys["idem:"+key] = known
		if scripts.ParseKnown(known).State != 0 {
			s.Ends = append(s.Ends, "idem:"+key)
		}
	}
	for worker, g := range m.grants {
		lines := []string{text(g.counter)}
		for _, ref := range g.leases {
			lines = append(lines, ref.id+" "+text(ref.epoch))
		}
		s.Keys["grant:"+worker] = strings.Join(lines, "\n")
		s.Ends = append(s.Ends, "grant:"+worker)
	}
	slices.Sort(s.Ends)
	return s
}

func keysOf(set map[string]bool) (list []string) {
	for name := range set {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// present is a hash without the fields that say what a missing one says.
func present(fields map[string]string) map[string]string {
	maps.DeleteFunc(fields, func(name, value string) bool { return value == "0" || value == "" })
	return fields
}

// bare is a record in which no bytes are nil.
func bare(r scripts.Record) scripts.Record {
	if len(r.Payload) == 0 {
		r.Payload = nil
	}
	if len(r.Result) == 0 {
		r.Result = nil
	}
	return r
}

// kinds says how the keys of each kind are stored.
var kinds = map[string]func(context.Context, redis.Pipeliner, string) redis.Cmder{
	"clock": hash, "flow": hash, "policy": hash, "lines": hash,
	"due": sortedSet, "expires": sortedSet, "leases": sortedSet, "tenants": sortedSet, "queue": sortedSet, "later": sortedSet, "dead": sortedSet,
	"outbox": sortedSet, "returned": sortedSet, "wait": sortedSet, "ready": sortedSet, "reserve": sortedSet,
	"tuned": plainSet, "flows": plainSet, "class": plainSet,
	"history": list, "done": list,
	"job": plain, "idem": plain, "grant": plain, "claim": plain,
}

func hash(ctx context.Context, p redis.Pipeliner, key string) redis.Cmder { return p.HGetAll(ctx, key) }
func sortedSet(ctx context.Context, p redis.Pipeliner, key string) redis.Cmder {
	return p.ZRangeWithScores(ctx, key, 0, -1)
}
func plainSet(ctx context.Context, p redis.Pipeliner, key string) redis.Cmder {
	return p.SMembers(ctx, key)
}
func list(ctx context.Context, p redis.Pipeliner, key string) redis.Cmder {
	return p.LRange(ctx, key, 0, -1)
}
func plain(ctx context.Context, p redis.Pipeliner, key string) redis.Cmder { return p.Get(ctx, key) }

// keysUnder lists all keys of a shard, also those that nothing should have made.
func keysUnder(ctx context.Context, e engine, prefix string) (keys []string, err error) {
	seen := map[string]bool{} // SCAN may tell a key twice
	iter := e.Scan(ctx, 0, prefix+"*", 10_000).Iterator()
	for iter.Next(ctx) {
		seen[iter.Val()] = true
	}
	return keysOf(seen), iter.Err()
}

// readShard reads all keys of a shard.
func readShard(ctx context.Context, e engine, prefix string) (snapshot, error) {
	s := snapshot{Keys: map[string]any{}}
	keys, err := keysUnder(ctx, e, prefix)
	if err != nil || len(keys) == 0 {
		return s, err
	}
	return s, s.read(ctx, e, prefix, keys)
}

func (s *snapshot) read(ctx context.Context, e engine, prefix string, keys []string) error {
	values, ends := make([]redis.Cmder, len(keys)), make([]*redis.DurationCmd, len(keys))
	if _, err := e.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			kind, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), ":")
			read, known := kinds[kind]
			if !known {
				return fmt.Errorf("a key of no known kind: %s", key)
			}
			values[i], ends[i] = read(ctx, p, key), p.PTTL(ctx, key)
		}
		return nil
	}); err != nil {
		return err
	}
	for i, key := range keys {
		name := strings.TrimPrefix(key, prefix)
		if ends[i].Val() > 0 {
			s.Ends = append(s.Ends, name)
		}
		switch v := values[i].(type) {
		case *redis.MapStringStringCmd:
			s.Keys[name] = v.Val()
			delete(v.Val(), "replid") // the embedded engine names none
			if name == "clock" || strings.HasPrefix(name, "flow:") {
				s.Keys[name] = present(v.Val())
			}
		case *redis.ZSliceCmd:
			var list []member
			for _, z := range v.Val() {
				list = append(list, member{z.Member.(string), int64(z.Score)})
			}
			s.Keys[name] = list
		case *redis.StringSliceCmd:
			s.Keys[name] = v.Val()
			if strings.HasPrefix(name, "flows:") || strings.HasPrefix(name, "class:") || name == "tuned" {
				slices.Sort(v.Val())
			}
		case *redis.StringCmd:
			s.Keys[name] = v.Val()
			if strings.HasPrefix(name, "job:") {
				record, err := scripts.DecodeRecord([]byte(v.Val()))
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				s.Keys[name] = bare(record)
			}
		}
	}
	return nil
}

// open lists the jobs that are not done.
func (s snapshot) open() (ids []string) {
	for name, v := range s.Keys {
		if j, ok := v.(scripts.Record); ok && !j.State.Done() {
			ids = append(ids, name+" "+j.State.String())
		}
	}
	return ids
}
