package lua_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// admitOne is an admission of one job as the record says, into a shard of its own.
func admitOne(shard store.ShardKeys, at shaper.Instant, id string, r scripts.Record) (scripts.AdmitCall, error) {
	rest, err := r.Rest()
	tenant := tenantOf(r.Flow)
	call := scripts.AdmitCall{
		At: scripts.AtInstant(at), Clock: shard.Clock(), Due: shard.Due(), Expires: shard.Expires(),
		Tenants: shard.Tenants(), Horizon: horizon,
		Flows: []scripts.AdmitFlow{{
			Flow: shard.Flow(r.Flow), Queue: shard.Queue(r.Flow), Later: shard.Later(r.Flow),
			Lines: shard.LinesOf(tenant), Names: shard.Names(tenant),
			Entry: entryOf(r.Tenant),
		}},
		Jobs: []scripts.AdmitJob{{Key: shard.Job(id), MaxWaitMS: r.MaxWaitMS, Type: r.Type, Rest: rest}},
	}
	if r.Idem != "" {
		call.Jobs[0].IdemKey, call.Jobs[0].IdemHash, call.Jobs[0].Fingerprint = shard.Idem(tenant, r.Idem),
			r.Idem, "print"
	}
	return call, err
}

// TestRecordRoundTrip: what Rest encodes and the script completes is what DecodeRecord reads, for
// any text and any bytes.
func TestRecordRoundTrip(t *testing.T) {
	e := embeddedEngine(t)
	at := shaper.Instant(1_772_366_400_123_456)
	p := shaper.DefaultPolicy()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(1, 60, 255)
		r := scripts.Record{
			Cost:        rapid.Int64Range(1, shaper.MaxCost).Draw(t, "cost"),
			MaxAttempts: rapid.IntRange(1, 65535).Draw(t, "max attempts"),
			Idem:        rapid.SampledFrom([]string{"", "0123456789abcdefghijkl"}).Draw(t, "idem"),
			Type:        rapid.StringN(0, 60, 255).Draw(t, "type"),
			Tenant:      text.Draw(t, "tenant"),
			Route:       text.Draw(t, "route"),
			TraceParent: rapid.StringN(0, 60, 255).Draw(t, "trace parent"),
			CallbackURL: rapid.StringN(0, 200, 1024).Draw(t, "callback URL"),
			MaxWaitMS:   rapid.SampledFrom([]int64{0, 1, 60_000, shaper.MaxPeriod.Milliseconds()}).Draw(t, "max wait"),
			Payload:     rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "payload"),
		}
		r.Flow = store.EncodeName(r.Tenant) + "/" + store.EncodeName(r.Route)
		shard := e.keys.Shard(7)
		declared := scripts.DeclareCall{
			At: scripts.AtInstant(at), Clock: shard.Clock(), Lines: shard.Lines(), Revision: 1,
			Settings: scripts.Lines{"/": scripts.EncodePolicy(p)},
		}
		if _, err := scripts.Run(t.Context(), e, nil, declared.Call()); err != nil {
			t.Fatal(err)
		}
		call, err := admitOne(shard, at, "id", r)
		if err != nil {
			t.Fatal(err)
		}
		defer e.FlushDB(t.Context()) // the engine is this test's own
		values, err := scripts.Run(t.Context(), e, nil, call.Call())
		if err != nil {
			t.Fatal(err)
		}
		decisions, err := call.Decode(values)
		if err != nil || decisions[0].Outcome != shaper.Admitted {
			t.Fatalf("%v, the decisions are %+v, want admitted", err, decisions)
		}
		raw, err := e.Get(t.Context(), shard.Job("id")).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		got, err := scripts.DecodeRecord(raw)
		if err != nil {
			t.Fatal(err)
		}
		want := r
		want.State, want.Outcome, want.At, want.Created, want.Seq = shaper.Queued, '-', at, at, 1
		if r.MaxWaitMS > 0 {
			want.Deadline = at + shaper.Instant(r.MaxWaitMS*1000)
		}
		if diff := difference(bare(want), bare(got)); diff != "" {
			t.Fatalf("-written +read:\n%s", diff)
		}
	})
}

// TestRecordTooLong: what does not fit into a record is refused before it is sent.
func TestRecordTooLong(t *testing.T) {
	long, half := strings.Repeat("x", 256), strings.Repeat("x", 250)
	for name, r := range map[string]scripts.Record{
		"a type of 256 bytes":           {Flow: "a/b", Type: long},
		"a callback URL of 1,059 bytes": {Flow: "a/b", CallbackURL: strings.Repeat("x", 1059)},
		"fields that are long together": {
			Flow: half, Idem: half, Type: half, Tenant: half[1:], Route: half, CallbackURL: strings.Repeat("x", 1024),
		},
	} {
		if _, err := r.Rest(); !errors.Is(err, scripts.ErrRecord) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLayout: fields that scripts read or write in one piece are adjacent.
func TestLayout(t *testing.T) {
	all := strings.Join(scripts.HeadFields(), " ")
	for _, piece := range []string{
		"epoch attempts", // job_waiting
		"version state epoch attempts free outcome",   // job_succeeding
		"state epoch attempts free outcome tag stamp", // job_leased
		"at deadline",                          // job_ended
		"created wait cost max prefix payload", // job_head, job_ended, Rest
	} {
		if !strings.Contains(all, piece) {
			t.Errorf("%q is not a part of %q", piece, all)
		}
	}
	if !strings.HasSuffix(all, " cost max prefix payload") {
		t.Errorf("%q does not end with what Go writes", all)
	}
}

// FuzzDecodeRecord: stored bytes may be anything. Reading them never panics, and a record that is
// read can be encoded again.
func FuzzDecodeRecord(f *testing.F) {
	rest, err := scripts.Record{
		Cost: 1, MaxAttempts: 5, Flow: "acme/echo", Idem: "hash", Type: "mail", Tenant: "acme", Route: "echo",
		Payload: []byte("payload"),
	}.Rest()
	if err != nil {
		f.Fatal(err)
	}
	whole := append([]byte("1q"+strings.Repeat("\x00", 54)), rest...)
	f.Add(whole)
	f.Add(whole[:len(whole)-7]) // without its payload
	f.Add(whole[:64])
	f.Add(whole[:70])
	f.Add([]byte(nil))
	f.Add([]byte("1" + strings.Repeat("\xff", 100)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := scripts.DecodeRecord(raw)
		if err != nil {
			if !errors.Is(err, scripts.ErrRecord) {
				t.Errorf("an error of another kind: %v", err)
			}
			return
		}
		if len(r.Payload)+len(r.Result) > len(raw) {
			t.Errorf("%d bytes hold a payload of %d and a result of %d", len(raw), len(r.Payload), len(r.Result))
		}
		if _, err := r.Rest(); err != nil && !errors.Is(err, scripts.ErrRecord) {
			t.Errorf("encoding what was read: %v", err)
		}
		p, ok := scripts.PeekRecord(raw)
		if !ok {
			t.Error("PeekRecord refuses what DecodeRecord reads")
		}
		if want := (scripts.Peeked{State: r.State, Flow: r.Flow, Type: r.Type, TraceParent: r.TraceParent, Created: r.Created}); p != want {
			t.Errorf("PeekRecord: %+v, want %+v", p, want)
		}
		flow, payload, size, ok := scripts.PeekPayload(raw)
		if !ok || flow != r.Flow {
			t.Errorf("PeekPayload: the flow %q (%v), want %q", flow, ok, r.Flow)
		}
		if len(r.Payload) > 0 && (!bytes.Equal(payload, r.Payload) || size != len(payload)) {
			t.Errorf("PeekPayload: %q of the size %d, want %q", payload, size, r.Payload)
		}
	})
}

// FuzzParseKnown: the value of an idempotency key may be anything. Reading it never panics and
// invents nothing.
func FuzzParseKnown(f *testing.F) {
	f.Add("")
	f.Add("id print")
	f.Add("id print S 1772366400000000 1772366400000001 2 3")
	f.Add("id print S x 1 99999999999999999999 -1")
	f.Add("  \n id")
	f.Fuzz(func(t *testing.T, text string) {
		k := scripts.ParseKnown(text)
		fields := strings.Fields(text)
		if len(fields) == 0 && k != (scripts.KnownJob{}) {
			t.Errorf("nothing is read as %+v", k)
		}
		if len(fields) > 0 && k.ID != fields[0] {
			t.Errorf("the id of %q is read as %q", text, k.ID)
		}
		if len(fields) < 7 && k.State != 0 {
			t.Errorf("%q has no state, read %v", text, k.State)
		}
	})
}

// TestParseKnown: the value of an idempotency key has the end of its job, or the id alone while the
// job lives.
func TestParseKnown(t *testing.T) {
	want := scripts.KnownJob{
		ID: "id", State: shaper.Succeeded, Created: 1_772_366_400_000_000, Finished: 1_772_366_400_000_001,
		Attempts: 2, MaxAttempts: 3,
	}
	if got := scripts.ParseKnown("id print S 1772366400000000 1772366400000001 2 3"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := scripts.ParseKnown("id print"); got != (scripts.KnownJob{ID: "id"}) {
		t.Errorf("of a living job: %+v", got)
	}
}
