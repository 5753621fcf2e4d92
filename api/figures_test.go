package api

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/figures"
	"github.com/7509e464/sluice/internal/listen"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// reel is a client of a stream of figures that notes what came when; writes takes its time for each
// write.
type reel struct {
	*httptest.ResponseRecorder
	began  time.Time
	seen   int
	notes  []string // "offset event", "offset beat"
	events []event
	writes time.Duration
	t      testing.TB
}

func (r *reel) Write(p []byte) (int, error) {
	time.Sleep(r.writes)
	return r.ResponseRecorder.Write(p)
}

func (r *reel) Flush() {
	fresh := r.Body.String()[r.seen:]
	r.seen += len(fresh)
	for _, e := range readEvents(r.t, fresh) {
		r.notes = append(r.notes, fmt.Sprint(time.Since(r.began), " ", e.Event))
		r.events = append(r.events, e)
	}
	if strings.Contains(fresh, ": alive\n\n") {
		r.notes = append(r.notes, fmt.Sprint(time.Since(r.began), " beat"))
	}
}

// last is the data of the last event of the kind.
func (r *reel) last(name string, into any) {
	r.t.Helper()
	for _, e := range slices.Backward(r.events) {
		if e.Event == name {
			if err := json.Unmarshal(e.Data, into); err != nil {
				r.t.Fatal(err)
			}
			return
		}
	}
	r.t.Errorf("no %s event", name)
}

// roll follows the figures to the end of the stream.
func (b *bench) roll(ctx context.Context, query string, writes time.Duration) *reel {
	b.t.Helper()
	req := httptest.NewRequest(http.MethodGet, "http://localhost/v1/stream"+query, nil).WithContext(ctx)
	r := &reel{ResponseRecorder: httptest.NewRecorder(), began: time.Now(), writes: writes, t: b.t}
	b.s.Admin().ServeHTTP(r, req)
	b.admin.check(b.t, req, reply{ResponseRecorder: r.ResponseRecorder})
	return r
}

// rollFor follows them for a while.
func (b *bench) rollFor(d time.Duration, query string, writes time.Duration) *reel {
	ctx, cancel := context.WithTimeout(b.t.Context(), d)
	defer cancel()
	return b.roll(ctx, query, writes)
}

// filmed runs a test of streams in virtual time.
func filmed(t *testing.T, tell func(t *testing.T, b *bench), change ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, change...)
		defer b.s.End()
		tell(t, b)
	})
}

func TestStreamOfFigures(t *testing.T) {
	filmed(t, func(t *testing.T, b *bench) {
		for i, name := range []string{"acme", "Acme two", "other"} {
			for range i + 1 {
				b.submit(plainJob, headers{"Sluice-Tenant": name})
			}
		}
		done := b.submit(plainJob, headers{"Sluice-Tenant": "other"}).job.ID
		time.Sleep(120 * time.Millisecond)
		b.queue.Finish(done, shaper.Succeeded, nil, nil)
		r := b.rollFor(1100*time.Millisecond, "?tenant=other&q=ACME&sort=name&limit=1", 0)
		want := []string{
			"0s history", "0s overview", "0s tenant_history", "0s tenant", "0s pools", "0s tenants", "250ms overview",
			"250ms tenant", "500ms overview", "500ms tenant", "750ms overview", "750ms tenant",
			"1s overview", "1s tenant", "1s pools", "1s tenants",
		}
		// What comes at one instant comes in any order.
		inOrder := func(a, b string) int {
			return cmp.Or(cmp.Compare(offset(t, a), offset(t, b)), cmp.Compare(a, b))
		}
		got := slices.SortedFunc(slices.Values(r.notes), inOrder)
		slices.SortFunc(want, inOrder)
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		h := r.Header()
		if h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" ||
			h.Get("Cache-Control") != "no-store" ||
			!strings.HasPrefix(r.Body.String(), "retry: 1000\n\n") {
			t.Errorf("%v %.40q", h, r.Body)
		}
		var o wire.Overview
		r.last("overview", &o)
		if o.Depth != 6 || !o.Store.OK || o.Store.Engine != "embedded" || o.Lateness != nil ||
			time.Since(o.At) > time.Second {
			t.Errorf("the overview is %+v", o)
		}
		var lines wire.TenantLines
		r.last("tenants", &lines)
		if lines.Matching != 2 || len(lines.Items) != 1 || lines.Items[0].Tenant != "Acme two" ||
			lines.Items[0].Depth != 2 || lines.Items[0].Capacity != 1000 {
			t.Errorf("the tenants are %+v", lines)
		}
		var now wire.TenantNow
		r.last("tenant", &now)
		if now.Tenant.Tenant != "other" || now.Depth != 3 || now.WaitP50MS != 120 || now.WaitP99MS != 120 {
			t.Errorf("the tenant is %+v", now)
		}
	})
}

// A stream of a pool begins with its history; then come its figures, and the part of its rate that
// each flow is entitled to and got.
func TestStreamOfAPool(t *testing.T) {
	filmed(t, func(t *testing.T, b *bench) {
		b.queue.Baseline = erp()
		b.queue.Shared = queue.Pool{Waiting: 2, Departed: 7}
		for _, name := range []string{"a", hostileName} {
			b.submit(plainJob, headers{"Sluice-Tenant": name})
		}
		b.queue.Flows = []queue.PoolFlow{
			{Tenant: "a", Route: "other", Depth: 5, Weight: 3, Waits: true, LimitedBy: "pool"},
			{Tenant: hostileName, Route: "other", Weight: 1, Running: 1, LimitedBy: "idle"},
		}
		r := b.rollFor(1100*time.Millisecond, "?pool=erp&limit=0", 0)
		first := slices.Index(r.notes, "0s pool_history")
		if first < 0 || first > slices.Index(r.notes, "0s pool") || !slices.Contains(r.notes, "1s pool_flows") ||
			slices.ContainsFunc(r.notes, func(n string) bool { return strings.HasSuffix(n, "s tenants") }) {
			t.Errorf("%q", r.notes)
		}
		var past wire.PoolHistory
		r.last("pool_history", &past)
		if n := len(past.Samples); past.Pool != "erp" || n == 0 || past.Samples[n-1].Departed != 7 ||
			past.Samples[n-1].Strictest != 20 {
			t.Errorf("the history is %+v", past)
		}
		var now wire.PoolNow
		r.last("pool", &now)
		if now.Pool.Pool != "erp" || now.WaitingFlows != 2 || time.Since(now.At) > time.Second {
			t.Errorf("the pool is %+v", now)
		}
		var shares wire.PoolShares
		r.last("pool_flows", &shares)
		if shares.Pool != "erp" || shares.Matching != 2 || len(shares.Items) != 2 {
			t.Fatalf("the flows are %+v", shares)
		}
		a, other := shares.Items[0], shares.Items[1]
		if a.Tenant != "a" || a.Part != 1 || a.Got == nil || *a.Got != 0 || a.LimitedBy != "pool" ||
			other.Tenant != hostileName || other.Part != 0 {
			t.Errorf("the flows are %+v", shares.Items)
		}
	})
	filmed(t, func(t *testing.T, b *bench) { // there are no events of an unknown pool
		r := b.rollFor(300*time.Millisecond, "?pool=nowhere&limit=0", 0)
		if slices.ContainsFunc(r.events, func(e event) bool { return e.Event == "pool" }) {
			t.Errorf("%q", r.notes)
		}
	})
	b := newBench(t)
	defer b.s.End()
	b.admin.do(t, "GET", "/v1/stream?pool=", nil, "").want(t, http.StatusUnprocessableEntity, "invalid-request")
}

const hostileName = `<img src=x onerror="alert(1)">`

// offset is when a note was made.
func offset(t testing.TB, note string) time.Duration {
	t.Helper()
	at, _, _ := strings.Cut(note, " ")
	d, err := time.ParseDuration(at)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// While the client takes 1.6 s for each write, it gets what is newest then, and no more.
func TestSlowClientSkips(t *testing.T) {
	filmed(t, func(t *testing.T, b *bench) {
		b.submit(plainJob, nil)
		r := b.rollFor(20*time.Second, "?limit=0", 1600*time.Millisecond)
		if len(r.events) < 10 || len(r.events) > 14 {
			t.Errorf("%d events: %q", len(r.events), r.notes)
		}
		for i, e := range r.events {
			if e.Event == "history" {
				continue
			}
			var o wire.Overview
			if err := json.Unmarshal(e.Data, &o); err != nil {
				t.Fatal(err)
			}
			if age := r.began.Add(offset(t, r.notes[i])).Sub(o.At); age > 1600*time.Millisecond+250*time.Millisecond {
				t.Errorf("event %d was %v old when it was written", i, age)
			}
		}
	})
}

func TestStreamOfFiguresBeats(t *testing.T) {
	filmed(t, func(t *testing.T, b *bench) {
		r := b.roll(t.Context(), "?limit=0", 0)
		if took := time.Since(r.began); took != 10*time.Minute {
			t.Errorf("it lived for %v", took)
		}
		if !slices.Contains(r.notes, "15s beat") {
			t.Errorf("%q", r.notes[:80])
		}
		if n := len(r.events); n < 2400 || n > 2403 {
			t.Errorf("%d events", n)
		}
	})
}

// The server drains while its last deliveries run, and those who watch see it; End ends the
// streams, and no new one begins.
func TestStreamOfFiguresAtTheEnd(t *testing.T) {
	filmed(t, func(t *testing.T, b *bench) {
		time.AfterFunc(time.Second, b.s.Drain)
		time.AfterFunc(3100*time.Millisecond, b.s.End)
		r := b.roll(t.Context(), "?limit=0", 0)
		if took := time.Since(r.began); took != 3100*time.Millisecond || len(r.events) != 14 {
			t.Errorf("after %v: %q", took, r.notes)
		}
		got := b.admin.do(t, http.MethodGet, "/v1/stream", nil, "")
		got.want(t, http.StatusServiceUnavailable, "shutting-down")
		if got.Header().Get("Retry-After") == "" {
			t.Error("it does not say when to come back")
		}
	})
}

func TestStreamOfFiguresWhileTheStoreIsAway(t *testing.T) {
	filmed(t, func(t *testing.T, b *bench) {
		b.submit(plainJob, nil)
		time.AfterFunc(1100*time.Millisecond, func() {
			b.queue.Fail(fmt.Errorf("%w: LOADING Redis", queue.ErrUnavailable))
		})
		r := b.rollFor(2*time.Second, "?tenant=default", 0)
		var o wire.Overview
		r.last("overview", &o)
		if o.Store.OK || o.Store.Error != "loading its data" || o.Depth != 1 {
			t.Errorf("the overview is %+v", o)
		}
		stats := b.admin.do(t, http.MethodGet, "/v1/stats", nil, "")
		if err := json.Unmarshal(stats.Body.Bytes(), &o); err != nil || stats.Code != http.StatusOK || o.Store.OK {
			t.Errorf("stats: %d %s", stats.Code, stats.Body)
		}
		b.queue.Fail(nil)
		time.Sleep(time.Second)
		r = b.rollFor(100*time.Millisecond, "?tenant=default", 0)
		r.last("overview", &o)
		r.last("tenant", new(wire.TenantNow))
		if !o.Store.OK {
			t.Errorf("once it is back: %+v", o)
		}
	})
}

func TestStreamsOfFiguresAreBounded(t *testing.T) {
	filmed(t, func(t *testing.T, b *bench) {
		var all []*figures.Watch
		for range contract.LiveStreams {
			w, err := b.s.live.Watch(figures.View{})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, w)
		}
		b.admin.do(t, http.MethodGet, "/v1/stream", nil, "").want(t, http.StatusServiceUnavailable,
			"too-many-streams")
		all[0].Close()
		if r := b.rollFor(time.Second, "", 0); len(r.events) == 0 {
			t.Error("no events once there is room")
		}
		for _, w := range all {
			w.Close()
		}
	})
}

func TestStreamOfFiguresRefuses(t *testing.T) {
	b := newBench(t)
	defer b.s.End()
	for query, field := range map[string]string{
		"?limit=501": "query.limit", "?limit=-1": "query.limit", "?limit=": "query.limit",
		"?limit=x": "query.limit", "?sort=rate": "query.sort", "?sort=": "query.sort",
		"?tenant=": "query.tenant", "?tenant=a%00b": "query.tenant",
		"?tenant=" + strings.Repeat("t", 256): "query.tenant",
		"?q=" + strings.Repeat("q", 256):      "query.q", "?page=2": "query.page", "?q=a&q=b": "query.q",
	} {
		r := b.admin.do(t, http.MethodGet, "/v1/stream"+query, nil, "")
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if !strings.Contains(r.Body.String(), field) {
			t.Errorf("%s: %s", query, r.Body)
		}
	}
	if r := b.admin.do(t, http.MethodGet, "/v1/stats?x=1", nil, ""); r.Code != http.StatusUnprocessableEntity {
		t.Errorf("stats with a parameter: %d", r.Code)
	}
	if r := b.admin.do(t, http.MethodHead, "/v1/stream", nil, ""); r.Code != http.StatusOK || r.Body.Len() != 0 {
		t.Errorf("HEAD: %d %s", r.Code, r.Body)
	}
	if r := b.intake.do(t, http.MethodGet, "/v1/stream", nil, ""); r.Code != http.StatusNotFound {
		t.Errorf("on the intake: %d", r.Code)
	}
}

func TestFiguresAreGuarded(t *testing.T) {
	b := newBench(t, func(c *Config) { c.AdminToken = "open sesame, please" })
	defer b.s.End()
	for _, path := range []string{"/v1/stats", "/v1/stream"} {
		b.admin.do(t, http.MethodGet, path, nil, "").want(t, http.StatusUnauthorized, "unauthorized")
		r := b.admin.do(t, http.MethodHead, path, headers{"Authorization": "Bearer open sesame, please"}, "")
		if r.Code != http.StatusOK {
			t.Errorf("%s with the token: %d", path, r.Code)
		}
	}
	b = newBench(t)
	defer b.s.End()
	for _, h := range []headers{
		{"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"},
	} {
		b.admin.do(t, http.MethodGet, "/v1/stream", h, "").want(t, http.StatusForbidden, "forbidden")
	}
}

func TestOrdersOfTenants(t *testing.T) {
	brief := func(name string, depth, rejected int64, wait time.Duration) queue.Brief {
		return queue.Brief{Name: name, Figures: queue.Figures{Depth: depth, Rejected: rejected, OldestWait: wait}}
	}
	dead := brief("É", 2, 0, 0)
	dead.Dead = 3
	c := &figures.Scan{Briefs: []queue.Brief{
		brief("d", 1, 7, 3), brief("b", 5, 7, 0), brief("a", 5, 0, 9), brief("c", 0, 0, 0), dead,
	}}
	for _, tt := range []struct {
		query string
		want  string
	}{
		{"", "a b É d c"}, {"sort=depth", "a b É d c"}, {"sort=refused", "b d a c É"}, {"sort=dead", "É a b c d"},
		{"sort=oldest_wait", "a d b c É"}, {"sort=name", "a b c d É"},
		{"sort=name&limit=2", "a b"}, {"q=A", "a"}, {"q=%C3%A9", "É"}, {"q=zz", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/?"+tt.query, nil)
		table, err := tableOf(r.URL.Query())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, line := range table.lines(c).Items {
			got = append(got, line.Tenant)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %s", tt.query, got, tt.want)
		}
	}
}

// A line shows all rates: the effective one is the strictest of them.
func TestLinesShowFurtherRates(t *testing.T) {
	day := shaper.Pace{Rate: shaper.Rate{Limit: 1000, Period: 24 * time.Hour}, Burst: 1000}
	line := codec.Line(&queue.Brief{
		Name: "partner", Rate: shaper.Rate{Limit: 10, Period: time.Second}, Rates: []shaper.Pace{day},
	})
	want := shaper.PaceJSON{Limit: 1000, PeriodMS: 86_400_000, Burst: 1000}
	if len(line.Rates) != 1 || line.Rates[0] != want {
		t.Errorf("%+v", line)
	}
	if line := codec.Line(&queue.Brief{Name: "plain"}); line.Rates != nil {
		t.Errorf("%+v", line)
	}
}

// A real client over a real connection is sent the first events at once, and its server ends in
// time with the stream open.
func TestStreamOfFiguresOverAConnection(t *testing.T) {
	b := newBench(t)
	b.submit(plainJob, nil)
	s := httptest.NewUnstartedServer(nil)
	s.Config = listen.Server("", b.s.Admin(), nil)
	s.Start()
	defer s.Close()
	resp, err := s.Client().Get(s.URL + "/v1/stream?tenant=default")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	wanted := map[string]bool{"event: overview": true, "event: tenants": true, "event: tenant": true}
	lines := bufio.NewScanner(resp.Body)
	for len(wanted) > 0 && lines.Scan() {
		delete(wanted, lines.Text())
	}
	if len(wanted) > 0 {
		t.Fatalf("the stream ended without %v: %v", wanted, lines.Err())
	}
	ended := make(chan error, 1)
	go func() {
		b.s.End()
		ended <- s.Config.Shutdown(context.WithoutCancel(t.Context()))
	}()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the end of the stream: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestHeldDeadAndRoutes: until when a tenant is held and why, how many dead letters there are now,
// and how the routes are.
func TestHeldDeadAndRoutes(t *testing.T) {
	b := newBench(t)
	until := time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600))
	b.queue.Hold("acme", queue.Figures{
		HeldUntil: until, HeldBy: queue.HoldCause{By: queue.HeldByBreaker, Status: 502}, Dead: 317,
		DeadTotal: 564,
	})
	held := `"held_until":"2026-03-01T11:00:00Z","held_by":"breaker","held_status":502`
	for _, part := range []string{held, `"dead":317,"dead_total":564`} {
		for _, path := range []string{"/v1/tenants/acme", "/v1/tenants"} {
			if r := b.admin.do(t, "GET", path, nil, ""); !strings.Contains(r.Body.String(), part) {
				t.Errorf("%s lacks %s: %s", path, part, r.Body)
			}
		}
	}
	load := func(state reports.BreakerState, flying, ended, failed int64) reports.RouteLoad {
		return reports.RouteLoad{Breaker: state, InFlight: flying, Ended: ended, Failed: failed}
	}
	b.queue.Work(reports.Workers{Live: 2, Routes: map[string]reports.RouteLoad{
		"default": load(reports.BreakerClosed, 3, 10, 0), "gone": load(reports.BreakerHalfOpen, 0, 1, 0),
		"away":  load(reports.BreakerOpen, 0, 0, 0),
		"other": {Ended: 4, Failed: 1, Last: reports.FailureOf(until, "acme", "a1", "the upstream answered 500", "10.0.0.7", 500)},
	}})
	routes := `[{"route":"away","breaker":"open","in_flight":0,"ended":0,"failed":0},{"route":"gone",` +
		`"breaker":"half-open","in_flight":0,"ended":1,"failed":0},` +
		`{"route":"other","breaker":"closed","in_flight":0,"ended":4,"failed":1,"last_failure":{"at":"2026-03-01T11:00:00Z",` +
		`"tenant":"acme","job":"a1","message":"the upstream answered 500","detail":"10.0.0.7","status":500}},` +
		`{"route":"default","breaker":"closed","in_flight":3,"ended":10,"failed":0}]`
	if r := b.admin.do(t, "GET", "/v1/routes", nil,
		""); strings.TrimSpace(r.Body.String()) != `{"items":`+routes+`}` {
		t.Errorf("the routes are %s", r.Body)
	}
	if r := b.admin.do(t, "GET", "/v1/stats", nil, ""); !strings.Contains(r.Body.String(),
		`"routes":`+routes) || !strings.Contains(r.Body.String(), `"dead":317`) {
		t.Errorf("the overview is %s", r.Body)
	}
	b.admin.do(t, "POST", "/v1/tenants/acme/unhold", nil, `{"reason":"mended"}`).want(t, http.StatusOK, "")
	if r := b.admin.do(t, "GET", "/v1/tenants/acme", nil, ""); strings.Contains(r.Body.String(),
		"held_until") || strings.Contains(r.Body.String(), "mended") {
		t.Errorf("after the end of the hold: %s", r.Body)
	}
	if r := b.admin.do(t, "GET", "/v1/tenants/acme/history", nil, ""); !strings.Contains(r.Body.String(),
		`"action":"unhold","reason":"mended"`) {
		t.Errorf("the history is %s", r.Body)
	}
}
