//go:build ui

package browsertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
)

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
	queuetest.Compare(t, "the rate", *now.Rate, shaper.Rate{Limit: 40, Period: time.Second})
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
	queuetest.Compare(t, "the capacity", *now.Capacity, 600)
	queuetest.Compare(t, "the concurrency", *now.Concurrency, 7)
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
	if *tenantOf(t, name).Paused {
		t.Fatal("Escape has paused it")
	}
	press("Pause", "Pause switch?")
	must(t, p.Fill("#ask-reason", "their warehouse is closed"))
	keep(t, p, "confirmation")
	confirm()
	must(t, p.WaitText(".headline .pill", "paused"))
	now := tenantOf(t, name)
	queuetest.Compare(t, "it is paused", *now.Paused, true)
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
	queuetest.Compare(t, "the tenant", queuetest.Only(tenantOf(t, name), "Draining", "Depth"),
		wire.Tenant{})
	queuetest.Compare(t, "it is paused", *tenantOf(t, name).Paused, false)
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

// Further rates are shown beside the rate, and the effective rate is compared with the strictest
// of them.
func TestFurtherRates(t *testing.T) {
	const name = "partner"
	call(t, "PATCH", "/v1/tenants/"+name, map[string]any{
		"rate":   shaper.Rate{Limit: 10, Period: time.Second},
		"rates":  []shaper.PaceJSON{{Limit: 1000, PeriodMS: 86_400_000, Burst: 1000}},
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
		map[string]any{"routes": map[string]any{"login": map[string]any{"rate": shaper.Rate{Limit: 5, Period: time.Minute}}}}, nil)
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
	// One route is paused alone.
	must(t, p.Click(`[aria-label="Pause the route default"]`))
	must(t, p.WaitText("dialog li", "Other routes go on."))
	must(t, p.Click("dialog .primary"))
	must(t, p.WaitText("#banner", "The route default of routes is paused."))
	must(t, p.WaitText("section[aria-labelledby=history-title] tbody", "default: paused as configured → true"))
}

// A narrow screen shows reason and actor of a change, too.
func TestHistoryOnAPhone(t *testing.T) {
	const name = "history"
	call(t, "PATCH", "/v1/tenants/"+name, map[string]any{
		"rate": shaper.Rate{Limit: 3, Period: time.Second}, "reason": "their warehouse is slow",
	}, nil)
	for _, width := range []int64{360, 700, 1280} {
		p := open(t, width, 780, "light", "#/tenant/"+name)
		must(t, p.WaitText("section[aria-labelledby=history-title] tbody", "their warehouse is slow"))
		said := eval[string](t, p,
			`document.querySelector("section[aria-labelledby=history-title] tbody").innerText`)
		if strings.Count(said, "their warehouse is slow") != 1 || strings.Count(said, "admin from") != 1 {
			t.Errorf("%d px wide: %s", width, said)
		}
		eval[bool](t, p,
			`(document.querySelector("section[aria-labelledby=history-title]").scrollIntoView(), true)`)
		keep(t, p, fmt.Sprint("history-", width))
	}
}
