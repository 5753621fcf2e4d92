package queue_test

import (
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// pairs are tenants that a careless key would confuse: by braces, by separators, by what a name is
// encoded as, by case and by normal form.
var pairs = [][2]string{
	{"acme", "acme}1"}, {"acme", "{acme}"}, {"acme", "acme/default"}, {"acme", "ACME"}, {"acme", "acme "},
	{"acme", "acme\x00"},
	{"a b", store.EncodeName("a b")}, {"~", "~~"}, {"a", "a:b"}, {"a:b", "a/b"}, {"}{", "{}"}, {"{1}", "{2}"},
	{"*", "?"}, {"[a]", "a"},
	{"é", "e\u0301"}, {"ß", "ss"}, {"\xff", "\xfe"}, {"default", "defaults"}, {"1", "01"},
	{"sluice:{0}:job:x", "x"},
	{strings.Repeat("x", 64), strings.Repeat("x", 65)}, {strings.Repeat("é", 127), strings.Repeat("é", 126)},
	{"a\r\nb", "a\nb"}, {"nil", "null"},
}

// FuzzTenantsAreApart is target S2 on the scripts: whatever two tenants are called, neither reads,
// lists, cancels, replays or purges the jobs of the other, by any id, key or cursor.
func FuzzTenantsAreApart(f *testing.F) {
	for _, p := range pairs {
		f.Add(p[0], p[1])
	}
	log := slog.New(slog.DiscardHandler)
	engine, err := queue.OpenEngine(f.Context(), queue.EngineOptions{Embedded: true, Logger: log})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = engine.Close() })
	q, err := queue.Open(f.Context(), engine, queue.Options{
		Logger: log, Shards: 1, Defaults: shaper.DefaultPolicy(),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = q.Close() })
	var round atomic.Int64
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == b || a == "" || b == "" || len(a) > 255 || len(b) > 255 {
			return // nobody is called so, see api.FuzzTenant
		}
		ctx := t.Context()
		key := strconv.FormatInt(round.Add(1), 10) // the same for both
		submit := func(tenant string) string {
			id, err := q.NewID(tenant, "default")
			if err != nil {
				t.Fatal(err)
			}
			v, err := q.Submit(ctx, queue.Submission{
				ID: id, Tenant: tenant, Route: "default", Type: "t", Payload: []byte("1"),
				IdempotencyKey: key, Cost: 1, MaxAttempts: 1,
			})
			if err != nil || v.Outcome != shaper.Admitted && v.Outcome != shaper.Replayed || v.Job.Tenant != tenant {
				t.Fatalf("%q: %s, %+v, %v", tenant, v.Outcome, v.Job, err)
			}
			return v.Job.ID
		}
		ids := map[string]string{a: submit(a), b: submit(b)}
		if ids[a] == ids[b] {
			t.Fatalf("%q and %q have one job by one key", a, b)
		}
		for reader, owner := range map[string]string{a: b, b: a} {
			if _, err := q.Job(ctx, reader, ids[owner]); !errors.Is(err, queue.ErrNotFound) {
				t.Errorf("%q reads a job of %q: %v", reader, owner, err)
			}
			if _, err := q.Cancel(ctx, reader, ids[owner]); !errors.Is(err, queue.ErrNotFound) {
				t.Errorf("%q cancels a job of %q: %v", reader, owner, err)
			}
			if _, err := q.Replay(ctx, reader, ids[owner], queue.Replaying{MaxAttempts: 1}); !errors.Is(err, queue.ErrNotFound) {
				t.Errorf("%q replays a job of %q: %v", reader, owner, err)
			}
			swept, err := q.Purge(ctx, reader, queue.Filter{IDs: []string{ids[owner]}})
			if err != nil || swept.Count != 0 {
				t.Errorf("%q purges %d jobs of %q: %v", reader, swept.Count, owner, err)
			}
		}
		for tenant, id := range ids {
			page, err := q.List(ctx, queue.List{Tenant: tenant, State: "queued", Limit: 1000})
			if err != nil || len(page.Jobs) != 1 || page.Jobs[0].ID != id || page.Jobs[0].Tenant != tenant {
				t.Errorf("%q lists %+v, %v", tenant, page.Jobs, err)
			}
			figures, err := q.Tenant(ctx, tenant)
			if err != nil || figures.Depth != 1 {
				t.Errorf("%q has a depth of %d: %v", tenant, figures.Depth, err)
			}
			// The next names find the store as these did.
			if job, err := q.Cancel(ctx, tenant, id); err != nil || job.ID != id {
				t.Errorf("%q cancels its own: %v", tenant, err)
			}
		}
	})
}
