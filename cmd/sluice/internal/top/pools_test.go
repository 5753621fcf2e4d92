package top

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
)

// poolsAt are two pools: erp at its rate, and one that is held and has more reserves than its rate.
func poolsAt(seconds int64) poolsNews {
	erp := wire.Pool{
		Pool: "erp", Routes: []string{"orders", "refunds"}, Policy: policyInForce(shaper.Policy{
			Rate: shaper.Rate{Limit: 200, Period: time.Second}, Capacity: 50_000, Concurrency: 100}), Depth: 3273 - seconds, Running: 12,
		Departed: 196 * seconds, Costs: 196 * seconds, LimitedBy: "rate", EffectiveRate: 200, WaitingFlows: 3, Weights: 8, Reserves: 7,
	}
	mail := wire.Pool{
		Pool: "mail", Routes: []string{"mail"}, Policy: policyInForce(shaper.Policy{
			Rate: shaper.Rate{Limit: 10, Period: time.Second}, Capacity: 1000,
			Rates: []shaper.Pace{{Rate: shaper.Rate{Limit: 1000, Period: 24 * time.Hour}, Burst: 1000}}}), Depth: 1000,
		Departed: 70, Costs: 70, LimitedBy: "held", Owed: 42, HeldUntil: time.Date(2026, 3, 1, 13, 0, 0, 0, time.UTC), HeldBy: "breaker",
		EffectiveRate: 5, WaitingFlows: 2, Weights: 2, Reserves: 20, Oversubscribed: true,
	}
	return poolsNews{At: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second),
		Items: []wire.Pool{erp, mail}}
}

// sharesAt are the flows of erp, one with a hostile name.
func sharesAt(at time.Time) sharesNews {
	share := func(tenant string, got, part float64, weight int64, by string) wire.PoolShare {
		return wire.PoolShare{Tenant: tenant, Route: "orders", Depth: 700, Running: 3, Weight: weight, LimitedBy: by,
			Part: part, Departures: new(200 * got), Got: new(got)}
	}
	first := share("acme", 0.377, 0.5575, 4, "concurrency")
	first.Reserve = &shaper.Rate{Limit: 5, Period: time.Second}
	unknown := share("new", 0, 0.108, 1, "pool")
	unknown.Got, unknown.Departures = nil, nil
	return sharesNews{At: at, Pool: "erp", Matching: 3, Items: []wire.PoolShare{
		first, share("evil\x1b[2J日本商店 with a long name", 0.123, 0.108, 1, "pool"), unknown,
	}}
}

// passPools lets seconds pass with figures of pools, and of the flows of the shown one.
func (w *topWorld) passPools(seconds int) {
	for range seconds {
		w.pass(1, 3)
		w.send(poolsAt(int64(w.now.Sub(poolsAt(0).At) / time.Second)))
		if w.m.view.Pool == "erp" {
			w.send(sharesAt(w.now))
		}
	}
}

// Tab leads to the pools and back, enter to the flows of one. No key there changes a tenant.
func TestTopPools(t *testing.T) {
	w := newTopWorld(t, 100, 24)
	w.keys("tab")
	queuetest.Contains(t, "the screen", w.frame(), "the configuration declares no pools")
	w.keys("tab")
	w.passPools(3)
	queuetest.Contains(t, "the screen", w.foot(), "tab pools")
	w.keys("tab")
	queuetest.Contains(t, "the screen", w.frame(), "> erp", "200/s", "196", "3270/50k", "12/100", "held, oversubscribed", "10/s+")
	for _, key := range []string{"p", "r", "+", "-"} {
		w.keys(key)
		queuetest.Contains(t, "the screen", w.foot(), "sluice pool pause, resume and set change a pool")
	}
	if w.m.plan != nil || len(w.changes) > 0 {
		t.Errorf("a change is planned: %+v", w.m.plan)
	}
	w.keys("enter")
	queuetest.Compare(t, "the pool that was asked for", w.views[len(w.views)-1].Pool, "erp")
	queuetest.Contains(t, "the screen", w.frame(), "erp: its jobs leave at the rate", "reading its flows")
	w.passPools(1)
	text := w.frame()
	queuetest.Contains(t, "the screen", text, "ENTITLED", "37.7%", "55.8%", "5/s", "concur", "reserves 7/s",
		"routes orders refunds")
	if strings.Contains(text, "\x1b[2J") {
		t.Error("the name of a tenant reached the terminal as it is")
	}
	other := sharesAt(w.now)
	other.Pool, other.Items = "mail", nil
	w.send(other) // from the view before
	queuetest.Contains(t, "the screen", w.frame(), "37.7%")
	w.keys("esc")
	queuetest.Compare(t, "the pool after esc", w.views[len(w.views)-1].Pool, "")
	queuetest.Contains(t, "the screen", w.frame(), "> erp")
	w.keys("down", "enter")
	queuetest.Contains(t, "the screen", w.frame(), "mail: held until 2026-03-01T13:00:00Z", "oversubscribed")
	w.keys("tab")
	queuetest.Contains(t, "the screen", w.frame(), "TENANT", "> acme")
}

// Lines and JSON have the pools and, with --pool, its flows in the place of the tenants.
func TestTopPoolLines(t *testing.T) {
	w := newTopWorld(t, 80, 24)
	l := &samples{model: newTopModel(t.Context(), "", client.View{Pool: "erp"}, topPorts{})}
	w.m = l.model
	for range 3 {
		w.pass(1, 0)
		at := int64(w.now.Sub(poolsAt(0).At) / time.Second)
		l.take(poolsAt(at))
		l.take(sharesAt(w.now))
		l.take(tenantsNews{At: w.now, Items: []wire.TenantLine{}})
	}
	got, complete := l.take(tenantsNews{At: w.now, Items: []wire.TenantLine{}})
	queuetest.Compare(t, "the sample is complete", complete, true)
	var out bytes.Buffer
	printSampleLines(&out, got)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		"12:00:03 all: tenants 0",
		"12:00:03 pool erp: rate 200/s by rate out 196/s depth 3270/50000 running 12/100 flows 3",
		"12:00:03 acme/orders: got 37.7% entitled 55.8% out 75.4/s weight 4 reserve 5/s by concurrency depth 700 running 3",
		`12:00:03 evil`,
		"12:00:03 new/orders: got - entitled 10.8% weight 1 by pool depth 700 running 3",
	} {
		if len(lines) != 5 || !strings.HasPrefix(lines[i], want) {
			t.Fatalf("%q, want line %d to be %q", lines, i, want)
		}
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	queuetest.Contains(t, "the JSON", string(text), `"pools":[{"pool":"erp"`, `"departures_per_s":196`,
		`"pool_flows":{"at":`, `"got":0.377`)
	l.model.pools.shares = nil
	got, _ = l.take(tenantsNews{At: w.now, Items: []wire.TenantLine{tenantAt(0, 3)}})
	out.Reset()
	printSampleLines(&out, got)
	queuetest.Contains(t, "the lines", out.String(), "pool erp: ", " acme: rate 200/s",
		"pool mail: rate 10/s by held until 13:00:00 breaker out 0/s depth 1000/1000 running 0 flows 2 owes 42 oversubscribed")
	free := wire.Pool{Pool: "free", Policy: policyInForce(shaper.Policy{Capacity: shaper.MaxCapacity})}
	out.Reset()
	printPoolLines(&out, "12:00:00", sample{Pools: []poolFigures{{Pool: free}}})
	queuetest.Contains(t, "the line of a pool without a bound", out.String(), "depth 0/unbounded ")
}

// An unknown pool ends the command. One of a tenant and a pool is shown.
func TestTopOfAPool(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"type":"urn:sluice:problem:unknown-pool","title":"Unknown pool","status":404,"detail":%q}`, r.URL.Path)
	}))
	defer srv.Close()
	top := func(args ...string) (code int, problems string) {
		var o, e strings.Builder
		code = run(t.Context(), append([]string{"top", "--admin", srv.URL}, args...), cli.Stdio{Out: &o, Err: &e}, nil)
		return code, e.String()
	}
	code, problems := top("--pool", "nowhere")
	if code != cli.ExitFailed || !strings.Contains(problems, "read the pool") {
		t.Errorf("an unknown pool: exit code %d, %s", code, problems)
	}
	if code, problems = top("acme", "--pool", "erp"); code != cli.ExitUsage || !strings.Contains(problems, "--pool: ") {
		t.Errorf("with a tenant: exit code %d, %s", code, problems)
	}
}
