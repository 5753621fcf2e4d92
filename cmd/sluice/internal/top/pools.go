package top

import (
	"fmt"
	"io"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
)

// poolScreen is the part of the live view with pools: their table, and the flows of one.
type poolScreen struct {
	shown  bool // instead of the tenants
	list   wire.PoolLines
	tracks map[string]*track // by pool
	row    int               // of the pool under the cursor
	shares *wire.PoolShares  // of view.Pool, once received
	first  int               // first flow on the screen
}

// seePools takes the figures of all pools.
func (m *topModel) seePools(list wire.PoolLines) {
	p, chosen := &m.pools, m.chosenPool()
	p.list = list
	tracks := map[string]*track{}
	for i, pool := range list.Items {
		if tracks[pool.Pool] = p.tracks[pool.Pool]; tracks[pool.Pool] == nil {
			tracks[pool.Pool] = &track{}
		}
		tracks[pool.Pool].see(list.At, totals{departed: pool.Departed, costs: pool.Costs}, pool.Depth)
		if pool.Pool == chosen {
			p.row = i
		}
	}
	p.tracks, p.row = tracks, min(p.row, max(0, len(list.Items)-1))
}

// counted is what the strictest rate of a pool counts: jobs or costs a second.
func counted(policy shaper.Policy) func(point) float64 {
	if policy.Strictest() < policy.CostRate().PerSecond() {
		return departedOf
	}
	return costsOf
}

// chosenPool is the pool under the cursor, empty without pools.
func (m *topModel) chosenPool() string {
	if p := m.pools; p.row < len(p.list.Items) {
		return p.list.Items[p.row].Pool
	}
	return ""
}

// pool returns the figures of the shown pool.
func (m *topModel) pool() (p wire.Pool, found bool) {
	at := slices.IndexFunc(m.pools.list.Items, func(p wire.Pool) bool { return p.Pool == m.view.Pool })
	if at < 0 {
		return p, false
	}
	return m.pools.list.Items[at], true
}

// pressInPools handles the keys of the screen of pools.
func (m *topModel) pressInPools(name string) tea.Cmd {
	p := &m.pools
	step := map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -m.rows(), "pgdown": m.rows(),
		"home": -len(p.list.Items), "g": -len(p.list.Items), "end": len(p.list.Items), "G": len(p.list.Items)}
	switch name {
	case "tab", "esc", "backspace", "left":
		p.shown = name != "tab" && m.view.Pool != ""
		if m.view.Pool == "" {
			return nil
		}
		m.view.Pool, p.shares = "", nil
		return m.ask()
	case "enter", "right":
		if m.view.Pool == "" && m.chosenPool() != "" {
			m.view.Pool, p.shares, p.first = m.chosenPool(), nil, 0
			return m.ask()
		}
	case "p", "r", "+", "=", "-", "_":
		m.notice, m.failed = "sluice pool pause, resume and set change a pool", true
	default:
		if m.view.Pool == "" {
			p.row = min(max(p.row+step[name], 0), max(0, len(p.list.Items)-1))
		} else if p.shares != nil {
			p.first = max(0, min(p.first+step[name], len(p.shares.Items)-1))
		}
	}
	return nil
}

// poolState names what limits the next departure of a pool, in a few cells.
func poolState(p wire.Pool) (string, lipgloss.Style) {
	row := wire.TenantLine{LimitedBy: p.LimitedBy}
	if p.InForce().Paused {
		row.LimitedBy = "paused"
	}
	if p.Oversubscribed {
		return limitText(row) + ", oversubscribed", styleBad
	}
	return limitText(row), limitStyle(row, nil)
}

// departuresText is what leaves a pool a second, "-" before it is known.
func departuresText(k *track) string {
	if p, known := k.now(); known {
		return cli.Short(p.departed)
	}
	return "-"
}

// boundedText is a figure with its bound, 0 for none.
func boundedText(n, most int64) string {
	if most == 0 || most >= shaper.MaxCapacity {
		return cli.Short(float64(n))
	}
	return cli.Short(float64(n)) + "/" + cli.Short(float64(most))
}

// cell is a column of the tables of pools and flows.
type cell struct {
	title  string
	cells  int
	toLeft bool
	least  int // minimum width of the screen
}

// line lays out texts in the columns that fit. The first takes the remaining width.
func (m *topModel) line(columns []cell, texts []string) string {
	name := m.width - 2
	for _, c := range columns[1:] {
		if m.width >= c.least {
			name -= c.cells + 1
		}
	}
	line := left(texts[0], max(8, min(name, 40)))
	for i, c := range columns[1:] {
		switch {
		case m.width < c.least:
		case c.toLeft:
			line += " " + left(texts[i+1], c.cells)
		default:
			line += " " + right(texts[i+1], c.cells)
		}
	}
	return line
}

func titles(columns []cell) []string {
	texts := make([]string, len(columns))
	for i, c := range columns {
		texts[i] = c.title
	}
	return texts
}

var poolColumns = []cell{
	{title: "POOL"}, {title: "RATE", cells: 8}, {title: "OUT/S", cells: 6},
	{title: "USED", cells: 8, toLeft: true, least: 72}, {title: "DEPTH", cells: 11},
	{title: "RUN", cells: 9, least: 90}, {title: "FLOWS", cells: 6, least: 72},
	{title: "BY", cells: 20, toLeft: true, least: 56},
}

// poolTable returns the table of pools.
func (m *topModel) poolTable() []string {
	lines := []string{styleHead.Render(left("  "+m.line(poolColumns, titles(poolColumns)), m.width))}
	if len(m.pools.list.Items) == 0 {
		return append(lines, "", "  the configuration declares no pools")
	}
	rows := max(1, m.rows())
	first := max(0, m.pools.row-rows+1)
	for i := first; i < min(len(m.pools.list.Items), first+rows); i++ {
		p := m.pools.list.Items[i]
		k := m.pools.tracks[p.Pool]
		state, style := poolState(p)
		policy := p.InForce()
		used := ""
		if now, known := k.now(); known {
			used = gauge(counted(policy)(now)/policy.Strictest(), 8)
		}
		line := m.line(poolColumns, []string{cli.Plain(p.Pool), policy.Rate.String() + furtherMark(len(policy.Rates)),
			departuresText(k), used, boundedText(p.Depth, policy.Capacity), boundedText(p.Running, policy.Concurrency),
			cli.Short(float64(p.WaitingFlows)), state})
		if i == m.pools.row {
			lines = append(lines, styleRow.Render(left("> "+line, m.width)))
		} else {
			lines = append(lines, style.Render("  "+line))
		}
	}
	return lines
}

var flowColumns = []cell{
	{title: "TENANT"}, {title: "ROUTE", cells: 10, toLeft: true, least: 76}, {title: "GOT", cells: 6},
	{title: "", cells: 8, toLeft: true, least: 56}, {title: "ENTITLED", cells: 8}, {title: "", cells: 8, toLeft: true, least: 96},
	{title: "OUT/S", cells: 6, least: 84}, {title: "WEIGHT", cells: 6, least: 50}, {title: "RESERVE", cells: 8, least: 68},
	{title: "DEPTH", cells: 6, least: 44}, {title: "RUN", cells: 5, least: 104}, {title: "BY", cells: 6, toLeft: true, least: 64},
}

// poolLines returns height lines about the shown pool: its rate, and who gets which part of it.
func (m *topModel) poolLines(height int) []string {
	name := styleTitle.Render(cli.Plain(m.view.Pool))
	p, found := m.pool()
	if !found {
		return []string{"", name, "", "waiting for its figures …"}
	}
	now := wire.TenantNow{Tenant: wire.Tenant{Reason: p.Reason, Owed: p.Owed, Policy: p.Policy,
		Figures: wire.Figures{LimitedBy: p.LimitedBy, HeldUntil: p.HeldUntil, HeldBy: p.HeldBy,
			HeldStatus: p.HeldStatus}}}
	lines := []string{name + ": " + limitOf(&now)}
	if p.Oversubscribed {
		lines = append(lines, styleBad.Render(ansi.Truncate(
			"oversubscribed: the reserves of the waiting flows add up to more than the rate", m.width, "…")))
	}
	cells, policy := max(0, m.width-topLabel), p.InForce()
	lines = append(lines,
		m.joined("rate "+policy.Rate.String()+from(p.Sources["rate"]), ratesPart(policy.Rates),
			"effective "+effectiveText(policy, p.EffectiveRate), "routes "+cli.Plain(strings.Join(p.Routes, " "))),
		m.joined("depth "+boundedText(p.Depth, policy.Capacity), "running "+boundedText(p.Running, policy.Concurrency),
			cli.Plural(int(p.WaitingFlows), "waiting flow", "waiting flows"),
			"weights "+cli.Count(p.Weights), "reserves "+cli.Short(p.Reserves)+"/s"),
		left("departures", 11)+right(departuresText(m.pools.tracks[p.Pool]), 7)+"/s  "+
			styleGood.Render(spark(m.pools.tracks[p.Pool].last(cells, counted(policy)), cells, policy.Strictest())),
		styleHead.Render(left(m.line(flowColumns, titles(flowColumns)), m.width)),
	)
	shares := m.pools.shares
	switch {
	case shares == nil:
		return append(lines, "reading its flows …")
	case len(shares.Items) == 0:
		return append(lines, "no flow waits, and none has left lately")
	}
	most := 0.0
	for _, f := range shares.Items {
		most = max(most, f.Part, gotOf(f))
	}
	last := min(len(shares.Items), m.pools.first+max(1, height-len(lines)))
	for _, f := range shares.Items[min(m.pools.first, last):last] {
		lines = append(lines, m.flowLine(f, most))
	}
	return lines
}

func gotOf(f wire.PoolShare) float64 {
	if f.Got == nil {
		return 0
	}
	return *f.Got
}

// flowLine is a line of the table of flows. Its bars are parts of the largest part.
func (m *topModel) flowLine(f wire.PoolShare, most float64) string {
	reserve, out := "-", "-"
	if f.Reserve != nil {
		reserve = f.Reserve.String()
	}
	if f.Departures != nil {
		out = cli.Short(*f.Departures)
	}
	most = max(most, 1e-9)
	return m.line(flowColumns, []string{
		cli.Plain(f.Tenant), cli.Plain(f.Route), gotText(f), gauge(gotOf(f)/most, 8), percent(f.Part),
		gauge(f.Part/most, 8), out, cli.Count(f.Weight), reserve, cli.Short(float64(f.Depth)),
		cli.Short(float64(f.Running)), limitText(wire.TenantLine{LimitedBy: f.LimitedBy}),
	})
}

// percent is a part of a rate.
func percent(part float64) string { return cli.Short(100*part) + "%" }

// gotText is the part that a flow got, "-" before it is known.
func gotText(f wire.PoolShare) string {
	if f.Got == nil {
		return "-"
	}
	return percent(*f.Got)
}

// poolFigures is a pool in a sample.
type poolFigures struct {
	wire.Pool
	Departures *float64 `json:"departures_per_s,omitempty"` // absent before there are two samples
}

// poolsOf are the pools of a sample.
func (m *topModel) poolsOf() (out []poolFigures) {
	for _, p := range m.pools.list.Items {
		out = append(out, poolFigures{p, ratesOf(m.pools.tracks[p.Pool]).Departures})
	}
	return out
}

// printPoolLines writes a line of each pool or, with a chosen one, of that and each of its flows.
func printPoolLines(w io.Writer, at string, l sample) {
	for _, p := range l.Pools {
		if l.Flows != nil && l.Flows.Pool != p.Pool.Pool {
			continue
		}
		out, over, policy := "", "", p.InForce()
		if p.Departures != nil {
			out = fmt.Sprintf(" out %s/s", cli.Short(*p.Departures))
		}
		if p.Oversubscribed {
			over = " oversubscribed"
		}
		fmt.Fprintf(w, "%s pool %s: rate %s by %s%s%s depth %d/%s running %s flows %d%s%s\n", at,
			cli.Plain(p.Pool.Pool), policy.Rate, p.LimitedBy,
			heldPart(p.HeldUntil, p.HeldBy, p.HeldStatus), out, p.Depth, shaper.CapacityText(policy.Capacity),
			strings.TrimSuffix(fmt.Sprintf("%d/%d", p.Running, policy.Concurrency), "/0"), p.WaitingFlows,
			owesPart(p.Owed), over)
	}
	if l.Flows == nil {
		return
	}
	for _, f := range l.Flows.Items {
		reserve, out := "", ""
		if f.Reserve != nil {
			reserve = " reserve " + f.Reserve.String()
		}
		if f.Departures != nil {
			out = fmt.Sprintf(" out %s/s", cli.Short(*f.Departures))
		}
		fmt.Fprintf(w, "%s %s/%s: got %s entitled %s%s weight %d%s by %s depth %d running %d\n", at,
			cli.Plain(f.Tenant), cli.Plain(f.Route), gotText(f), percent(f.Part), out, f.Weight, reserve,
			f.LimitedBy, f.Depth, f.Running)
	}
}

// poolKeys are the keys at the foot of the screen of pools.
func poolKeys(view client.View) string {
	if view.Pool != "" {
		return "esc back  up down scroll  tab tenants  ? help  q quit"
	}
	return "enter flows  tab tenants  ? help  q quit"
}

// poolFoot says which flows are on the screen.
func (m *topModel) poolFoot() string {
	shares := m.pools.shares
	if m.view.Pool == "" || shares == nil || len(shares.Items) == 0 {
		return ""
	}
	text := fmt.Sprintf("%s, by weight and reserve; parts are those of the last ten seconds",
		cli.Plural(shares.Matching, "flow", "flows"))
	return styleFaint.Render(ansi.Truncate(text, m.width, "…"))
}
