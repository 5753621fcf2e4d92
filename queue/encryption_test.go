package queue_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// keyFile makes a key file with one key.
func keyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "codec.key")
	if err := sealed.AddKey(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// encrypted opens a queue whose key file is path, without one if that is empty.
func encrypted(t *testing.T, e *queue.Engine, path string, edit ...func(*queue.Options)) *queue.Queue {
	t.Helper()
	o := queue.Options{
		Shards: 2, Defaults: shaper.Policy{Rate: shaper.Rate{Limit: 1000, Period: time.Second}, Burst: 100, Capacity: 100_000},
		Encryption: queue.Encryption{KeyFile: path}, Logger: slog.New(slog.DiscardHandler),
	}
	for _, f := range edit {
		f(&o)
	}
	q, err := queue.Open(t.Context(), e, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	return q
}

// everything passes each key of the store with each of its values to found.
func everything(t *testing.T, q *queue.Queue, found func(key, value string)) {
	t.Helper()
	var one sync.Mutex
	if err := store.EachMaster(context.Background(), store.Of(q).Patient, func(ctx context.Context, node scripts.Client) error {
		one.Lock()
		defer one.Unlock()
		return everythingOf(ctx, t, node.(redis.Cmdable), found)
	}); err != nil {
		t.Fatal(err)
	}
}

func everythingOf(ctx context.Context, t *testing.T, c redis.Cmdable, found func(key, value string)) error {
	t.Helper()
	keys := c.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) {
		key := keys.Val()
		found(key, key)
		switch kind := c.Type(ctx, key).Val(); kind {
		case "string":
			found(key, c.Get(ctx, key).Val())
		case "hash":
			for field, value := range c.HGetAll(ctx, key).Val() {
				found(key, field)
				found(key, value)
			}
		case "list":
			for _, value := range c.LRange(ctx, key, 0, -1).Val() {
				found(key, value)
			}
		case "set":
			for _, value := range c.SMembers(ctx, key).Val() {
				found(key, value)
			}
		case "zset":
			for _, value := range c.ZRange(ctx, key, 0, -1).Val() {
				found(key, value)
			}
		default:
			t.Errorf("key %s is a %s", key, kind)
		}
	}
	return keys.Err()
}

// marks are random letters by what they were written into.
type marks map[string]string

func (m marks) make(place string) string {
	letters := make([]byte, 16)
	for i := range letters {
		letters[i] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[rand.IntN(52)]
	}
	m[place] = string(letters)
	return m[place]
}

// unseen insists that no mark, and no form of one that can be turned back or guessed, is stored.
func (m marks) unseen(t *testing.T, q *queue.Queue) {
	t.Helper()
	forms, n := map[string]string{}, 0
	for place, mark := range m {
		sum := sha256.Sum256([]byte(mark))
		forms[mark], forms[hex.EncodeToString([]byte(mark))] = place, place+" in hex"
		forms[string(sum[:])], forms[hex.EncodeToString(sum[:])] = place+" as a digest", place+" as a digest in hex"
		forms[string(sum[:16])], forms[base64.RawURLEncoding.EncodeToString(sum[:12])] = place+" as a short digest", place+" as a digest in base64"
		forms[store.ShortHash(mark)] = place + " as a short hash"
		for i := range 3 {
			forms[base64.StdEncoding.EncodeToString([]byte(mark[i:i+12]))] = place + " in base64"
			forms[base64.URLEncoding.EncodeToString([]byte(mark[i:i+12]))] = place + " in base64url"
		}
	}
	everything(t, q, func(key, value string) {
		n++
		for form, place := range forms {
			if strings.Contains(value, form) {
				t.Errorf("%s is stored in %s", place, key)
			}
		}
	})
	if n < 10 {
		t.Errorf("only %d values were searched", n)
	}
}

// leased leases n jobs of a tenant, all of them due within an hour.
func leased(t *testing.T, q *queue.Queue, n int) (all []queue.Lease) {
	t.Helper()
	for shard := range q.Broker().Shards() {
		for range 3 { // the first polls may only name another script
			tick, err := q.Broker().Consumer(fmt.Sprint("w", rand.Uint64()), shard).Tick(t.Context(), queue.TickOptions{
				Max: 1000, Lease: time.Hour, Horizon: time.Hour, Sweep: time.Hour,
			})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, tick.Leases...)
		}
	}
	if len(all) != n {
		t.Fatalf("%d leases, want %d", len(all), n)
	}
	return all
}

// settle ends leases.
func settle(t *testing.T, q *queue.Queue, all ...queue.Settlement) {
	t.Helper()
	results, err := q.Broker().Settle(t.Context(), all)
	if err != nil || slices.ContainsFunc(results, func(r queue.SettleResult) bool { return r != queue.Settled }) {
		t.Fatalf("Settle: %v, %v", results, err)
	}
}

func admitted(t *testing.T, q *queue.Queue, s queue.Submission) queue.Job {
	t.Helper()
	d, err := q.Submit(t.Context(), s)
	if err != nil || d.Outcome != shaper.Admitted && d.Outcome != shaper.Replayed {
		t.Fatalf("Submit: %v, %v", d.Outcome, err)
	}
	return d.Job
}

// marked is a submission with a mark in every place that a client can write.
func marked(m marks, name string) queue.Submission {
	return queue.Submission{
		Tenant: "acme", Route: "default", Type: "order." + m.make(name+" type"), IdempotencyKey: m.make(name + " key"),
		Payload: []byte(`{"note":"` + m.make(name+" payload") + `"}`), ContentType: "text/" + m.make(name+" content type"),
		Path: "/" + m.make(name+" path"), Headers: map[string]string{"X-Note": m.make(name + " header")},
		CallbackURL: "https://x.example/" + m.make(name+" callback"), TraceParent: m.make(name + " trace"), MaxAttempts: 2,
	}
}

// TestNothingOfAClientIsStored: what clients and upstreams wrote is in no key and no value, in no
// state of a job. All of it is delivered and read as it was written.
func TestNothingOfAClientIsStored(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := marks{}
			q := encrypted(t, openEngine(t, options(t)), keyFile(t), func(o *queue.Options) { o.CompressOver = 100 })
			same := func(what string, got, want any) {
				t.Helper()
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: %.200v, want %.200v", what, got, want)
				}
			}
			written := map[string]queue.Submission{}
			for _, state := range []string{"leased", "succeeded", "dead", "retrying"} {
				s := marked(m, state)
				if state == "leased" {
					s.Payload = []byte(`"` + strings.Repeat(m.make("long payload"), 100) + `"`) // compressed
				}
				written[admitted(t, q, s).ID] = s
			}
			ids := map[string]string{}
			answer := []byte("HTTP/1.1 200 OK\r\nX-Note: " + m.make("answer's header") + "\r\n\r\n" +
				strings.Repeat(m.make("answer"), 5000))
			for _, l := range leased(t, q, 4) {
				want := written[l.ID]
				same("type", l.Type, want.Type)
				same("payload", string(l.Payload), string(want.Payload))
				same("headers", l.Headers, want.Headers)
				same("path", l.Path, want.Path)
				same("content type", l.ContentType, want.ContentType)
				same("trace", l.TraceParent, want.TraceParent)
				end := queue.Settlement{LeaseRef: l.LeaseRef, Tenant: l.Tenant, Attempt: 1}
				failure := &queue.JobError{Message: "the upstream answered " + m.make("error"), Detail: m.make("detail"), Status: 500}
				for state, event := range map[string]shaper.Event{"succeeded": shaper.Succeed, "dead": shaper.Die, "retrying": shaper.Retry} {
					if m[state+" payload"] != "" && strings.Contains(string(l.Payload), m[state+" payload"]) {
						end.Event, ids[state] = event, l.ID
					}
				}
				switch end.Event {
				case "":
					ids["leased"] = l.ID
					continue
				case shaper.Succeed:
					end.Answer, end.Response = answer, &queue.Response{Status: 200, Body: []byte(m.make("response"))}
				default:
					end.Error, end.Delay = failure, time.Hour
				}
				settle(t, q, end)
			}
			waiting := marked(m, "waiting")
			ids["waiting"] = admitted(t, q, waiting).ID
			written[ids["waiting"]] = waiting
			late := marked(m, "scheduled")
			late.Delay = time.Hour
			ids["scheduled"] = admitted(t, q, late).ID
			written[ids["scheduled"]] = late
			secret, err := q.Callbacks().CreateCallbackSecret(t.Context(), "acme", queue.CallbackHMAC, "vera")
			if err != nil {
				t.Fatal(err)
			}
			m["secret of callbacks"] = strings.TrimRight(strings.TrimPrefix(secret.Secret(), "whsec_"), "=")
			m["raw secret of callbacks"] = string(secret.Key)
			if _, err := q.Callbacks().PutCallbackEndpoints(t.Context(), "acme",
				[]string{"https://partner.example/" + m.make("endpoint")}); err != nil {
				t.Fatal(err)
			}
			m.unseen(t, q)

			for state, id := range ids {
				j, err := q.Job(t.Context(), "acme", id)
				if err != nil {
					t.Fatal(err)
				}
				same(state+": type", j.Type, written[id].Type)
				if found, err := q.Find(t.Context(), id); err != nil || found.Type != j.Type {
					t.Errorf("Find: %+v, %v", found, err)
				}
				if again := admitted(t, q, written[id]); again.ID != id {
					t.Errorf("%s: the idempotency key made another job", state)
				}
				page, err := q.List(t.Context(), queue.List{Tenant: "acme", State: queue.ListAll, Type: j.Type, Limit: 10})
				if err != nil || len(page.Jobs) != 1 || page.Jobs[0].ID != id {
					t.Errorf("%s: the list by type has %d jobs, %v", state, len(page.Jobs), err)
				}
				page, err = q.List(t.Context(), queue.List{Tenant: "acme", State: queue.ListAll, IdempotencyKey: written[id].IdempotencyKey, Limit: 10})
				if err != nil || len(page.Jobs) != 1 || page.Jobs[0].ID != id {
					t.Errorf("%s: the list by key has %d jobs, %v", state, len(page.Jobs), err)
				}
				if state == "succeeded" {
					continue // its payload is gone
				}
				p, err := q.Payload(t.Context(), "acme", id, 1<<20)
				if err != nil || !bytes.Equal(p.Bytes, written[id].Payload) || p.Size != len(written[id].Payload) || p.Headers["X-Note"] == "" {
					t.Errorf("%s: payload %d of %d, %v, %v", state, len(p.Bytes), p.Size, p.Headers, err)
				}
				if p, err := q.Payload(t.Context(), "acme", id, 10); err != nil || p.Bytes != nil || p.Size != len(written[id].Payload) {
					t.Errorf("%s: the size of a large payload is %d, %v", state, p.Size, err)
				}
			}
			j, a, err := q.Answer(t.Context(), "acme", ids["succeeded"], queue.End{})
			if err != nil || a == nil || a.Size != len(answer) {
				t.Fatalf("the answer: %+v, %v", a, err)
			}
			same("response", string(j.Response.Body), m["response"])
			for range 50 {
				from := rand.IntN(len(answer))
				n := 1 + rand.IntN(len(answer)-from)
				if got, err := a.Read(t.Context(), from, n); err != nil || !bytes.Equal(got, answer[from:from+n]) {
					t.Fatalf("%d bytes of the answer from %d on: %d, %v", n, from, len(got), err)
				}
			}
			page, err := q.List(t.Context(), queue.List{Tenant: "acme", State: queue.ListAll, Error: strings.ToUpper(m["detail"]), Limit: 10})
			if err != nil || len(page.Jobs) != 1 {
				t.Errorf("the list by the upstream's words has %d jobs, %v", len(page.Jobs), err)
			}
			list, _, err := q.Broker().Completions(t.Context(), store.Of(q).ShardOf("acme").Index, "c", 10, time.Minute)
			if err != nil || len(list) == 0 || list[0].CallbackURL != written[list[0].Job.ID].CallbackURL {
				t.Errorf("completions: %+v, %v", list, err)
			}
			if err := q.Broker().HandedOver(t.Context(), store.Of(q).ShardOf("acme").Index, list); err != nil {
				t.Fatal(err)
			}
			swept, err := q.Purge(t.Context(), "acme", queue.Filter{State: queue.ListDead, Error: "the upstream"})
			if err != nil || swept.Count != 1 {
				t.Errorf("a purge by error: %+v, %v", swept, err)
			}
			m.unseen(t, q)
		})
	}
}

// TestSwappedTextsAreRefused: a text that was moved to another job, or to another place, is not
// delivered and not shown.
func TestSwappedTextsAreRefused(t *testing.T) {
	t.Parallel()
	q := encrypted(t, openEngine(t, lent(t)), keyFile(t))
	one, two := queue.Submission{Tenant: "acme", Route: "default", Type: "one", Payload: []byte("first")},
		queue.Submission{Tenant: "acme", Route: "default", Type: "two", Payload: []byte("other")}
	a, b := admitted(t, q, one).ID, admitted(t, q, two).ID
	c, shard := store.Of(q).Patient, store.Of(q).ShardOf("acme")
	ra, rb := c.Get(t.Context(), shard.Job(a)).Val(), c.Get(t.Context(), shard.Job(b)).Val()
	tail := len("first") + sealed.Overhead
	if err := c.Set(t.Context(), shard.Job(a), ra[:len(ra)-tail]+rb[len(rb)-tail:], 0).Err(); err != nil {
		t.Fatal(err)
	}
	if p, err := q.Payload(t.Context(), "acme", a, 100); !errors.Is(err, queue.ErrScript) || p.Bytes != nil {
		t.Errorf("the payload of another job: %q, %v", p.Bytes, err)
	}
	if all := leased(t, q, 1); all[0].ID != b {
		t.Errorf("the swapped job was leased: %+v", all[0])
	}
	// The whole record under another tenant's name.
	moved := strings.Replace(rb, "acme/default", "evil/default", 1)
	if err := c.Set(t.Context(), shard.Job(b), moved, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if p, err := q.Payload(t.Context(), "evil", b, 100); err == nil && p.Bytes != nil {
		t.Errorf("another tenant reads %q", p.Bytes)
	}
}

// TestOpenNeedsTheKeys: a process without the keys of a store does not start.
func TestOpenNeedsTheKeys(t *testing.T) {
	t.Parallel()
	e, path := openEngine(t, lent(t)), keyFile(t)
	encrypted(t, e, path)
	for name, keys := range map[string]queue.Encryption{"none": {}, "others": {KeyFile: keyFile(t)}} {
		q, err := queue.Open(t.Context(), e, queue.Options{Encryption: keys})
		if !errors.Is(err, queue.ErrEncrypted) || errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrEncrypted", name, err)
		}
		if err == nil {
			_ = q.Close()
		}
		if _, err := queue.Preflight(t.Context(), e, queue.Options{Encryption: keys}); !errors.Is(err, queue.ErrEncrypted) {
			t.Errorf("%s: Preflight: %v", name, err)
		}
	}
	q, err := queue.Open(t.Context(), e, queue.Options{Encryption: queue.Encryption{Without: true}, Reporter: true})
	if err != nil {
		t.Fatal(err)
	}
	_ = q.Close()
}

// TestMissingKeyHolds: a job that cannot be decrypted waits, without an attempt spent, until its
// key is there.
func TestMissingKeyHolds(t *testing.T) {
	t.Parallel()
	e := openEngine(t, lent(t))
	before := encrypted(t, e, "") // runs on when another process begins to encrypt
	q := encrypted(t, e, keyFile(t))
	id := admitted(t, q, queue.Submission{Tenant: "acme", Route: "default", Type: "secret", Payload: []byte("1"), MaxAttempts: 1}).ID
	for range 30 {
		leased(t, before, 0)
		if _, err := before.Tune(t.Context(), "acme", queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) { return o, nil }, EndHolds: true}); err != nil {
			t.Fatal(err)
		}
	}
	leased(t, before, 0)
	state, err := q.Tenant(t.Context(), "acme")
	if err != nil || state.HeldBy.By != queue.HeldByCodec {
		t.Errorf("the flow is held by %+v, %v", state.HeldBy, err)
	}
	j, err := before.Job(t.Context(), "acme", id)
	if err != nil || j.Type != "" || j.LastError == nil || j.State != shaper.Queued {
		t.Errorf("without the key: %+v, %v", j, err)
	}
	if _, err := before.Payload(t.Context(), "acme", id, 10); !errors.Is(err, queue.ErrSealed) {
		t.Errorf("Payload without the key: %v", err)
	}
	if _, err := q.Tune(t.Context(), "acme", queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) { return o, nil }, EndHolds: true}); err != nil {
		t.Fatal(err)
	}
	if l := leased(t, q, 1)[0]; l.Attempt != 1 || l.FreeLeases != 0 || l.Type != "secret" {
		t.Errorf("with the key: %+v", l)
	}
}

// TestSwitchingOnAndOff: what was stored in clear stays readable, idempotency keys too. So does
// what was encrypted where new texts are in clear again.
func TestSwitchingOnAndOff(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, path, m := openEngine(t, options(t)), keyFile(t), marks{}
			clear := encrypted(t, e, "")
			// As if the store had been there for long.
			if err := store.Of(clear).Patient.HSet(t.Context(), store.MetaKey, "born", 1).Err(); err != nil {
				t.Fatal(err)
			}
			odd := marked(m, "odd")
			odd.Payload, odd.ContentType, odd.Path, odd.Headers = []byte("\xff\x01 begins like a sealed text"), "", "", nil
			all := map[string]queue.Submission{}
			for name, s := range map[string]queue.Submission{"clear": marked(m, "clear"), "odd": odd} {
				_ = name
				all[admitted(t, clear, s).ID] = s
			}
			on := encrypted(t, e, path)
			s := marked(m, "sealed")
			all[admitted(t, on, s).ID] = s
			check := func(q *queue.Queue) {
				t.Helper()
				for id, want := range all {
					if again := admitted(t, q, want); again.ID != id {
						t.Errorf("the key of %s made the job %s", id, again.ID)
					}
					if p, err := q.Payload(t.Context(), "acme", id, 1<<20); err != nil || !bytes.Equal(p.Bytes, want.Payload) {
						t.Errorf("payload %q, %v, want %q", p.Bytes, err, want.Payload)
					}
					if j, err := q.Job(t.Context(), "acme", id); err != nil || j.Type != want.Type {
						t.Errorf("job %+v, %v", j, err)
					}
					page, err := q.List(t.Context(), queue.List{Tenant: "acme", State: queue.ListAll, IdempotencyKey: want.IdempotencyKey, Limit: 10})
					if err != nil || len(page.Jobs) != 1 {
						t.Errorf("the list by key: %d, %v", len(page.Jobs), err)
					}
				}
			}
			check(on)
			off := encrypted(t, e, path, func(o *queue.Options) { o.Encryption.ReadOnly = true })
			s = marked(m, "in clear again")
			all[admitted(t, off, s).ID] = s
			check(off)
			for _, l := range leased(t, off, len(all)) {
				if string(l.Payload) != string(all[l.ID].Payload) {
					t.Errorf("delivered %q, want %q", l.Payload, all[l.ID].Payload)
				}
			}
		})
	}
}

// TestRotationUnderLoad: keys are rotated while jobs come and go, and all of them are delivered as
// they were written; afterwards the former key is not needed.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	e, path := openEngine(t, lent(t)), keyFile(t)
	former, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	q, other := encrypted(t, e, path), encrypted(t, e, path)
	var mu sync.Mutex
	want, stop := map[string]string{}, make(chan struct{})
	var load sync.WaitGroup
	for n := range 4 {
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				payload := fmt.Sprintf(`"%d-%d"`, n, i)
				d, err := []*queue.Queue{q, other}[i%2].Submit(t.Context(), queue.Submission{
					Tenant: "acme", Route: "default", Type: "t", Payload: []byte(payload), IdempotencyKey: payload,
				})
				if err != nil || d.Outcome != shaper.Admitted {
					t.Errorf("Submit: %v, %v", d.Outcome, err)
					return
				}
				mu.Lock()
				want[d.Job.ID] = payload
				mu.Unlock()
			}
		})
	}
	refresh := func() {
		t.Helper()
		for _, q := range []*queue.Queue{q, other} {
			if err := q.RefreshKeys(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		if err := sealed.AddKey(path); err != nil {
			t.Fatal(err)
		}
		// The other process has not read the file again yet.
		if err := q.RefreshKeys(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := q.RotateKeys(t.Context(), false); !errors.Is(err, queue.ErrOtherKeys) {
			t.Errorf("a rotation while a process has another first key: %v", err)
		}
		refresh()
		r, err := q.RotateKeys(t.Context(), false)
		if err != nil || len(r.Removable) == 0 || len(r.Lagging) != 1 {
			t.Fatalf("RotateKeys: %+v, %v", r, err)
		}
		refresh()
		if lagging, err := q.LaggingKeys(t.Context(), r.DataKey); err != nil || len(lagging) > 0 {
			t.Errorf("lagging: %v, %v", lagging, err)
		}
	}
	close(stop)
	load.Wait()
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(now), "\n")
	if !strings.Contains(string(now), strings.TrimSpace(string(former))) {
		t.Error("the former key is not in the file")
	}
	if err := os.WriteFile(path, []byte(first+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	last := encrypted(t, e, path) // the first key alone opens everything
	n := 0
	for id, payload := range want {
		if n++; n > 200 {
			break
		}
		if p, err := last.Payload(t.Context(), "acme", id, 1000); err != nil || string(p.Bytes) != payload {
			t.Fatalf("payload %q, %v, want %q", p.Bytes, err, payload)
		}
		if d, err := last.Submit(t.Context(), queue.Submission{Tenant: "acme", Route: "default", Type: "t", Payload: []byte(payload), IdempotencyKey: payload}); err != nil || d.Job.ID != id {
			t.Fatalf("the idempotency key of %s made %s, %v", id, d.Job.ID, err)
		}
	}
	t.Logf("%d jobs", len(want))
}

// TestKeysSurviveALostHash: the data keys that a failover has lost are written again by the
// processes that know them.
func TestKeysSurviveALostHash(t *testing.T) {
	t.Parallel()
	e, path := openEngine(t, lent(t)), keyFile(t)
	q := encrypted(t, e, path)
	s := queue.Submission{Tenant: "acme", Route: "default", Type: "t", Payload: []byte("kept"), IdempotencyKey: "k"}
	id := admitted(t, q, s).ID
	if err := store.Of(q).Patient.Del(t.Context(), store.CodecKey).Err(); err != nil {
		t.Fatal(err)
	}
	if err := q.RefreshKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := encrypted(t, e, path)
	if p, err := other.Payload(t.Context(), "acme", id, 100); err != nil || string(p.Bytes) != "kept" {
		t.Errorf("payload %q, %v", p.Bytes, err)
	}
	if again := admitted(t, other, s); again.ID != id {
		t.Error("the idempotency key is not recognised")
	}
}

// TestKeysOfAProgram: a program prints the keys, which open what a file with the same keys has
// sealed. One that fails later leaves the former keys in use, and nobody starts with it.
func TestKeysOfAProgram(t *testing.T) {
	t.Parallel()
	e, file := openEngine(t, lent(t)), keyFile(t)
	program := filepath.Join(t.TempDir(), "keys")
	prints := func(command string) {
		t.Helper()
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+command+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var log queuetest.Log
	prints("cat " + file)
	s := queue.Submission{Tenant: "acme", Route: "default", Type: "t", Payload: []byte("kept")}
	id := admitted(t, encrypted(t, e, file), s).ID
	q := encrypted(t, e, "", func(o *queue.Options) {
		o.Encryption.KeyCommand, o.Logger = program, log.Logger(slog.LevelInfo)
	})
	kept := func() {
		t.Helper()
		if p, err := q.Payload(t.Context(), "acme", id, 100); err != nil || string(p.Bytes) != "kept" {
			t.Errorf("payload %q, %v", p.Bytes, err)
		}
	}
	kept()
	prints("echo the service is away >&2; exit 1")
	if _, err := q.RotateKeys(t.Context(), true); err != nil {
		t.Error(err)
	}
	kept()
	if text := log.String(); !strings.Contains(text, "the service is away") || !strings.Contains(text, "the former keys stay in use") {
		t.Errorf("logged %s", text)
	}
	_, err := queue.Open(t.Context(), e, queue.Options{Encryption: queue.Encryption{KeyCommand: program}})
	if err == nil || !strings.Contains(err.Error(), "the service is away") {
		t.Errorf("a start without keys: %v", err)
	}
}

// TestAProgramThatHangs: who needs a key does not wait for the program.
func TestAProgramThatHangs(t *testing.T) {
	t.Parallel()
	e, file := openEngine(t, lent(t)), keyFile(t)
	program := filepath.Join(t.TempDir(), "keys")
	script := fmt.Sprintf("#!/bin/sh\n[ -e %[1]s.hang ] && touch %[1]s.hangs && sleep 60\ncat %s\n", program, file)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	q := encrypted(t, e, "", func(o *queue.Options) { o.Encryption.KeyCommand = program })
	if err := os.WriteFile(program+".hang", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := q.RotateKeys(ctx, true)
		ended <- err
	}()
	await(t, "the program to hang", func() bool {
		_, err := os.Stat(program + ".hangs")
		return err == nil
	})
	other := encrypted(t, e, file)
	if _, err := other.RotateKeys(t.Context(), true); err != nil { // q does not know the new data key
		t.Fatal(err)
	}
	if err := other.RefreshKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := admitted(t, other, queue.Submission{Tenant: "acme", Route: "default", Type: "t", Payload: []byte("new")}).ID
	if p, err := q.Payload(t.Context(), "acme", id, 100); err != nil || string(p.Bytes) != "new" {
		t.Errorf("payload %q, %v", p.Bytes, err)
	}
	select {
	case err := <-ended:
		t.Errorf("the program has ended before: %v", err)
	default:
	}
	cancel()
	<-ended
}
