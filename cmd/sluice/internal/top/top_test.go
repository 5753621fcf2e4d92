package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
)

// topWorld is a server as the model sees it: figures by the second, and what was asked of it.
type topWorld struct {
	t       *testing.T
	m       *topModel
	now     time.Time
	views   []client.View
	changes []change
	err     error // of the next change
}

func newTopWorld(t *testing.T, width, height int) *topWorld {
	w := &topWorld{t: t, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	w.m = newTopModel(t.Context(), "http://127.0.0.1:8081", client.View{Sort: "depth", Limit: topRows}, topPorts{
		view: func(l client.View) { w.views = append(w.views, l) },
		change: func(_ context.Context, c change) (wire.Tenant, error) {
			w.changes = append(w.changes, c)
			return wire.Tenant{Tenant: c.tenant, Policy: policyInForce(shaper.Policy{Rate: c.rate}), Revision: 8}, w.err
		},
	})
	w.send(tea.WindowSizeMsg{Width: width, Height: height})
	return w
}

// send updates the model, and carries out what it commands.
func (w *topWorld) send(msg tea.Msg) (quit bool) {
	_, cmd := w.m.Update(msg)
	for cmd != nil {
		answer := cmd()
		if _, quit = answer.(tea.QuitMsg); quit || answer == nil {
			return quit
		}
		_, cmd = w.m.Update(answer)
	}
	return false
}

// keys presses keys by their names, text letter by letter.
func (w *topWorld) keys(names ...string) (quit bool) {
	special := map[string]rune{
		"enter": tea.KeyEnter, "esc": tea.KeyEsc, "up": tea.KeyUp, "down": tea.KeyDown, "pgup": tea.KeyPgUp,
		"pgdown": tea.KeyPgDown, "home": tea.KeyHome,
		"tab": tea.KeyTab, "end": tea.KeyEnd, "backspace": tea.KeyBackspace,
	}
	for _, name := range names {
		if code, is := special[name]; is {
			quit = w.send(tea.KeyPressMsg{Code: code})
			continue
		}
		for _, r := range name {
			quit = w.send(tea.KeyPressMsg{Code: r, Text: string(r)})
		}
	}
	return quit
}

// tenantAt returns the n-th tenant after the given seconds: the first is full and refuses, the
// second is paused, others have less and less.
func tenantAt(n int, seconds int) wire.TenantLine {
	s := int64(seconds)
	r := wire.TenantLine{
		Tenant: fmt.Sprintf("tenant-%02d", n), Rate: shaper.Rate{Limit: 10, Period: time.Second}, EffectiveRate: 10,
		Capacity: 1000, Depth: max(0, int64(900-60*n)),
		Running: 2, LimitedBy: "rate", OldestWaitMS: int64(90_000 - 6000*n), Admitted: 1000 + 10*s,
		Departed: 100 + 10*s, Succeeded: 99 + 10*s, Dead: 1,
	}
	switch n {
	case 0:
		wave := int64(300 + 200*math.Sin(float64(seconds)/3))
		r.Tenant, r.Rate, r.EffectiveRate = "acme", shaper.Rate{Limit: 200, Period: time.Second}, 200
		r.Capacity, r.Depth, r.Admitted, r.Departed, r.Rejected = 5000, 5000-wave/4, 270*s+wave, 200*s,
			70*s+max(0, wave-350)
		r.OldestWaitMS = 24_870
	case 1:
		r.Tenant, r.Paused, r.LimitedBy, r.Departed, r.Depth = "日本商店 with a long name.example", true,
			"paused", 100, min(1000, 700+10*s)
	case 2:
		r.Rate, r.EffectiveRate, r.LimitedBy = shaper.Rate{Limit: 5, Period: 24 * time.Hour}, 2.5/86400, "held"
	case 3:
		r.LimitedBy, r.Owed = "concurrency", 42
	case 15:
		r.LimitedBy, r.Depth, r.OldestWaitMS = "idle", 0, 0
	}
	return r
}

// pass lets seconds pass: the figures of each come.
func (w *topWorld) pass(seconds, tenants int) {
	for range seconds {
		w.now = w.now.Add(time.Second)
		s := int(w.now.Sub(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)) / time.Second)
		var rows []wire.TenantLine
		o := overviewNews{At: w.now, Tenants: int64(tenants), Running: 24, Bytes: 5 << 20, Workers: 2,
			Lateness: new(1.234), Store: wire.StoreState{
				OK: true, Engine: "redis", Version: "7.0.15", PingMS: 0.21, UsedMemory: 12 << 20, MaxMemory: 1 << 30,
			}}
		for n := range tenants {
			r := tenantAt(n, s)
			rows = append(rows, r)
			o.Depth, o.Admitted, o.Rejected, o.Departed = o.Depth+r.Depth, o.Admitted+r.Admitted,
				o.Rejected+r.Rejected, o.Departed+r.Departed
		}
		w.send(linkNews{})
		w.send(o)
		w.send(tenantsNews{At: w.now, Matching: tenants, Items: rows})
		at := slices.IndexFunc(rows, func(r wire.TenantLine) bool { return r.Tenant == w.m.view.Tenant })
		if at >= 0 {
			r := rows[at]
			n := tenantNews{At: w.now, WaitP50MS: 120, WaitP95MS: 2345, WaitP99MS: 24_870}
			n.Tenant.Tenant, n.Tier, n.Revision, n.Reason = r.Tenant, "pro", 7, "black friday"
			n.Policy = policyInForce(shaper.Policy{
				Rate: r.Rate, Burst: 1, Capacity: r.Capacity, Concurrency: 64, Paused: r.Paused,
			})
			n.Figures = wire.Figures{
				Depth: r.Depth, Running: r.Running, LimitedBy: r.LimitedBy, EffectiveRate: r.EffectiveRate,
				OldestWaitMS: r.OldestWaitMS,
				Admitted:     r.Admitted, Rejected: r.Rejected, Departed: r.Departed, Succeeded: r.Succeeded,
				Dead: r.Dead,
			}
			w.send(n)
		}
	}
}

// policyInForce is a policy whose rate is from the API.
func policyInForce(p shaper.Policy) wire.Policy {
	return wire.Policy{Overrides: p.Overrides(shaper.SettingsOfTenants()), Sources: map[string]string{"rate": "api"}}
}

// frame is the screen without colours; it checks the size.
func (w *topWorld) frame() string {
	w.t.Helper()
	text := w.m.View().Content
	lines := strings.Split(text, "\n")
	if len(lines) != max(w.m.height, 1) {
		w.t.Errorf("%d lines on a screen of %d", len(lines), w.m.height)
	}
	for _, line := range lines {
		if cells := ansi.StringWidth(line); cells > w.m.width {
			w.t.Errorf("%d cells in a line of %d: %s", cells, w.m.width, line)
		}
	}
	return ansi.Strip(text)
}

// foot is the last lines of the screen.
func (w *topWorld) foot() string {
	lines := strings.Split(w.frame(), "\n")
	return strings.Join(lines[max(0, len(lines)-4):], "\n")
}

// Frames in a readable form; -update writes them anew.
var update = flag.Bool("update", false, "write the frames of testdata anew")

// The screens are those of testdata.
func TestTopFrames(t *testing.T) {
	for name, c := range map[string]struct {
		width, height int
		do            func(w *topWorld)
	}{
		"list-80x24":   {80, 24, func(w *topWorld) { w.pass(40, 30); w.keys("down") }},
		"list-140x30":  {140, 30, func(w *topWorld) { w.pass(70, 30) }},
		"list-60x10":   {60, 10, func(w *topWorld) { w.pass(10, 30); w.keys("end") }},
		"tenant-80x24": {80, 24, func(w *topWorld) { w.pass(40, 30); w.keys("enter"); w.pass(5, 30) }},
		"tenant-140x45": {140, 45, func(w *topWorld) {
			w.pass(70, 30)
			w.keys("enter")
			w.pass(60, 30)
		}},
		"change-80x24": {80, 24, func(w *topWorld) { w.pass(40, 30); w.keys("++") }},
		"away-80x24": {80, 24, func(w *topWorld) {
			w.pass(40, 3)
			w.send(linkNews{err: errors.New("connection refused")})
		}},
		"pools-80x24": {80, 24, func(w *topWorld) { w.passPools(40); w.keys("tab", "down") }},
		"pools-60x10": {60, 10, func(w *topWorld) { w.passPools(3); w.keys("tab") }},
		"pool-80x24":  {80, 24, func(w *topWorld) { w.passPools(5); w.keys("tab", "enter"); w.passPools(1) }},
		"pool-140x30": {140, 30, func(w *topWorld) { w.passPools(5); w.keys("tab", "enter"); w.passPools(1) }},
		"empty-80x24": {80, 24, func(w *topWorld) { w.pass(3, 0) }},
		"start-80x24": {80, 24, func(w *topWorld) {}},
		"help-80x24":  {80, 24, func(w *topWorld) { w.keys("?") }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTopWorld(t, c.width, c.height)
			c.do(w)
			file := filepath.Join("testdata", name+".txt")
			got := w.frame() + "\n"
			if *update {
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
					os.WriteFile(file, []byte(got), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// No size, state or text breaks the screen.
func TestTopFitsEveryScreen(t *testing.T) {
	for _, size := range [][2]int{
		{1, 1}, {5, 2}, {20, 5}, {40, 12}, {79, 13}, {80, 14}, {100, 20}, {119, 24}, {120, 24}, {400, 120},
	} {
		w := newTopWorld(t, size[0], size[1])
		w.frame()
		w.pass(3, 50)
		w.frame()
		for _, keys := range [][]string{
			{"down", "+"}, {"y"}, {"/", "x"}, {"esc"}, {"?"}, {"esc"}, {"p"}, {"n"}, {"tab"}, {"down", "enter"},
			{"pgdown", "p"}, {"tab"}, {"enter"}, {"-"}, {"y"},
		} {
			w.keys(keys...)
			w.frame()
			w.passPools(1)
			w.frame()
		}
		w.pass(2, 50)
		w.frame()
		w.send(linkNews{err: errors.New(strings.Repeat("long ", 100))})
		w.frame()
	}
}

// A change is made after a question that says what it changes: once, and of the tenant in the
// question.
func TestTopChanges(t *testing.T) {
	w := newTopWorld(t, 100, 24)
	w.keys("+")
	queuetest.Contains(t, "the screen", w.foot(), "no tenant is chosen")
	w.pass(3, 5)

	w.keys("p")
	queuetest.Contains(t, "the screen", w.foot(), "Pause acme? Its jobs stop leaving (4,883 wait)")
	w.keys("n")
	queuetest.Contains(t, "the screen", w.foot(), "cancelled: nothing was changed")
	w.keys("p", "enter") // a key that is hit by habit is no yes
	if len(w.changes) != 0 {
		t.Errorf("the changes are %+v, want none", w.changes)
	}
	w.keys("py")
	if len(w.changes) != 1 || w.changes[0].tenant != "acme" || w.changes[0].action != "pause" {
		t.Fatalf("the changes are %+v, want one, a pause of acme", w.changes)
	}
	queuetest.Contains(t, "the screen", w.foot(), "acme is paused (revision 8)")
	w.keys("r")
	queuetest.Contains(t, "the screen", w.foot(),
		"Resume acme? Its jobs leave at 200/s: the waiting jobs (4,883) leave in 24.4s. A drain ends too.")
	w.keys("y")

	w.keys("++-")
	queuetest.Contains(t, "the screen", w.foot(),
		"from 200/s to 250/s? Then the waiting jobs (4,883) leave in 19.5s.")
	// Meanwhile the order of the table changes; the question stays what it was.
	rows := slices.Clone(w.m.table.Items)
	slices.Reverse(rows)
	w.send(tenantsNews{At: w.now.Add(time.Second), Matching: 5, Items: rows})
	w.keys("y")
	want := change{
		tenant: "acme", action: "rate", rate: shaper.Rate{Limit: 250, Period: time.Second},
		before: shaper.Rate{Limit: 200, Period: time.Second}, depth: 4883,
	}
	if len(w.changes) != 3 || w.changes[2] != want {
		t.Fatalf("the changes are %+v, want three, the last of them %+v", w.changes, want)
	}
	queuetest.Contains(t, "the screen", w.foot(), "the rate of acme is 250/s (revision 8)")
	w.err = &client.Error{Problem: wire.Problem{Title: "Credentials are missing or wrong", Status: 401}}
	w.keys("+y")
	queuetest.Contains(t, "the screen", w.foot(),
		"acme was not changed: Credentials are missing or wrong (401)")
	// In the view of one tenant it is that one which is changed.
	w.keys("down", "enter")
	w.err = nil
	w.keys("-y")
	if got := w.changes[len(w.changes)-1].tenant; got != w.m.view.Tenant {
		t.Errorf("%s was changed", got)
	}
}

// An effective rate is compared with the strictest rate. The time until a queue is empty is
// predicted only if the first rate alone decides.
func TestTopFurtherRates(t *testing.T) {
	w := newTopWorld(t, 140, 30)
	day := shaper.PaceJSON{Limit: 1000, PeriodMS: 86_400_000, Burst: 1000}
	row := tenantAt(5, 1)
	row.Tenant, row.Rates, row.EffectiveRate = "partner", []shaper.PaceJSON{day}, 1000.0/86_400
	show := func() {
		w.now = w.now.Add(time.Second)
		w.send(linkNews{})
		w.send(tenantsNews{At: w.now, Matching: 1, Items: []wire.TenantLine{row}})
		n := tenantNews{At: w.now}
		n.Tenant.Tenant, n.Policy, n.EffectiveRate, n.Depth = row.Tenant, policyInForce(policyOf(row)),
			row.EffectiveRate, row.Depth
		n.Routes = map[string]wire.Flow{"default": {Policy: n.Policy}}
		if len(row.Rates) == 0 {
			n.Routes["login"] = wire.Flow{Policy: policyInForce(shaper.Policy{Rate: shaper.Rate{Limit: 5, Period: time.Minute}})}
		}
		w.send(n)
	}
	says := func(frame string, parts ...string) {
		t.Helper()
		queuetest.Contains(t, "the screen", frame, parts...)
	}
	show()
	says(w.frame(), "10/s+ 100%")
	w.keys("r")
	says(w.foot(), "Resume partner? Its jobs (600 wait) leave at their rates.")
	w.keys("n", "+")
	says(w.foot(), "from 10/s to 13/s? Further rates, and rates of routes, stay as they are.")
	w.keys("n", "enter")
	row.EffectiveRate /= 2
	show()
	says(w.frame(), "rate 10/s (api), effective 50%", "and 1000/d burst 1000")

	row.Rates, row.EffectiveRate = nil, 10
	show()
	w.keys("r")
	says(w.foot(), "Its jobs (600 wait) leave at their rates.") // a route has one of its own
}

// Keys choose the tenant, the order and the search of the view. In a search, keys are text.
func TestTopRequestsViews(t *testing.T) {
	w := newTopWorld(t, 80, 24)
	w.pass(2, 30)
	w.keys("down", "enter", "esc", "s", "s", "s", "s", "s", "/", "acme", "backspace", "enter", "esc")
	chosen := w.m.table.Items[1].Tenant
	view := client.View{Sort: "depth", Limit: topRows}
	with := func(change func(*client.View)) client.View {
		l := view
		change(&l)
		return l
	}
	want := []client.View{
		with(func(l *client.View) { l.Tenant = chosen }), view,
		with(func(l *client.View) { l.Sort = "oldest_wait" }),
		with(func(l *client.View) { l.Sort = "refused" }), with(func(l *client.View) { l.Sort = "dead" }),
		with(func(l *client.View) { l.Sort = "name" }),
		view,
		with(func(l *client.View) { l.Search = "acm" }), view,
	}
	if diff := cmp.Diff(want, w.views); diff != "" {
		t.Error(diff)
	}
	// Keys that mean something elsewhere are text of a search.
	w.keys("/", "q?+p")
	w.send(tea.PasteMsg{Content: "x\n\x1b[31my"})
	queuetest.Compare(t, "the text of the search", w.m.typed, "q?+px \ufffd[31my")
	queuetest.Compare(t, "a change is being asked for", w.m.plan != nil, false)
	w.keys("esc")
	queuetest.Compare(t, "the search after esc", w.m.view.Search, "")
	queuetest.Compare(t, "the views that were requested", len(w.views), len(want))
	queuetest.Compare(t, "esc ends it", w.keys("esc"), false)
	queuetest.Compare(t, "q ends it", w.keys("q"), true)
	queuetest.Compare(t, "ctrl+c ends it", w.send(tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}), true)
}

// The cursor stays on its tenant while the order changes, and near its place when the tenant is
// gone.
func TestTopCursor(t *testing.T) {
	w := newTopWorld(t, 80, 24)
	w.pass(2, 40)
	w.keys("end")
	if w.m.chosen != "tenant-39" || w.m.first != 40-w.m.rows() {
		t.Errorf("%s, from %d", w.m.chosen, w.m.first)
	}
	rows := slices.Clone(w.m.table.Items)
	slices.Reverse(rows)
	w.send(tenantsNews{At: w.now.Add(time.Second), Items: rows})
	queuetest.Compare(t, "the chosen tenant", w.m.chosen, "tenant-39")
	queuetest.Compare(t, "the first row of the screen", w.m.first, 0)
	queuetest.Contains(t, "the screen", w.frame(), "> tenant-39")
	w.send(tenantsNews{At: w.now.Add(2 * time.Second), Items: rows[1:]})
	queuetest.Compare(t, "the chosen tenant when it is gone", w.m.chosen, "tenant-38")
	w.send(tenantsNews{At: w.now.Add(3 * time.Second)})
	queuetest.Compare(t, "the chosen one of no tenants", w.m.chosen, "")
	queuetest.Compare(t, "keys without tenants end it", w.keys("enter", "down", "pgup", "end"), false)
	queuetest.Compare(t, "the tenant that is shown", w.m.view.Tenant, "")
	// Tenants out of sight are forgotten.
	if w.pass(70, 1); len(w.m.tracks) != 1 {
		t.Errorf("%d tracks", len(w.m.tracks))
	}
}

// Text of others can neither steer the terminal nor break the line.
func TestTopPlainText(t *testing.T) {
	w := newTopWorld(t, 80, 24)
	evil := "a\x1b[2J\u202eb\u2028c"
	w.send(overviewNews{At: w.now, Store: wire.StoreState{Engine: "redis\x1b[1m", Error: "line\x1b]0;t\x07"}})
	w.send(tenantsNews{
		At: w.now, Matching: 1,
		Items: []wire.TenantLine{{Tenant: evil, LimitedBy: "rate",
			Rate: shaper.Rate{Limit: 1, Period: time.Second}}},
	})
	w.send(linkNews{err: errors.New(evil)})
	for _, key := range []string{"p", "y", "enter"} {
		if w.keys(key); strings.ContainsAny(w.frame(), "\x1b\u202e\u2028\a") ||
			strings.Contains(w.m.View().Content, "\x1b[2J") {
			t.Errorf("after %s: %q", key, w.m.View().Content)
		}
	}
}

// Totals become rates, one point a second. A restart and a long gap begin anew.
func TestTrack(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		at   []float64 // seconds
		now  []totals
		want []point
	}{
		"a second": {
			[]float64{0, 1, 2}, []totals{{admitted: 10, departed: 5}, {admitted: 20, rejected: 5, departed: 7}, {admitted: 20, rejected: 5, departed: 7}}, []point{{arrived: 15, departed: 2, refused: 5}, {}},
		},
		"four a second": {
			[]float64{0, .25, .5, .75, 1, 1.25},
			[]totals{{}, {admitted: 1}, {admitted: 2}, {admitted: 3}, {admitted: 4}, {admitted: 5}},
			[]point{{arrived: 4}},
		},
		"a slow scan": {
			[]float64{0, 3}, []totals{{}, {admitted: 6}}, []point{{arrived: 2}, {arrived: 2}, {arrived: 2}},
		},
		"a restart": {
			[]float64{0, 1, 2, 3}, []totals{{admitted: 10}, {admitted: 20}, {admitted: 1}, {admitted: 2}},
			[]point{{arrived: 1}},
		},
		"long away": {
			[]float64{0, 1, 100, 101}, []totals{{}, {admitted: 1}, {admitted: 1}, {admitted: 3}},
			[]point{{arrived: 2}},
		},
		"backwards": {[]float64{5, 4, 5}, []totals{{}, {}, {departed: 3}}, []point{{departed: 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			var k track
			for i, now := range c.now {
				k.see(start.Add(time.Duration(c.at[i]*float64(time.Second))), now, 0)
			}
			diff := cmp.Diff(c.want, k.points, cmp.AllowUnexported(point{}))
			if len(c.want)+len(k.points) > 0 && diff != "" {
				t.Error(diff)
			}
		})
	}
	var k track
	for i := range 2 * trackLength {
		k.see(start.Add(time.Duration(i)*time.Second), totals{}, 0)
	}
	if len(k.points) != trackLength {
		t.Errorf("%d points", len(k.points))
	}
}

// Steps go up and down through round rates, and change the period where the limit is 1.
func TestRateSteps(t *testing.T) {
	for _, c := range []struct{ rate, faster, slower shaper.Rate }{
		{shaper.Rate{Limit: 200, Period: time.Second}, shaper.Rate{Limit: 250, Period: time.Second},
			shaper.Rate{Limit: 160, Period: time.Second}},
		{shaper.Rate{Limit: 250, Period: time.Second}, shaper.Rate{Limit: 310, Period: time.Second},
			shaper.Rate{Limit: 200, Period: time.Second}},
		{shaper.Rate{Limit: 2, Period: time.Second}, shaper.Rate{Limit: 3, Period: time.Second},
			shaper.Rate{Limit: 1, Period: time.Second}},
		{shaper.Rate{Limit: 1, Period: time.Second}, shaper.Rate{Limit: 2, Period: time.Second},
			shaper.Rate{Limit: 1, Period: 2 * time.Second}},
		{shaper.Rate{Limit: 1, Period: 2 * time.Second}, shaper.Rate{Limit: 1, Period: time.Second},
			shaper.Rate{Limit: 1, Period: 4 * time.Second}},
		{shaper.Rate{Limit: 5, Period: time.Minute}, shaper.Rate{Limit: 6, Period: time.Minute},
			shaper.Rate{Limit: 4, Period: time.Minute}},
		{shaper.Rate{Limit: 1_000_000, Period: time.Second}, shaper.Rate{Limit: 1_000_000, Period: time.Second},
			shaper.Rate{Limit: 800_000, Period: time.Second}},
		{shaper.Rate{Limit: 1, Period: 8784 * time.Hour}, shaper.Rate{Limit: 1, Period: 4392 * time.Hour},
			shaper.Rate{Limit: 1, Period: 8784 * time.Hour}},
	} {
		if got := faster(c.rate); got != c.faster {
			t.Errorf("faster than %s: %s", c.rate.String(), got.String())
		}
		if got := slower(c.rate); got != c.slower {
			t.Errorf("slower than %s: %s", c.rate.String(), got.String())
		}
	}
}

// Names, gauges and sparklines fill their cells exactly.
func TestTopCells(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{left("日本商店", 5), "日本…"}, {left("ab", 4), "ab  "}, {right("ab", 4), "  ab"}, {right("abcdef", 4), "abc…"},
		{gauge(0, 4), "    "}, {gauge(0.001, 4), "▏   "}, {gauge(0.5, 4), "██  "}, {gauge(0.999, 4), "███▉"},
		{gauge(1, 4), "████"}, {gauge(9, 4), "████"},
		{spark([]float64{0, 1, 50, 100, 200}, 6, 100), " ▁▂▅██"}, {spark(nil, 3, 0), "   "},
		{spark([]float64{1, 2, 3}, 2, 3), "▆█"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// Each table of tenants after the first prints lines with rates, or one value as JSON.
func TestTopLines(t *testing.T) {
	want := "12:00:02 all: tenants 2 depth 5615 running 24 in 466/s out 200/s refused 128/s workers 2 " +
		"lateness_p99 1.2ms store ok\n" +
		"12:00:02 acme: rate 200/s by rate depth 4895/5000 running 2 in 456/s out 200/s refused 128/s " +
		"oldest 24.9s\n" +
		"12:00:02 日本商店 with a long name.example: rate 10/s by paused depth 720/1000 running 2 in 10/s out " +
		"0/s refused 0/s oldest 84.0s\n"
	cmd := Cmd{}
	w := newTopWorld(t, 80, 24)
	l := &samples{model: w.m}
	var out bytes.Buffer
	feed := func(news any) {
		if sampled, complete := l.take(news); complete {
			if err := cmd.printSample(&out, sampled); err != nil {
				t.Fatal(err)
			}
		}
	}
	for s := 1; s <= 2; s++ {
		now := w.now.Add(time.Duration(s) * time.Second)
		rows := []wire.TenantLine{tenantAt(0, s), tenantAt(1, s)}
		o := overviewNews{
			At: now, Tenants: 2, Running: 24, Workers: 2, Lateness: new(1.234),
			Store: wire.StoreState{OK: true},
		}
		for _, r := range rows {
			o.Depth, o.Admitted, o.Rejected, o.Departed = o.Depth+r.Depth, o.Admitted+r.Admitted,
				o.Rejected+r.Rejected, o.Departed+r.Departed
		}
		feed(o)
		feed(tenantsNews{At: now, Matching: 2, Items: rows})
	}
	got := out.String()
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	out.Reset()
	cmd.JSON = true
	feed(tenantsNews{At: w.now.Add(3 * time.Second), Matching: 2, Items: []wire.TenantLine{tenantAt(0, 3)}})
	var sampled struct {
		Overview struct {
			Depth    int64    `json:"depth"`
			Arrivals *float64 `json:"arrivals_per_s"`
		} `json:"overview"`
		Tenants []struct {
			Tenant   string   `json:"tenant"`
			Capacity int64    `json:"capacity"`
			Refusals *float64 `json:"refusals_per_s"`
		} `json:"tenants"`
	}
	if err := json.Unmarshal(out.Bytes(), &sampled); err != nil || strings.Count(out.String(), "\n") != 1 {
		t.Fatalf("%v: %s", err, out.String())
	}
	if sampled.Overview.Arrivals == nil {
		t.Error("the overview has no arrivals_per_s")
	}
	if len(sampled.Tenants) != 1 {
		t.Fatalf("the tenants are %+v, want acme alone", sampled.Tenants)
	}
	acme := sampled.Tenants[0]
	queuetest.Compare(t, "the tenant", acme.Tenant, "acme")
	queuetest.Compare(t, "its capacity", acme.Capacity, 5000)
	if acme.Refusals == nil {
		t.Error("it has no refusals_per_s")
	}
}

// TestTopLinesWithoutAStore: while the store does not answer there are no tables, and a line a
// second says so.
func TestTopLinesWithoutAStore(t *testing.T) {
	w := newTopWorld(t, 80, 24)
	l, cmd := &samples{model: w.m}, Cmd{}
	var out bytes.Buffer
	for tick := range 8 { // four a second
		o := overviewNews{At: w.now.Add(time.Duration(tick) * 250 * time.Millisecond), Depth: 7, FiguresAt: &w.now}
		if sampled, complete := l.take(o); complete {
			if err := cmd.printSample(&out, sampled); err != nil {
				t.Fatal(err)
			}
		}
	}
	line := " all: tenants 0 depth 7 running 0 workers 0 store UNREACHABLE, figures of 12:00:00\n"
	if got, want := out.String(), "12:00:00"+line+"12:00:01"+line; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// The history of the stream is drawn at once. A sample that is shown is not drawn again.
func TestTopBeginsWithTheHistory(t *testing.T) {
	w := newTopWorld(t, 80, 24)
	var past historyNews
	for i := range 7 {
		past.Overviews = append(past.Overviews, wire.PastOverview{
			At: w.now.Add(time.Duration(i-7) * 5 * time.Second), Admitted: int64(100 * i),
			Departed: int64(50 * i),
		})
	}
	w.send(past)
	p, known := w.m.all.now()
	queuetest.Compare(t, "there is a last point", known, true)
	queuetest.Compare(t, "its arrivals and departures a second", []float64{p.arrived, p.departed},
		[]float64{20, 10})
	queuetest.Compare(t, "the points", len(w.m.all.points), 30)
	w.send(past)
	if len(w.m.all.points) != 30 {
		t.Errorf("%d points after the same again", len(w.m.all.points))
	}
}
