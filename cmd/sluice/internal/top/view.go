package top

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
)

// Colours of the 16 of every terminal, so that its theme applies. No information is in colour
// alone.
var (
	styleTitle = lipgloss.NewStyle().Bold(true)
	styleFaint = lipgloss.NewStyle().Faint(true)
	styleGood  = lipgloss.NewStyle().Foreground(lipgloss.Green)
	styleWarn  = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	styleBad   = lipgloss.NewStyle().Foreground(lipgloss.Red)
	styleIn    = lipgloss.NewStyle().Foreground(lipgloss.Cyan)
	styleHead  = lipgloss.NewStyle().Underline(true)
	styleRow   = lipgloss.NewStyle().Reverse(true)
	styleAsk   = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Yellow)
)

const (
	topFoot  = 2  // lines below the rows of the table
	topLabel = 22 // cells before the sparklines
)

// View implements tea.Model.
func (m *topModel) View() tea.View {
	v := tea.NewView(m.frame())
	v.AltScreen = true
	v.WindowTitle = "sluice top " + m.server
	return v
}

// low reports whether the screen is so low that only the table fits.
func (m *topModel) low() bool { return m.height < 14 }

// rows returns how many tenants fit on the screen.
func (m *topModel) rows() int {
	head := 7 // with the header of the table
	if m.low() {
		head = 3
	}
	return m.height - head - topFoot
}

// frame returns the screen: exactly height lines of at most width cells.
func (m *topModel) frame() string {
	foot := m.foot()
	var lines []string
	switch {
	case m.keys:
		lines = m.helpLines()
	case m.view.Tenant != "":
		lines = append(m.titleLines(), m.tenantLines(m.height-3-len(foot))...)
	case m.pools.shown && m.view.Pool != "":
		lines = append(m.titleLines(), m.poolLines(m.height-3-len(foot))...)
	default:
		lines = m.titleLines()
		if m.low() {
			lines = lines[:2]
		} else {
			lines = append(lines, m.overviewLines()...)
		}
		if m.pools.shown {
			lines = append(lines, m.poolTable()...)
		} else {
			lines = append(lines, m.tableLines()...)
		}
	}
	most := max(0, m.height-len(foot))
	for len(lines) < most {
		lines = append(lines, "")
	}
	lines = append(lines[:most], foot...)
	for i, line := range lines {
		lines[i] = strings.TrimRight(ansi.Truncate(line, m.width, ""), " ")
	}
	return strings.Join(lines[:min(len(lines), m.height)], "\n")
}

// titleLines show the server, its state and the instant of the figures.
func (m *topModel) titleLines() []string {
	at := ""
	if m.overview != nil {
		at = m.overview.At.UTC().Format("15:04:05 UTC")
	}
	title := styleTitle.Render(ansi.Truncate("sluice top  "+cli.Plain(m.server),
		max(0, m.width-len(at)-1), "…"))
	lines := []string{title + strings.Repeat(" ", max(1, m.width-ansi.StringWidth(title)-len(at))) + at}
	o := m.overview
	switch {
	case m.link.err != nil:
		why := linkText(m.link.err)
		text := "no connection; retrying: " + why
		if o != nil {
			text = "no connection; retrying; the figures are old: " + why
		}
		lines = append(lines, styleBad.Render(ansi.Truncate(text, m.width, "…")))
	case o == nil:
		lines = append(lines, "connecting …")
	default:
		tenants := cli.Count(o.Tenants) + " tenants"
		if o.Tenants == 1 {
			tenants = "1 tenant"
		}
		parts := []string{
			tenants, fmt.Sprintf("depth %s (%s)", cli.Count(o.Depth), cli.BytesText(o.Bytes)),
			cli.Count(o.Running) + " running", cli.Plural(o.Workers, "worker", "workers"),
		}
		if o.Dead != nil && *o.Dead > 0 {
			parts = append(parts, cli.Count(*o.Dead)+" dead")
		}
		for _, r := range o.Routes {
			if text := failingText(r); text != "" {
				parts = append(parts, styleBad.Render(cli.Plain(r.Route)+": "+text))
			}
			if r.Breaker != "closed" {
				parts = append(parts, styleWarn.Render("breaker of "+cli.Plain(r.Route)+" "+r.Breaker))
			}
			if r.Streams > 0 {
				parts = append(parts, "streams of "+cli.Plain(r.Route)+" "+cli.StreamsText(r))
			}
		}
		if o.Lateness != nil {
			parts = append(parts, "lateness p99 "+cli.Short(*o.Lateness)+" ms")
		}
		lines = append(lines, m.joined(parts...))
	}
	return append(lines, m.storeLine())
}

// failingPart is the part of the deliveries of a route, one in this many, that must fail to be
// shown.
const failingPart = 20

// failingText returns how the deliveries of a route fail, empty if too few do.
func failingText(r wire.RouteLine) string {
	if r.TokenProblem != "" {
		return "no token: " + cli.OneLine(r.TokenProblem)
	}
	f := r.Last
	if f == nil || r.Failed*failingPart < r.Ended {
		return ""
	}
	return fmt.Sprintf("%d of %d failed, last %s: %s", r.Failed, r.Ended, cli.Plain(f.Tenant), cli.OneLine(f.Message))
}

// linkText returns why there is no stream, without the address, which is on the screen.
func linkText(err error) string {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	return strings.TrimPrefix(cli.Plain(cli.OneLine(err.Error())), "client: ")
}

// storeLine shows the state of Redis.
func (m *topModel) storeLine() string {
	if m.overview == nil {
		return ""
	}
	s := m.overview.Store
	names := map[string]string{"redis": "redis", "private": "private redis",
		"embedded": "in memory: jobs are lost on exit"}
	name, known := names[s.Engine]
	if !known {
		name = cli.Plain(s.Engine)
	}
	if !s.OK {
		text := "store is UNREACHABLE (" + name + ")"
		if read := m.overview.FiguresAt; read != nil {
			text += ", figures of " + read.Local().Format(time.TimeOnly)
		}
		text += ": " + cli.Plain(cli.OneLine(s.Error))
		return styleBad.Render(ansi.Truncate(text, m.width, "…"))
	}
	parts := []string{strings.TrimSpace("store: " + name + " " + cli.Plain(s.Version)),
		cli.Short(s.PingMS) + " ms"}
	switch {
	case s.MaxMemory > 0:
		text := fmt.Sprintf("%s of %s", cli.BytesText(s.UsedMemory), cli.BytesText(s.MaxMemory))
		if isFull(s) {
			text = styleBad.Render(text + ": FULL")
		}
		parts = append(parts, text)
	case s.UsedMemory > 0:
		parts = append(parts, cli.BytesText(s.UsedMemory))
	}
	if s.Abandoned {
		parts = append(parts, styleBad.Render("the configuration file in force is of no running process: send one SIGHUP"))
	}
	if s.Differing > 0 {
		parts = append(parts, styleBad.Render(fmt.Sprintf("%d processes with another configuration file",
			s.Differing)))
	}
	return m.joined(parts...)
}

// overviewLines plot arrivals and departures on one scale, and refusals.
func (m *topModel) overviewLines() []string {
	cells := max(0, m.width-topLabel)
	arrived, departed := m.all.last(cells, arrivedOf), m.all.last(cells, departedOf)
	most := max(highest(arrived), highest(departed))
	line := func(label string, figure func(point) float64, most float64, style lipgloss.Style) string {
		text := "-"
		if p, known := m.all.now(); known {
			text = cli.Short(figure(p))
		}
		return left(label, 11) + right(text, 7) + "/s  " + style.Render(spark(m.all.last(cells, figure),
			cells, most))
	}
	refused := highest(m.all.last(cells, refusedOf))
	return []string{
		line("arrivals", arrivedOf, most, styleIn),
		line("departures", departedOf, most, styleGood),
		line("refused", refusedOf, max(most, refused), styleBad),
	}
}

func highest(values []float64) float64 {
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	return most
}

// column is a column of the table.
type column struct {
	title  string
	cells  int
	toLeft bool
	least  int // minimum width of the screen
	text   func(wire.TenantLine, *track) string
	style  func(wire.TenantLine, *track) lipgloss.Style // nil for none
}

// allColumns is the table of columns. The width of TENANT and the text of TREND depend on the
// screen.
func allColumns() []column {
	rate := func(figure func(point) float64) func(wire.TenantLine, *track) string {
		return func(_ wire.TenantLine, k *track) string {
			if p, known := k.now(); known {
				return cli.Short(figure(p))
			}
			return "-"
		}
	}
	row := func(text func(r wire.TenantLine) string) func(wire.TenantLine, *track) string {
		return func(r wire.TenantLine, _ *track) string { return text(r) }
	}
	name := func(r wire.TenantLine) string { return cli.Plain(r.Tenant) }
	set := func(r wire.TenantLine) string { return r.Rate.String() + furtherMark(len(r.Rates)) }
	left := func(r wire.TenantLine) string { return effectiveText(policyOf(r), r.EffectiveRate) }
	fill := func(r wire.TenantLine) string { return gauge(fillOf(r), 8) }
	depth := func(r wire.TenantLine) string { return cli.Short(float64(r.Depth)) }
	capacity := func(r wire.TenantLine) string { return cli.Short(float64(r.Capacity)) }
	running := func(r wire.TenantLine) string { return cli.Short(float64(r.Running)) }
	oldest := func(r wire.TenantLine) string { return oldestText(r.OldestWaitMS) }
	dead := func(r wire.TenantLine) string { return cli.Short(float64(r.DeadLetters)) }
	owes := func(r wire.TenantLine) string { return cli.Short(float64(r.Owed)) }
	return []column{
		{title: "TENANT", toLeft: true, text: row(name)},
		{title: "RATE", cells: 8, text: row(set)},
		{title: "EFF", cells: 4, least: 120, text: row(left), style: slowedStyle},
		{title: "BY", cells: 6, toLeft: true, least: 64, text: row(limitText), style: limitStyle},
		{title: "FILL", cells: 8, toLeft: true, least: 72, text: row(fill), style: fillStyle},
		{title: "DEPTH", cells: 6, text: row(depth)},
		{title: "CAP", cells: 6, least: 100, text: row(capacity)},
		{title: "RUN", cells: 5, least: 110, text: row(running)},
		{title: "IN/S", cells: 6, least: 90, text: rate(arrivedOf)},
		{title: "OUT/S", cells: 6, text: rate(departedOf)},
		{title: "REF/S", cells: 6, least: 44, text: rate(refusedOf), style: refusedStyle},
		{title: "OLDEST", cells: 6, least: 52, text: row(oldest)},
		{title: "DEAD", cells: 5, least: 96, text: row(dead), style: deadStyle},
		{title: "OWES", cells: 5, least: 130, text: row(owes)},
		{title: "TREND", cells: 8, toLeft: true, least: 80},
	}
}

// columns returns the columns that fit the screen. Names and trends share the remaining width.
func (m *topModel) columns() []column {
	var shown []column
	used := 2 // the cursor
	for _, c := range allColumns() {
		if m.width >= c.least {
			shown = append(shown, c)
			used += c.cells + 1
		}
	}
	name := max(8, m.width-used+1)
	if spare := name - 32; spare > 0 && m.width >= 80 {
		spare = min(spare, 52)
		name -= spare
		shown[len(shown)-1].cells += spare
	}
	shown[0].cells = name
	if last := &shown[len(shown)-1]; last.title == "TREND" {
		cells := last.cells
		last.text = func(_ wire.TenantLine, k *track) string {
			depths := k.last(cells, depthOf)
			return spark(depths, cells, highest(depths))
		}
	}
	return shown
}

// limitText returns what limits the next departure, in six cells.
func limitText(r wire.TenantLine) string {
	switch r.LimitedBy {
	case "concurrency":
		return "concur"
	case "upstream":
		return "upstr"
	case "workers":
		return "worker"
	}
	return r.LimitedBy
}

func oldestText(ms int64) string {
	if ms <= 0 {
		return "-"
	}
	return cli.MillisText(ms)
}

func fillOf(r wire.TenantLine) float64 {
	if r.Capacity <= 0 {
		return min(1, float64(r.Depth))
	}
	return float64(r.Depth) / float64(r.Capacity)
}

func fillStyle(r wire.TenantLine, _ *track) lipgloss.Style { return shareStyle(fillOf(r)) }

func shareStyle(share float64) lipgloss.Style {
	switch {
	case share >= 0.9:
		return styleBad
	case share >= 0.6:
		return styleWarn
	}
	return styleGood
}

func limitStyle(r wire.TenantLine, _ *track) lipgloss.Style {
	switch r.LimitedBy {
	case "paused", "held", "auth", "upstream", "late", "workers":
		return styleWarn
	case "idle":
		return styleFaint
	}
	return lipgloss.NewStyle()
}

// furtherMark marks a rate with further rates.
func furtherMark(further int) string {
	if further == 0 {
		return ""
	}
	return "+"
}

// policyOf returns the rates of a tenant in the table.
func policyOf(r wire.TenantLine) shaper.Policy {
	return shaper.Overrides{Rate: &r.Rate, Rates: &r.Rates}.Over(shaper.Policy{})
}

// effectiveText returns the effective rate in percent of the strictest rate.
func effectiveText(p shaper.Policy, perSecond float64) string {
	return fmt.Sprintf("%.0f%%", 100*effective(p, perSecond))
}

// effective returns the effective rate as a share of the strictest rate.
func effective(p shaper.Policy, perSecond float64) float64 { return perSecond / p.Strictest() }

func slowedStyle(r wire.TenantLine, _ *track) lipgloss.Style {
	if effective(policyOf(r), r.EffectiveRate) < 0.99 {
		return styleWarn
	}
	return lipgloss.NewStyle()
}

func refusedStyle(_ wire.TenantLine, k *track) lipgloss.Style {
	if p, known := k.now(); known && p.refused > 0 {
		return styleBad
	}
	return lipgloss.NewStyle()
}

func deadStyle(r wire.TenantLine, _ *track) lipgloss.Style {
	if r.DeadLetters > 0 {
		return styleBad
	}
	return lipgloss.NewStyle()
}

// tableLines returns the header and the rows that fit on the screen.
func (m *topModel) tableLines() []string {
	columns := m.columns()
	head := "  "
	for i, c := range columns {
		if i > 0 {
			head += " "
		}
		head += c.align(c.title)
	}
	lines := []string{styleHead.Render(left(head, m.width))}
	items := m.table.Items
	if len(items) == 0 {
		text := "no tenant has jobs or had jobs in the last ten minutes"
		switch {
		case m.table.At.IsZero():
			text = ""
		case m.view.Search != "":
			text = "no name of a tenant contains " + cli.Plain(m.view.Search)
		}
		return append(lines, "", "  "+text)
	}
	for i := m.first; i < min(len(items), m.first+max(1, m.rows())); i++ {
		lines = append(lines, m.rowLine(columns, items[i]))
	}
	return lines
}

func (c column) align(text string) string {
	if c.toLeft {
		return left(text, c.cells)
	}
	return right(text, c.cells)
}

func (m *topModel) rowLine(columns []column, r wire.TenantLine) string {
	k := m.tracks[r.Tenant]
	under := r.Tenant == m.chosen
	line := "  "
	if under {
		line = "> "
	}
	for i, c := range columns {
		if i > 0 {
			line += " "
		}
		text := c.align(c.text(r, k))
		if c.style != nil && !under {
			text = c.style(r, k).Render(text)
		}
		line += text
	}
	if under {
		return styleRow.Render(left(line, m.width))
	}
	return line
}

// foot returns a message or a question, and the keys.
func (m *topModel) foot() []string {
	keys := "enter chart  / search  s sort  p pause  r resume  + - rate  ? help  q quit"
	switch {
	case m.view.Tenant != "":
		keys = "esc back  p pause  r resume  + - rate  ? help  q quit"
	case m.pools.shown:
		keys = poolKeys(m.view)
	case len(m.pools.list.Items) > 0:
		keys = "enter chart  tab pools  / search  s sort  p r pause  + - rate  ? help  q quit"
	}
	if ansi.StringWidth(keys) > m.width {
		keys = "? help  q quit  enter chart  esc back  / s p r + -"
	}
	text := ""
	switch {
	case m.keys:
		return []string{"", "any key: back"}
	case m.typing:
		return []string{"search: " + cli.Plain(m.typed) + "█", "enter search  esc cancel"}
	case m.plan != nil:
		answer := "y yes  any other key cancels"
		if m.plan.action == "rate" {
			answer = "y yes  + - change the rate  any other key cancels"
		}
		var lines []string
		for line := range strings.Lines(ansi.Wordwrap(m.plan.question(), max(20, m.width), "")) {
			lines = append(lines, styleAsk.Render(strings.TrimRight(line, "\n")))
		}
		return append(lines, answer)
	case m.notice != "":
		text = ansi.Truncate(m.notice, m.width, "…")
		if m.failed {
			text = styleBad.Render(text)
		}
	case m.pools.shown:
		text = m.poolFoot()
	case m.view.Tenant == "" && len(m.table.Items) > 0:
		text = fmt.Sprintf("%d to %d of %s", m.first+1, min(len(m.table.Items), m.first+max(1, m.rows())),
			cli.Count(int64(m.table.Matching)))
		text += ", by " + strings.ReplaceAll(m.view.Sort, "_", " ")
		if m.view.Search != "" {
			text += ", with " + cli.Plain(m.view.Search) + " in the name (esc: all)"
		}
		text = styleFaint.Render(ansi.Truncate(text, m.width, "…"))
	}
	return []string{text, styleFaint.Render(ansi.Truncate(keys, m.width, "…"))}
}

func (m *topModel) helpLines() []string {
	rows := [][2]string{
		{"up down pgup pgdn", "choose a tenant"},
		{"enter, esc", "show its chart, go back"},
		{"/", "search by a part of the name"},
		{"s", "sort by depth, oldest wait, refused, dead, name"},
		{"tab", "the pools, and back; enter shows the flows of one"},
		{"p, r", "pause and resume the tenant, after a confirmation"},
		{"+ -", "raise and lower its rate, after a confirmation"},
		{"q", "quit"},
		{"", ""},
		{"RATE, EFF", "the rate, + with further rates; the effective rate in percent, lower after a hold"},
		{"BY", "what limits the next departure: rate, pool, concur(rency), upstr(eam slow), late, worker, held " +
			"(by Retry-After or the circuit breaker), paused, idle"},
		{"FILL, CAP", "the used share of the capacity; the capacity"},
		{"IN/S OUT/S REF/S", "arrivals, departures and refusals a second"},
		{"OLDEST, DEAD, OWES", "wait of the oldest job; dead letters; what it owes to pools"},
		{"GOT, ENTITLED", "parts of a pool's rate; weight and reserve entitle to it"},
		{"TREND", "depth, one column a second, each tenant on its own scale"},
		{"lateness", "the delay of departures after their planned instants"},
	}
	lines := []string{styleTitle.Render("sluice top: keys and words"), ""}
	const indent = 21
	for _, r := range rows {
		for i, line := range strings.Split(ansi.Wordwrap(r[1], max(12, m.width-indent), ""), "\n") {
			word := ""
			if i == 0 {
				word = r[0]
			}
			lines = append(lines, "  "+left(word, indent-3)+" "+line)
		}
	}
	return lines
}
