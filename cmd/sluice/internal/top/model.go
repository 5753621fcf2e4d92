package top

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
)

// topReason is the reason of every change of top.
const topReason = "sluice top"

// topSorts are the orders of the table, with the names of the API.
var topSorts = []string{"depth", "oldest_wait", "refused", "dead", "name"}

// topRows is the number of requested tenants.
const topRows = 200

// topPorts are the effects of the live view.
type topPorts struct {
	view   func(client.View)                                  // requests another view; returns at once
	change func(context.Context, change) (wire.Tenant, error) // of a tenant
}

// change is a change of a tenant, before its confirmation.
type change struct {
	tenant string
	action string // pause, resume or rate
	rate   shaper.Rate
	before shaper.Rate
	depth  int64
	varied bool // other rates apply too, so the rate alone does not determine the time to drain
}

// changedNews is the outcome of a change.
type changedNews struct {
	change
	after wire.Tenant
	err   error
}

// topModel is the state of the live view, changed by messages. Its effects are commands that use
// its ports.
type topModel struct {
	ctx    context.Context
	server string
	ports  topPorts

	width, height int
	view          client.View
	link          linkNews
	overview      *wire.Overview
	all           track
	table         wire.TenantLines
	tracks        map[string]*track // of recently received tenants
	chosen        string            // tenant under the cursor
	row           int               // its last row
	first         int               // first row of the screen
	pools         poolScreen
	tenant        *wire.TenantNow // of view.Tenant, once received
	figures       track           // of view.Tenant
	typing        bool            // the user types a search
	typed         string
	plan          *change
	notice        string
	failed        bool // the notice is of a failure
	keys          bool // the help is shown
}

func newTopModel(ctx context.Context, server string, view client.View, ports topPorts) *topModel {
	return &topModel{
		ctx: ctx, server: server, ports: ports, view: view, width: 80, height: 24,
		tracks: map[string]*track{}, chosen: view.Tenant, pools: poolScreen{shown: view.Pool != ""},
	}
}

// Init implements tea.Model.
func (m *topModel) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case linkNews:
		m.link = msg
	case historyNews: // figures from before the connection
		for _, o := range msg.Overviews {
			if o.At.After(m.all.at) {
				m.all.see(o.At, totals{admitted: o.Admitted, rejected: o.Rejected, departed: o.Departed}, o.Depth)
			}
		}
	case overviewNews:
		o := wire.Overview(msg)
		m.overview = &o
		m.all.see(o.At, totals{admitted: o.Admitted, rejected: o.Rejected, departed: o.Departed}, o.Depth)
	case tenantsNews:
		m.seeTenants(wire.TenantLines(msg))
	case tenantNews:
		if msg.Tenant.Tenant == m.view.Tenant { // figures of the previous view may still arrive
			t := wire.TenantNow(msg)
			m.tenant = &t
			m.figures.see(t.At, totals{admitted: t.Admitted, rejected: t.Rejected, departed: t.Departed}, t.Depth)
		}
	case poolsNews:
		m.seePools(wire.PoolLines(msg))
	case sharesNews:
		if msg.Pool == m.view.Pool {
			shares := wire.PoolShares(msg)
			m.pools.shares = &shares
		}
	case changedNews:
		m.showOutcome(msg)
	case tea.PasteMsg:
		if m.typing {
			m.typed = searchText(m.typed + cli.OneLine(msg.Content))
		}
	case tea.KeyPressMsg:
		return m, m.press(msg)
	}
	return m, nil
}

func (m *topModel) seeTenants(t wire.TenantLines) {
	m.table = t
	for _, row := range t.Items {
		if m.tracks[row.Tenant] == nil {
			m.tracks[row.Tenant] = &track{}
		}
		m.tracks[row.Tenant].see(t.At, totals{admitted: row.Admitted, rejected: row.Rejected, departed: row.Departed}, row.Depth)
	}
	for name, k := range m.tracks {
		if t.At.Sub(k.at) > trackGap {
			delete(m.tracks, name)
		}
	}
	// The cursor stays on its tenant when the order changes, and on its row when the tenant is
	// gone.
	if at := m.rowOf(m.chosen); at >= 0 {
		m.row = at
	} else if m.view.Tenant == "" {
		m.move(m.row)
	}
	m.scroll()
}

// rowOf returns the row of the tenant in the table, -1 if it is not there.
func (m *topModel) rowOf(tenant string) int {
	return slices.IndexFunc(m.table.Items, func(r wire.TenantLine) bool { return r.Tenant == tenant })
}

// move puts the cursor on the row, or on the nearest one.
func (m *topModel) move(row int) {
	m.row, m.chosen = 0, ""
	if n := len(m.table.Items); n > 0 {
		m.row = min(max(row, 0), n-1)
		m.chosen = m.table.Items[m.row].Tenant
	}
	m.scroll()
}

// scroll keeps the cursor on the screen.
func (m *topModel) scroll() {
	rows := max(1, m.rows())
	m.first = min(m.first, m.row, max(0, len(m.table.Items)-rows))
	m.first = max(m.first, m.row-rows+1, 0)
}

// press handles a key.
func (m *topModel) press(key tea.KeyPressMsg) tea.Cmd {
	name := key.String()
	if name == "ctrl+c" {
		return tea.Quit
	}
	switch {
	case m.typing:
		return m.edit(key)
	case m.plan != nil:
		return m.decide(name)
	case m.keys:
		m.keys = false
		return nil
	}
	m.notice = ""
	switch name {
	case "q":
		return tea.Quit
	case "?", "h":
		m.keys = true
	}
	if m.pools.shown {
		return m.pressInPools(name)
	}
	switch name {
	case "tab":
		if m.view.Tenant == "" {
			m.pools.shown = true
		}
	case "esc", "backspace", "left":
		return m.back()
	case "enter", "right":
		if m.view.Tenant == "" && m.chosen != "" {
			return m.show(m.chosen)
		}
	case "p":
		m.propose("pause")
	case "r":
		m.propose("resume")
	case "+", "=":
		m.propose("faster")
	case "-", "_":
		m.propose("slower")
	}
	if m.view.Tenant == "" {
		return m.pressInTable(name)
	}
	return nil
}

// pressInTable handles the keys of the table.
func (m *topModel) pressInTable(name string) tea.Cmd {
	switch name {
	case "up", "k":
		m.move(m.row - 1)
	case "down", "j":
		m.move(m.row + 1)
	case "pgup":
		m.move(m.row - m.rows())
	case "pgdown", "space":
		m.move(m.row + m.rows())
	case "home", "g":
		m.move(0)
	case "end", "G":
		m.move(len(m.table.Items))
	case "/":
		m.typing, m.typed = true, m.view.Search
	case "s":
		next := slices.Index(topSorts, m.view.Sort) + 1
		m.view.Sort = topSorts[next%len(topSorts)]
		m.first = 0
		return m.ask()
	}
	return nil
}

// back leaves the chart of a tenant, then the search.
func (m *topModel) back() tea.Cmd {
	switch {
	case m.view.Tenant != "":
		m.view.Tenant, m.tenant = "", nil
		if at := m.rowOf(m.chosen); at >= 0 {
			m.move(at)
		}
	case m.view.Search != "":
		m.view.Search = ""
	default:
		return nil
	}
	return m.ask()
}

// show shows one tenant. Its chart begins with the figures of the table.
func (m *topModel) show(tenant string) tea.Cmd {
	m.view.Tenant, m.tenant, m.figures = tenant, nil, track{}
	if k := m.tracks[tenant]; k != nil {
		m.figures = *k
		m.figures.points = slices.Clone(k.points)
	}
	return m.ask()
}

// ask requests the current view from the server.
func (m *topModel) ask() tea.Cmd {
	view := m.view
	return func() tea.Msg {
		m.ports.view(view)
		return nil
	}
}

// edit handles a key while the user types a search.
func (m *topModel) edit(key tea.KeyPressMsg) tea.Cmd {
	switch key.String() {
	case "enter":
		m.typing = false
		if m.typed == m.view.Search {
			return nil
		}
		m.view.Search, m.row, m.first = m.typed, 0, 0
		return m.ask()
	case "esc":
		m.typing = false
	case "backspace":
		_, size := utf8.DecodeLastRuneInString(m.typed)
		m.typed = m.typed[:len(m.typed)-size]
	case "ctrl+u":
		m.typed = ""
	default:
		m.typed = searchText(m.typed + key.Text)
	}
	return nil
}

// searchText cuts a text to the longest search.
func searchText(s string) string { return strings.ToValidUTF8(s[:min(len(s), 255)], "") }

// subject returns the tenant that a change applies to, with its last figures.
func (m *topModel) subject() (row wire.TenantLine, found bool) {
	if t := m.tenant; m.view.Tenant != "" && t != nil {
		policy := t.InForce()
		return wire.TenantLine{Tenant: t.Tenant.Tenant, Rate: policy.Rate, Rates: shaper.PacesJSON(policy.Rates),
			Depth: t.Depth, Capacity: policy.Capacity, Paused: policy.Paused}, true
	}
	name := m.chosen
	if m.view.Tenant != "" {
		name = m.view.Tenant
	}
	if at := m.rowOf(name); at >= 0 {
		return m.table.Items[at], true
	}
	return row, false
}

// routesVary reports whether a route of the shown tenant has rates of its own. The table has no
// routes.
func (m *topModel) routesVary() bool {
	if m.view.Tenant == "" || m.tenant == nil {
		return false
	}
	for _, flow := range m.tenant.Routes {
		if own := flow.InForce(); own.Rate != m.tenant.InForce().Rate || len(own.Rates) > 0 {
			return true
		}
	}
	return false
}

// propose prepares a change and asks for its confirmation.
func (m *topModel) propose(action string) {
	row, found := m.subject()
	if !found {
		m.notice, m.failed = "no tenant is chosen", true
		return
	}
	c := change{tenant: row.Tenant, action: action, rate: row.Rate, before: row.Rate, depth: row.Depth,
		varied: len(row.Rates) > 0 || m.routesVary()}
	switch action {
	case "faster":
		c.action, c.rate = "rate", faster(row.Rate)
	case "slower":
		c.action, c.rate = "rate", slower(row.Rate)
	}
	if c.action == "rate" && c.rate == c.before {
		m.notice, m.failed = "the limit of rates is "+c.rate.String(), true
		return
	}
	m.plan = &c
}

// decide handles the answer to a proposed change. + and - change a proposed rate further; any key
// but y cancels.
func (m *topModel) decide(key string) tea.Cmd {
	c := *m.plan
	switch {
	case key == "y":
		m.plan, m.notice, m.failed = nil, "changing "+cli.Plain(c.tenant)+" …", false
		return func() tea.Msg {
			after, err := m.ports.change(m.ctx, c)
			return changedNews{change: c, after: after, err: err}
		}
	case c.action == "rate" && (key == "+" || key == "="):
		c.rate = faster(c.rate)
	case c.action == "rate" && (key == "-" || key == "_"):
		c.rate = slower(c.rate)
	default:
		m.plan, m.notice, m.failed = nil, "cancelled: nothing was changed", false
		return nil
	}
	m.plan = &c
	return nil
}

// question describes the proposed change.
func (c change) question() string {
	name := cli.Plain(c.tenant)
	switch c.action {
	case "pause":
		return fmt.Sprintf("Pause %s? Its jobs stop leaving (%s wait). New jobs are admitted until the "+
			"queue is full.", name, cli.Count(c.depth))
	case "resume":
		if c.varied {
			return fmt.Sprintf("Resume %s? Its jobs (%s wait) leave at their rates. A drain ends too.", name,
				cli.Count(c.depth))
		}
		return fmt.Sprintf("Resume %s? Its jobs leave at %s: %s. A drain ends too.", name,
			c.rate.String(), drainText(c.depth, c.rate))
	}
	if c.varied {
		return fmt.Sprintf("Change the rate of %s from %s to %s? Further rates, and rates of routes, stay "+
			"as they are.", name, c.before.String(), c.rate.String())
	}
	return fmt.Sprintf("Change the rate of %s from %s to %s? Then %s.", name, c.before.String(),
		c.rate.String(), drainText(c.depth, c.rate))
}

// showOutcome shows the outcome of a change.
func (m *topModel) showOutcome(n changedNews) {
	name := cli.Plain(n.tenant)
	if m.failed = n.err != nil; m.failed {
		m.notice = fmt.Sprintf("%s was not changed: %s", name,
			strings.TrimPrefix(cli.OneLine(n.err.Error()), "client: "))
		return
	}
	switch n.action {
	case "pause":
		m.notice = name + " is paused"
	case "resume":
		m.notice = name + " is resumed"
	default:
		m.notice = fmt.Sprintf("the rate of %s is %s", name, n.after.InForce().Rate)
	}
	m.notice += fmt.Sprintf(" (revision %d)", n.after.Revision)
}

// applyChange makes a change through the admin listener.
func applyChange(remote *client.Client) func(context.Context, change) (wire.Tenant, error) {
	return func(ctx context.Context, c change) (wire.Tenant, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		switch c.action {
		case "pause":
			return remote.Pause(ctx, c.tenant, topReason)
		case "resume":
			return remote.Resume(ctx, c.tenant, topReason)
		}
		return remote.Patch(ctx, c.tenant, map[string]any{"rate": c.rate, "reason": topReason})
	}
}
