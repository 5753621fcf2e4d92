//go:build ui

package browsertest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue/queuetest"
)

var (
	program *Program
	browser *Browser
)

// pictures is where screenshots are kept, outside of version control.
const pictures = "../../../build/ui"

const hostile = `<img src=x onerror="document.title='taken'">&amp;'"`

// TestMain shares one program and one browser: each takes a second or two to start.
func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "sluice-ui-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	binary, err := Build(ctx, dir)
	if err != nil {
		return 1, err
	}
	if program, err = Start(ctx, binary, dir, "  defaults: { rate: 20/s, capacity: 500 }"); err != nil {
		return 1, err
	}
	defer func() {
		if stopped := program.Close(); err == nil {
			err = stopped
		}
	}()
	if browser, err = Open(ctx); err != nil {
		return 1, err
	}
	defer browser.Close()
	return m.Run(), nil
}

func open(t *testing.T, width, height int64, scheme, hash string) *Page {
	t.Helper()
	p, err := browser.NewPage(width, height, 1, scheme)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, said := range p.Complaints() {
			t.Errorf("the browser complains: %s", said)
		}
		p.Close()
	})
	must(t, p.SignIn(program.Admin, hash))
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eval[T any](t *testing.T, p *Page, script string) T {
	t.Helper()
	v, err := Eval[T](p, script)
	must(t, err)
	return v
}

func call(t *testing.T, method, path string, body, out any) {
	t.Helper()
	must(t, program.Call(t.Context(), method, path, body, out))
}

func tenantOf(t *testing.T, name string) (now wire.Tenant) {
	t.Helper()
	call(t, "GET", "/v1/tenants/"+url.PathEscape(name), nil, &now)
	return now
}

// keep puts what the page shows among the other pictures, for review.
func keep(t *testing.T, p *Page, name string) {
	t.Helper()
	must(t, p.Picture(filepath.Join(pictures, name+".png")))
}

// A wrong token is refused. The right one opens a session that scripts cannot read, until the
// operator signs out.
func TestSignIn(t *testing.T) {
	p, err := browser.NewPage(800, 700, 1, "light")
	must(t, err)
	defer p.Close()
	must(t, p.Go(program.Admin+"/#/tenant/acme"))
	must(t, p.WaitText("h1", "Sign in"))
	must(t, p.Fill("#token", "not the token at all"))
	must(t, p.Press(kb.Enter))
	must(t, p.WaitText("[role=alert]", "not the admin token"))
	must(t, p.Fill("#token", Token))
	must(t, p.Press(kb.Enter))
	must(t, p.Wait(`document.querySelector("#pulse")?.dataset.phase === "live"`))
	kept := eval[string](t, p,
		`document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)`)
	if strings.Contains(kept, Token) || strings.Contains(kept, "sluice_session") {
		t.Errorf("scripts can read %s", kept)
	}
	for _, said := range p.Complaints() {
		if !strings.Contains(said, "401") { // the wrong token
			t.Errorf("the browser complains: %s", said)
		}
	}
	must(t, p.Click("#logout button"))
	must(t, p.WaitText("h1", "Sign in"))
	must(t, p.Go(program.Admin+"/"))
	must(t, p.WaitText("h1", "Sign in"))
}

// painted counts the pixels of the charts and buckets that are not empty, the fewest of one.
const painted = `Math.min(...[...document.querySelectorAll("main canvas")].filter((c) => c.width > 0 && c.height > 0).map((c) => {
  const pixels = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
  let n = 0;
  for (let i = 3; i < pixels.length; i += 4) if (pixels[i]) n++;
  return n;
}))`

// The overview lists tenants, finds them by name and draws its charts. A hostile name stays text,
// and nothing is loaded from elsewhere.
func TestOverview(t *testing.T) {
	must(t, program.Submit(t.Context(), "overview", 40))
	must(t, program.Submit(t.Context(), hostile, 5))
	p := open(t, 1280, 860, "light", "#/")
	must(t, p.WaitText(".table tbody th a", "overview"))
	must(t, p.WaitText(".table tbody th a", hostile))
	must(t, p.Wait(`document.querySelectorAll("main canvas").length >= 6 && `+painted+` > 200`))
	n := eval[int](t, p, `document.querySelectorAll("main img").length`)
	if n != 0 || eval[string](t, p, "document.title") != "Sluice" {
		t.Errorf("the name of a tenant became %d elements", n)
	}
	must(t, p.Fill("#tenant-search", "overv"))
	must(t,
		p.Wait(`document.querySelectorAll(".table tbody tr").length === 1 && document.querySelector(".table tbody th a").textContent === "overview"`))
	must(t, p.Fill("#tenant-search", "nobody is called that"))
	must(t, p.WaitText("tbody", "No tenant name contains this text"))
	if paint := eval[float64](t, p,
		`performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1`); paint < 0 {
		t.Error("nothing was painted")
	} else {
		t.Logf("first contentful paint after %.0f ms", paint)
	}
	from := eval[[]string](t, p,
		`performance.getEntriesByType("resource").map((e) => e.name).filter((n) => !n.startsWith(location.origin + "/"))`)
	if len(from) > 0 {
		t.Errorf("asked elsewhere: %v", from)
	}
}

// A hostile name is a link like any other, and its page is its own.
func TestHostileTenant(t *testing.T) {
	must(t, program.Submit(t.Context(), hostile, 1))
	p := open(t, 1000, 800, "dark", "#/tenant/"+url.PathEscape(hostile))
	must(t, p.Wait(`document.querySelector("h1").textContent === `+Quote(hostile)))
	must(t, p.Wait(`document.querySelector("#rate")?.value === "20"`))
	if n := eval[int](t, p, `document.querySelectorAll("main img").length`); n != 0 {
		t.Errorf("%d elements were made of a name", n)
	}
}

// A rate that is chosen with the keyboard is forecast, applied and measured. A change that somebody
// else makes meanwhile is not overwritten unseen.
func TestRateChangeReachesTheFlow(t *testing.T) {
	const name = "slider"
	must(t, program.Submit(t.Context(), name, 450))
	p := open(t, 1280, 900, "light", "#/tenant/"+name)
	must(t, p.Wait(`document.querySelector("#rate")?.value === "20"`))
	must(t, p.Wait(painted+` > 200`))
	eval[bool](t, p, `(document.querySelector("#rate-slider").focus(), true)`)
	for range 3 { // to the next round numbers
		must(t, p.Press(kb.ArrowLeft))
	}
	must(t, p.Wait(`document.querySelector("#rate").value === "10"`))
	if said := eval[string](t, p,
		`document.querySelector("#rate-slider").getAttribute("aria-valuetext")`); said != "10 per second" {
		t.Errorf("the slider says %q", said)
	}
	must(t, p.WaitText(".forecast", "Wait, 99 %"))
	keep(t, p, "forecast")
	for range 6 {
		must(t, p.Press(kb.ArrowRight))
	}
	must(t, p.Wait(`document.querySelector("#rate").value === "40"`))
	must(t, p.Fill("#reason", "browser test"))
	must(t, p.Press(kb.Enter))
	must(t, p.WaitText(".knobs .notice", "Applied: rate 40/s"))
	now := tenantOf(t, name)
	queuetest.Compare(t, "the rate", now.Rate, wire.Rate{Limit: 40, PeriodMS: 1000})
	queuetest.Compare(t, "the reason", now.Reason, "browser test")
	queuetest.Compare(t, "the source of the rate", now.Sources["rate"], "api")
	// What leaves, by the page's own figure: a measurement over some seconds.
	must(t,
		p.Wait(`Math.abs(parseFloat([...document.querySelectorAll(".lane-head .value")][1].textContent) - 40) < 4`))
	must(t, p.WaitText("section[aria-labelledby=history-title]", "browser test"))

	// Somebody else changes it while a draft is open: nothing is overwritten unseen.
	must(t, p.Fill("#capacity", "600"))
	call(t, "PATCH", "/v1/tenants/"+name, map[string]any{"concurrency": 7}, nil)
	must(t, p.WaitText(".knobs .notice", "Changed meanwhile"))
	must(t, p.Click(".apply .primary"))
	must(t, p.WaitText(".knobs .notice", "Somebody has changed"))
	must(t, p.Click(".apply .primary"))
	must(t, p.WaitText(".knobs .notice", "Applied: capacity 600"))
	now = tenantOf(t, name)
	queuetest.Compare(t, "the capacity", now.Capacity, 600)
	queuetest.Compare(t, "the concurrency", now.Concurrency, 7)
	queuetest.Compare(t, "the limit of the rate", now.Rate.Limit, 40)
	for _, said := range p.Complaints() {
		if !strings.Contains(said, "412") {
			t.Errorf("the browser complains: %s", said)
		}
	}
}

// Each command asks before it acts, does nothing on Escape, and shows the new state.
func TestPauseResumeDrainPurge(t *testing.T) {
	const name = "switch"
	must(t, program.Submit(t.Context(), name, 300))
	p := open(t, 1100, 900, "dark", "#/tenant/"+name)
	must(t, p.WaitText(".headline .pill", "at the rate"))
	press := func(button, title string) {
		t.Helper()
		must(t,
			p.Wait(fmt.Sprintf(`(() => { const b = [...document.querySelectorAll(".headline button")].find((b) => b.textContent.startsWith(%s) && !b.hidden && !b.disabled); b?.click(); return b; })()`, Quote(button))))
		must(t, p.WaitText("dialog h2", title))
	}
	confirm := func() {
		t.Helper()
		must(t, p.Click("dialog .primary"))
		must(t, p.Wait(`!document.querySelector("dialog")`))
	}
	press("Pause", "Pause switch?")
	must(t, p.WaitText("dialog li", "jobs will wait"))
	must(t, p.Press(kb.Escape))
	must(t, p.Wait(`!document.querySelector("dialog")`))
	if tenantOf(t, name).Paused {
		t.Fatal("Escape has paused it")
	}
	press("Pause", "Pause switch?")
	must(t, p.Fill("#ask-reason", "their warehouse is closed"))
	keep(t, p, "confirmation")
	confirm()
	must(t, p.WaitText(".headline .pill", "paused"))
	now := tenantOf(t, name)
	queuetest.Compare(t, "it is paused", now.Paused, true)
	queuetest.Compare(t, "the reason", now.Reason, "their warehouse is closed")
	must(t, p.WaitText(".lane-head .value", "0/s"))
	press("Resume", "Resume switch?")
	confirm()
	must(t, p.WaitText(".headline .pill", "at the rate"))
	press("Drain", "Drain switch?")
	confirm()
	must(t, p.WaitText(".headline .pill", "draining"))
	press("Purge", "Purge switch?")
	if !eval[bool](t, p,
		`document.querySelector("dialog .primary").disabled && !document.querySelector("dialog input:checked")`) {
		t.Error("something to purge is chosen beforehand")
	}
	must(t, p.Click(`dialog input[value=""]`))
	must(t, p.WaitText("dialog .notice", "and 0 dead letters deleted. This cannot be undone."))
	confirm()
	must(t, p.WaitText("#banner", "purged"))
	must(t, p.Wait(`[...document.querySelectorAll(".lane-head .value")][2].textContent === "0"`))
	press("Resume", "Resume switch?")
	confirm()
	queuetest.Compare(t, "the tenant", queuetest.Only(tenantOf(t, name), "Draining", "Paused", "Depth"),
		wire.Tenant{})
}

// Every view has the same number of dead letters. Each shows why it died, and is replayed alone or
// with the others.
func TestDeadLetters(t *testing.T) {
	const name = "letters"
	program.Fail(true)
	defer program.Fail(false)
	must(t, program.Submit(t.Context(), name, 3))
	p := open(t, 1280, 900, "light", "#/tenant/"+name)
	must(t, p.Click(`button[data-state="dead"]`))
	must(t,
		p.Wait(`[...document.querySelectorAll("section[aria-labelledby=jobs-title] tbody .pill")].filter((n) => n.textContent === "dead").length === 3`))
	must(t, p.WaitText("section[aria-labelledby=jobs-title] tbody", "400"))
	program.Fail(false)
	checkDead(t, p, name, 3, 3)
	asks(t, p, "Purge", "Dead letters (3)")
	asksOfJobs(t, p, "Delete all", "3 dead letters will be deleted")
	// Inspect one: its payload, its error, its way.
	must(t, p.Click(`section[aria-labelledby=jobs-title] tbody a`))
	must(t, p.WaitText("pre.payload", `"order"`))
	must(t, p.WaitText(".timeline li", "Dead: the upstream answered 400, which is not retried"))
	must(t, p.WaitText(".facts", "400"))
	must(t, p.Click(`.headline button.primary`))
	must(t, p.WaitText(".headline .pill", "succeeded"))
	must(t, p.WaitText(".timeline li", "Succeeded"))
	keep(t, p, "job")
	// The other two at once, from the list.
	must(t, p.Click(`.crumb a`))
	must(t, p.Click(`button[data-state="dead"]`))
	must(t, p.Wait(`document.querySelectorAll("section[aria-labelledby=jobs-title] tbody button").length === 2`))
	must(t,
		p.Wait(`(() => { const b = [...document.querySelectorAll("section[aria-labelledby=jobs-title] header button")].find((b) => b.textContent.startsWith("Replay all") && !b.hidden); b?.click(); return b; })()`))
	must(t, p.WaitText("dialog h2", "Replay all dead letters of letters?"))
	must(t, p.WaitText("dialog li", "2 dead letters will go back"))
	must(t, p.Click("dialog .primary"))
	must(t, p.WaitText("#banner", "2 dead letters replayed"))
	must(t, p.WaitText("section[aria-labelledby=jobs-title] tbody", "No job is dead"))
	checkDead(t, p, name, 0, 3)
}

// checkDead checks the present number of dead letters.
func checkDead(t *testing.T, p *Page, name string, now, everyone int) {
	t.Helper()
	badge := ""
	if now > 0 {
		badge = fmt.Sprint(now)
	}
	must(t, p.Wait(fmt.Sprintf(`document.querySelector("button[data-state=dead] i").textContent === %q`, badge)))
	must(t, p.Wait(fmt.Sprintf(`(() => {
  const at = [...document.querySelectorAll(".figures dt")].find((n) => n.textContent === "Dead letters");
  return at?.nextSibling.textContent === "%d" && at.nextSibling.title.startsWith("%d job");
})()`, now, everyone)))
	q := open(t, 1400, 900, "light", "#/")
	find(t, q, name)
	must(t, q.Wait(fmt.Sprintf(`(() => {
  const at = [...document.querySelectorAll(".table thead th")].findIndex((n) => n.textContent === "Dead letters");
  return document.querySelector(".table tbody tr").cells[at].textContent === "%d";
})()`, now)))
	must(t, q.Wait(fmt.Sprintf(`(() => {
  const at = [...document.querySelectorAll(".figures dt")].find((n) => n.textContent === "Dead letters");
  return parseInt(at?.nextSibling.textContent) >= %d;
})()`, now)))
	keep(t, q, fmt.Sprint("dead-", now))
	q.Close()
}

// asksOfJobs opens a dialog of the list of jobs, checks its text, and cancels.
func asksOfJobs(t *testing.T, p *Page, button, want string) {
	t.Helper()
	must(t,
		p.Wait(fmt.Sprintf(`(() => { const b = [...document.querySelectorAll("section[aria-labelledby=jobs-title] header button")].find((b) => b.textContent.startsWith(%s) && !b.hidden); b?.click(); return b; })()`, Quote(button))))
	must(t, p.WaitText("dialog", want))
	must(t, p.Press(kb.Escape))
	must(t, p.Wait(`!document.querySelector("dialog")`))
}

// A hold shows its end and cause, and an operator ends it.
func TestHolds(t *testing.T) {
	const name = "held"
	program.Busy(1800)
	defer program.Busy(0)
	must(t, program.Submit(t.Context(), name, 3))
	p := open(t, 1280, 900, "dark", "#/tenant/"+name)
	must(t, p.WaitText(".headline .pill", "held until "))
	must(t, p.WaitText(".notice.warn", "the upstream answered 503 and sent Retry-After"))
	until := tenantOf(t, name).HeldUntil
	if left := time.Until(until); left < 20*time.Minute || left > 31*time.Minute {
		t.Errorf("it is held until %v, for %v", until, left)
	}
	keep(t, p, "held")
	q := open(t, 390, 844, "light", "#/")
	find(t, q, name)
	must(t, q.Wait(`document.querySelector(".table tbody .pill").title.includes("503")`))
	keep(t, q, "held-narrow")
	program.Busy(0)
	must(t,
		p.Wait(`(() => { const b = [...document.querySelectorAll(".headline button")].find((b) => b.textContent.startsWith("End the hold") && !b.hidden && !b.disabled); b?.click(); return b; })()`))
	must(t, p.WaitText("dialog li", "the upstream answered 503"))
	must(t, p.Fill("#ask-reason", "they are back"))
	keep(t, p, "unhold")
	must(t, p.Click("dialog .primary"))
	must(t, p.Wait(`!document.querySelector("dialog")`))
	must(t, p.Wait(`[...document.querySelectorAll(".lane-head .value")][2].textContent === "0"`))
	must(t,
		p.Wait(`[...document.querySelectorAll(".headline button")].find((b) => b.textContent.startsWith("End the hold")).hidden`))
	must(t, p.WaitText("section[aria-labelledby=history-title] tbody", "holds ended"))
	must(t, p.WaitText("section[aria-labelledby=history-title] tbody", "they are back"))
}

// The overview has a card of routes: breaker, deliveries under way, failures.
func TestRoutes(t *testing.T) {
	must(t, program.Submit(t.Context(), "routed", 40))
	for _, width := range []int64{390, 1280} {
		p := open(t, width, 860, "light", "#/")
		must(t,
			p.Wait(`[...document.querySelectorAll(".routes tbody tr")].some((row) => row.cells[0].textContent === "default" && row.cells[1].textContent === "closed")`))
		must(t,
			p.Wait(`[...document.querySelectorAll(".routes tbody tr")].some((row) => row.cells[0].textContent === "default" && parseInt(row.cells[3].textContent) > 0)`))
		const said = `(async (items) => {
  const { Routes } = await import("/assets/routes.js"), card = new Routes();
  card.show(items);
  document.querySelector(".routes").replaceWith(card.node);
  return card.node.innerText.replaceAll(/\s+/g, " ");
})`
		got := eval[string](t, p,
			said+`([{ route: "stock", breaker: "open", in_flight: 1, ended: 40, failed: 39 },`+
				` { route: "mail", breaker: "closed", in_flight: 0, ended: 0, failed: 0 }])`)
		for _, want := range []string{"1 breaker not closed", "stock open 1", "39 (98 %)", "mail closed 0"} {
			if !strings.Contains(got, want) {
				t.Errorf("%d px wide: %q is not in %q", width, want, got)
			}
		}
		eval[bool](t, p, `(document.querySelector(".routes").scrollIntoView(), true)`)
		keep(t, p, fmt.Sprint("routes-", width))
	}
}

// The page submits test jobs, and refuses a payload that is not JSON.
func TestSubmitting(t *testing.T) {
	p := open(t, 1000, 900, "light", "#/tenant/tries")
	must(t, p.Wait(`document.querySelector("#submit-many")`))
	must(t, p.Fill("#submit-many", "7"))
	must(t, p.Click("section[aria-labelledby=submit-title] .primary"))
	must(t, p.WaitText("section[aria-labelledby=submit-title] [role=status]", "7 jobs admitted"))
	queuetest.Compare(t, "admitted jobs", tenantOf(t, "tries").Admitted, 7)
	eval[bool](t, p, `(document.querySelector("#submit-payload").value = "{", true)`)
	must(t, p.Click("section[aria-labelledby=submit-title] .primary"))
	must(t, p.WaitText("section[aria-labelledby=submit-title] [role=status]", "not JSON"))
}

// inView reports whether the reader sees the whole of the element, with nothing above it.
func inView(selector string) string {
	return fmt.Sprintf(`(() => {
  const r = document.querySelector(%s)?.getBoundingClientRect();
  return r && r.top >= 0 && r.bottom <= innerHeight && document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2)?.closest(%[1]s);
})()`, Quote(selector))
}

// find has the table show one tenant alone.
func find(t *testing.T, p *Page, name string) {
	t.Helper()
	// Nothing moves from here on.
	must(t, p.Wait(`document.querySelector(".routes tbody tr") && document.querySelector(".table tbody a")`))
	must(t, p.Fill("#tenant-search", name))
	must(t,
		p.Wait(`[...document.querySelectorAll(".table tbody tr")].map((row) => row.querySelector("a")?.textContent).join() === `+Quote(name)))
}

// A click leads to the top of a view, where the header shows the state of the connection.
func TestAViewBeginsAtItsTop(t *testing.T) {
	must(t, program.Submit(t.Context(), "top", 40))
	for _, width := range []int64{360, 1280} {
		p := open(t, width, 780, "light", "#/")
		find(t, p, "top")
		must(t, p.Click(".table tbody th a"))
		must(t, p.WaitText("h1", "top"))
		must(t, p.Wait(`document.querySelector("#rate")?.value === "20"`)) // it is as long as it gets
		if at := eval[float64](t, p, "scrollY"); at != 0 || !eval[bool](t, p, "Boolean("+inView(".top")+")") {
			t.Errorf("%d px wide: the header is out of view, %.0f px further up", width, at)
		}
		if !eval[bool](t, p, `document.activeElement.id === "view"`) {
			t.Errorf("%d px wide: the view has not the focus", width)
		}
	}
}

// A page that loses its server says so in sight, and goes on when the server is back.
func TestReconnects(t *testing.T) {
	must(t, program.Submit(t.Context(), "restart", 400))
	p := open(t, 1000, 800, "light", "#/tenant/restart")
	must(t, p.WaitText(".headline .pill", "at the rate"))
	must(t, p.Wait(painted+` > 200`))
	eval[bool](t, p, `(scrollTo(0, 500), true)`)
	must(t, p.Wait(`scrollY > 300`))
	must(t, program.Stop())
	must(t, p.WaitText("#banner", "was lost at"))
	must(t, p.Wait(inView("#banner .notice")))
	keep(t, p, "lost")
	must(t, p.Wait(`document.querySelector("#pulse").dataset.phase === "lost"`))
	must(t, program.Run(t.Context()))
	must(t, p.WaitText("#banner", "Connected again after"))
	must(t, p.Wait(`document.querySelector("#pulse").dataset.phase === "live"`))
	before := tenantOf(t, "restart").Departed
	must(t,
		p.Wait(fmt.Sprintf(`Number(document.querySelectorAll(".figures dd")[5].textContent.replace(",", "")) > %d`, before)))
	p.Complaints() // of the time without a server
}

// Further rates are shown beside the rate, and the effective rate is compared with the strictest
// of them.
func TestFurtherRates(t *testing.T) {
	const name = "partner"
	call(t, "PATCH", "/v1/tenants/"+name, map[string]any{
		"rate":   wire.Rate{Limit: 10, PeriodMS: 1000},
		"rates":  []wire.Pace{{Rate: wire.Rate{Limit: 1000, PeriodMS: 86_400_000}, Burst: 1000}},
		"reason": "their contract",
	}, nil)
	must(t, program.Submit(t.Context(), name, 300))
	p := open(t, 1280, 900, "light", "#/")
	find(t, p, name)
	must(t, p.Wait(`document.querySelector(".table tbody td.num.p2[title]")?.textContent === "10/s +1"`))
	must(t, p.Click(".table tbody th a"))
	must(t, p.WaitText(".lane-head .aside", "rate 10/s and 1,000/d burst 1,000"))
	must(t, p.WaitText(".knob small", "and 1,000/d burst 1,000, set here"))
	must(t, p.WaitText(".figures dt", "Effective, strictest"))
	// Both of them.
	must(t,
		p.Wait(`[...document.querySelectorAll(".charted")].find((n) => n.textContent.startsWith("Effective")).textContent.split("0.0116/s").length === 3`))
	must(t,
		p.Wait(`Math.abs(parseFloat([...document.querySelectorAll(".lane-head .value")][1].textContent) - 10) < 1`))
	keep(t, p, "further-rates")
	asks(t, p, "Drain", "will leave at 10/s and 1,000/d burst 1,000.")
}

// asks opens a dialog of the tenant, checks its text, and cancels.
func asks(t *testing.T, p *Page, button, want string) {
	t.Helper()
	must(t,
		p.Wait(fmt.Sprintf(`(() => { const b = [...document.querySelectorAll(".headline button")].find((b) => b.textContent.startsWith(%s) && !b.disabled); b?.click(); return b; })()`, Quote(button))))
	if said := eval[string](t, p, `document.querySelector("dialog").innerText`); !strings.Contains(said, want) {
		t.Errorf("%q is not in %s", want, said)
	}
	must(t, p.Press(kb.Escape))
	must(t, p.Wait(`!document.querySelector("dialog")`))
}

// Dialogs predict with the rates of the routes in which jobs wait.
func TestDialogsKnowTheRoutes(t *testing.T) {
	const name = "routes"
	call(t, "PATCH", "/v1/tenants/"+name,
		map[string]any{"routes": map[string]any{"login": map[string]any{"rate": wire.Rate{Limit: 5,
			PeriodMS: 60_000}}}}, nil)
	submit := func(route string) {
		call(t, "POST", "/v1/tenants/"+name+"/jobs", map[string]any{"type": "test", "payload": 1,
			"route": route}, nil)
	}
	for range 4 {
		submit("login")
	}
	p := open(t, 1280, 900, "dark", "#/tenant/"+name)
	must(t, p.WaitText("section[aria-labelledby=routes-title] tbody", "login"))
	asks(t, p, "Drain", "will leave at 5/m.")
	call(t, "POST", "/v1/tenants/"+name+"/pause", nil, nil)
	submit("default")
	must(t,
		p.Wait(`[...document.querySelectorAll("section[aria-labelledby=routes-title] tbody tr")].filter((row) => !row.cells[2].textContent.startsWith("0")).length === 2`))
	asks(t, p, "Resume", "will leave at the rates of their routes, without a burst.")
}

// A narrow screen shows reason and actor of a change, too.
func TestHistoryOnAPhone(t *testing.T) {
	const name = "history"
	call(t, "PATCH", "/v1/tenants/"+name, map[string]any{
		"rate": wire.Rate{Limit: 3, PeriodMS: 1000}, "reason": "their warehouse is slow",
	}, nil)
	for _, width := range []int64{360, 700, 1280} {
		p := open(t, width, 780, "light", "#/tenant/"+name)
		must(t, p.WaitText("section[aria-labelledby=history-title] tbody", "their warehouse is slow"))
		said := eval[string](t, p,
			`document.querySelector("section[aria-labelledby=history-title] tbody").innerText`)
		if strings.Count(said, "their warehouse is slow") != 1 || strings.Count(said, "api from") != 1 {
			t.Errorf("%d px wide: %s", width, said)
		}
		eval[bool](t, p,
			`(document.querySelector("section[aria-labelledby=history-title]").scrollIntoView(), true)`)
		keep(t, p, fmt.Sprint("history-", width))
	}
}

// The labels of an axis are whole, and there are two of them at least, however low the chart.
func TestAxes(t *testing.T) {
	p := open(t, 360, 780, "light", "#/")
	const plot = `(async (height, most) => {
  const { Plot, area, fromZero, timeAxis, valueAxis } = await import("/assets/chart.js"), { duration } = await import("/assets/format.js");
  const host = document.querySelector("main").appendChild(document.createElement("div")), now = Date.now() / 1000;
  const plot = new Plot(host, { height, seconds: 300, series: [area("--accent", 0.1)], axes: [timeAxis(), valueAxis(duration)], range: fromZero(0.5), label: "" });
  plot.draw(now, [[now - 60, now], [most, most]]);
  await new Promise((done) => setTimeout(done, 100));
  const axis = plot.u.axes[1], said = axis._values.filter(Boolean);
  plot.u.ctx.font = axis.font[0];
  const wide = Math.max(...said.map((s) => plot.u.ctx.measureText(s).width / devicePixelRatio));
  plot.destroy();
  host.remove();
  return { said, cut: wide + axis.gap > axis._size };
})`
	type seen struct {
		Said []string
		Cut  bool
	}
	for _, c := range []struct {
		height int
		most   float64 // ms
	}{
		{170, 0.3}, {170, 59_000}, {170, 230_000}, {170, 90_000_000}, {84, 0.4}, {84, 0.5}, {84, 1.7},
		{84, 7}, {84, 19},
	} {
		got := eval[seen](t, p, fmt.Sprintf(`%s(%d, %g)`, plot, c.height, c.most))
		if got.Cut || len(got.Said) < 2 {
			t.Errorf("%d px high, up to %v ms: %+v", c.height, c.most, got)
		}
	}
}

// The page requests only frames in which it draws, because an empty frame costs about as much.
func TestEachFrameIsDrawn(t *testing.T) {
	must(t, program.Submit(t.Context(), "frames", 200))
	p := open(t, 1280, 860, "light", "#/")
	must(t, p.Wait(`document.querySelector(".table tbody th a")`))
	vain := eval[int](t, p, `new Promise((done) => {
  const pen = document.querySelector(".basin canvas").getContext("2d"), ask = window.requestAnimationFrame, clear = pen.clearRect;
  let asked = 0, drawn = 0;
  window.requestAnimationFrame = (f) => (asked++, ask.call(window, f));
  pen.clearRect = (...all) => {
    clear.apply(pen, all);
    if (++drawn === 20) done(asked - drawn);
  };
})`)
	if vain > 1 {
		t.Errorf("%d frames were asked for in vain beside 20", vain)
	}
}

// The pages of the documentation's pictures fit their windows, wide and narrow.
func TestPictures(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		program.Traffic(ctx, "acme", "default", 14, 3)
	}()
	defer func() {
		cancel()
		<-done
	}()
	p := open(t, 1280, 860, "light", "#/")
	q := open(t, 390, 844, "dark", "#/tenant/acme")
	must(t, p.Wait(`document.querySelector(".table tbody th a")`))
	deadline := time.Now().Add(12 * time.Second)
	must(t, p.Wait(fmt.Sprintf(`Date.now() > %d`, deadline.UnixMilli())))
	keep(t, p, "overview")
	keep(t, q, "tenant-narrow")
	for _, page := range []*Page{p, q} {
		wide := eval[int](t, page,
			`document.documentElement.scrollWidth - document.documentElement.clientWidth`)
		if wide > 0 {
			t.Errorf("the page is %d px wider than its window", wide)
		}
	}
}

// drawn are the arrivals that the picture has columns for, their highest rate, and how long the
// line of departures above nothing is.
const drawn = `(() => {
  const [into, out] = uPlot.sync("time").plots.filter((u) => u.root.isConnected && u.root.closest(".picture"));
  const [from, to] = into.edges, [, all, admitted] = into.data;
  let sum = 0, highest = 0;
  from.forEach((f, i) => {
    const rate = all[i] ?? admitted[i];
    sum += rate * (to[i] - f);
    highest = Math.max(highest, rate);
  });
  const [ts, rates] = out.data, left = ts.filter((_, i) => rates[i] > 0);
  return { sum: Math.round(sum), highest, overlap: from.some((f, i) => i > 0 && f < to[i - 1] - 0.001), lasted: left.length ? left.at(-1) - left[0] : 0 };
})()`

type drawing struct {
	Sum             int64
	Highest, Lasted float64
	Overlap         bool
}

// TestHistoryOfALatePage: a page that is opened late shows past arrivals and departures at their
// times, each job once. So do the pages that are opened after it, and one reached by Back.
func TestHistoryOfALatePage(t *testing.T) {
	const name = "late"
	call(t, "PATCH", "/v1/tenants/"+name, map[string]any{"rate": wire.Rate{Limit: 10, PeriodMS: 1000}}, nil)
	p := open(t, 1280, 900, "light", "#/tenant/"+name)
	must(t, program.Submit(t.Context(), name, 200))
	must(t, p.Wait(`Number(document.querySelectorAll(".figures dd")[5].textContent) >= 120`)) // have departed
	p.Close()
	q := open(t, 1280, 900, "light", "#/tenant/"+name)
	check := func(when string) {
		t.Helper()
		must(t,
			q.Wait(`uPlot.sync("time").plots.some((u) => u.root.isConnected && u.root.closest(".picture") && u.edges?.[0].length > 20)`))
		got := eval[drawing](t, q, drawn)
		if got.Sum < 196 || got.Sum > 204 {
			t.Errorf("%s it shows %d arrivals, want 196 to 204", when, got.Sum)
		}
		if got.Highest < 190 {
			t.Errorf("%s its highest rate is %v, want at least 190", when, got.Highest)
		}
		if got.Lasted < 9 {
			t.Errorf("%s the departures last %v s, want at least 9", when, got.Lasted)
		}
		queuetest.Compare(t, when+" columns overlap", got.Overlap, false)
	}
	must(t, q.WaitText("h1", name))
	check("at first")
	keep(t, q, "late")
	eval[bool](t, q, `(location.hash = "#/", true)`)
	must(t, q.Wait(`document.querySelector(".table tbody th a")`))
	began := time.Now()
	must(t, q.Wait(fmt.Sprintf(`Date.now() > %d`, began.Add(3*time.Second).UnixMilli())))
	eval[bool](t, q, `(history.back(), true)`)
	must(t, q.WaitText("h1", name))
	check("after Back")
	eval[bool](t, q, `(history.forward(), true)`)
	must(t, q.WaitText("#tenants-title", "Tenants"))
	eval[bool](t, q, `(history.back(), true)`)
	must(t, q.WaitText("h1", name))
	check("after Back again")
}

// A forwarded request and its answer are text, without credentials. What is no text has a size and
// a type.
func TestForwardedRequest(t *testing.T) {
	const name = "forwards"
	call(t, "POST", "/v1/tenants/"+name+"/pause?create=true", nil, nil)
	id, err := program.Forward(t.Context(), name, "PUT", "/orders/7?verbose=1&api_key=secret",
		`{"name":"caf\u00e9"}`, "Content-Type", "application/json", "Authorization", "Bearer secret", "X-Note", hostile)
	must(t, err)
	p := open(t, 1280, 900, "light", "#/tenant/"+name+"/job/"+id)
	for _, want := range []string{
		"PUT /orders/7?verbose=1&api_key=hidden", "Authorization: hidden", "X-Note: " + hostile,
		`{"name":"caf\u00e9"}`,
	} {
		must(t, p.WaitText("pre[aria-label=Request]", want))
	}
	must(t, p.WaitText(".facts", "PUT /orders/7"))
	keep(t, p, "forwarded-waiting")
	call(t, "POST", "/v1/tenants/"+name+"/resume", nil, nil)
	for _, want := range []string{"Content-Type: image/png", "Set-Cookie: hidden", "5 B of image/png: not text, not shown"} {
		must(t, p.WaitText("pre[aria-label='Answer of the upstream']", want))
	}
	must(t, p.WaitText(".facts", "PUT /orders/7"))
	if strings.Contains(eval[string](t, p, "document.body.textContent"), "secret") {
		t.Error("the page shows a credential")
	}
	keep(t, p, "forwarded")
	program.Fail(true)
	defer program.Fail(false)
	_, err = program.Forward(t.Context(), name, "GET", "/gone", "")
	must(t, err)
	must(t, p.Click(".crumb a"))
	must(t, p.WaitText("section[aria-labelledby=jobs-title] tbody", "GET /gone"))
	must(t, p.WaitText("section[aria-labelledby=jobs-title] tbody", "answered 400"))
	keep(t, p, "forwarded-list")
}

// A job that failed permanently is not out of attempts.
func TestWhyAJobIsDead(t *testing.T) {
	p := open(t, 1000, 800, "light", "#/")
	const said = `(async (job) => {
  const { steps } = await import("/assets/job.js");
  return steps({ state: "dead", done: true, created_at: "2000-01-01T00:00:00Z", finished_at: "2000-01-01T00:00:01Z", ...job }).at(-1).what;
})`
	for job, want := range map[string]string{
		`{ attempts: 1, max_attempts: 5, last_error: { message: "no", status: 422 } }`: "Dead: the upstream answered 422, which is not retried",
		`{ attempts: 5, max_attempts: 5, last_error: { message: "no", status: 422 } }`: "Dead: the upstream answered 422, which is not retried",
		`{ attempts: 5, max_attempts: 5, last_error: { message: "no", status: 503 } }`: "Dead: out of " +
			"attempts, after 5 attempts",
		`{ attempts: 1, max_attempts: 1, last_error: { message: "away" } }`: "Dead: out of " +
			"attempts, after 1 attempt",
		`{ attempts: 2, max_attempts: 5, last_error: { message: "skip retry" } }`: "Dead: failed with " +
			"an error that is not retried",
	} {
		if got := eval[string](t, p, said+"("+job+")"); got != want {
			t.Errorf("%s: %s, want %s", job, got, want)
		}
	}
}

// A store that loses its jobs with the process is not healthy.
func TestHealth(t *testing.T) {
	p := open(t, 1000, 800, "light", "#/")
	const said = `(async (store) => {
  const { Overview, Totals } = await import("/assets/overview.js");
  const view = new Overview({ totals: new Totals(), parameters: {}, ask() {} });
  view.showStore({ store, bytes: 0 });
  const pill = view.health.textContent + " " + view.health.dataset.tone;
  view.destroy();
  return pill;
})`
	for store, want := range map[string]string{
		`{ ok: true, engine: "redis" }`:    "healthy good",
		`{ ok: true, engine: "embedded" }`: "in memory only warn",
		`{ ok: false, engine: "redis" }`:   "unavailable bad",
	} {
		if got := eval[string](t, p, said+"("+store+")"); got != want {
			t.Errorf("%s: %s, want %s", store, got, want)
		}
	}
}
