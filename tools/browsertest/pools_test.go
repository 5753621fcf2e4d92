//go:build ui

package browsertest

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
)

// fill lets the tenants wait in the pool erp: heavy with weight 3, and others.
func fill(t *testing.T) {
	t.Helper()
	call(t, "PATCH", "/v1/tenants/heavy", map[string]any{"weight": 3, "rate": shaper.Rate{Limit: 40, Period: time.Second}}, nil)
	for _, name := range []string{"heavy", "lighter", hostile} {
		must(t, program.SubmitTo(t.Context(), name, "orders", 400))
	}
}

func poolNow(t *testing.T) (now wire.Pool) {
	t.Helper()
	call(t, "GET", "/v1/pools/erp", nil, &now)
	return now
}

// share is the text of a column, in the row of a tenant, as a number.
func share(tenant string, column int) string {
	return fmt.Sprintf(`parseFloat([...document.querySelectorAll(".shares tbody tr")].find((r) => r.querySelector("a")?.textContent === %s)?.cells[%d].textContent)`,
		Quote(tenant), column)
}

// tooWide names what ends to the right of the window.
const tooWide = `[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + .5 && !e.closest(".scroll"))
	.map((e) => e.tagName + "." + e.className + " " + Math.round(e.getBoundingClientRect().right) + " " + e.textContent.slice(0, 40)).join("; ")`

// The overview lists pools. The page of a pool shows which part each flow gets beside the part that
// it is entitled to. A hostile name stays text.
func TestPool(t *testing.T) {
	fill(t)
	p := open(t, 1280, 1000, "light", "#/")
	must(t, p.WaitText(".pools tbody th a", "erp"))
	must(t, p.Wait(`/^[0-9.]+\/s$/.test(document.querySelector(".pools tbody td .num").textContent)`))
	must(t, p.WaitText(".pools tbody", "40/s"))
	keep(t, p, "pools")
	must(t, p.Click(".pools tbody th a"))
	must(t, p.Wait(`document.querySelector("h1").textContent === "erp"`))
	must(t, p.WaitText(".headline .aside", "route orders, rate 40/s"))
	must(t, p.WaitText(".shares tbody th a", hostile))
	must(t, p.Wait(`document.querySelectorAll("main canvas").length === 3 && `+painted+` > 200`))
	must(t, p.Wait(share("heavy", 4)+` === 60 && `+share("lighter", 4)+` === 20`)) // entitled
	must(t, p.Wait(`Math.abs(`+share("heavy", 3)+` - 60) < 12`))                   // got
	must(t, p.Wait(`Math.abs(`+share("lighter", 3)+` - 20) < 6`))
	if n := eval[int](t, p, `document.querySelectorAll("main img").length`); n != 0 || eval[string](t, p, "document.title") != "erp · Sluice" {
		t.Errorf("%d elements were made of a name", n)
	}
	keep(t, p, "pool")
	for _, width := range []int64{360, 700} {
		q := open(t, width, 780, "dark", "#/pool/erp")
		must(t, q.WaitText(".shares tbody", "orders"))
		must(t, q.Wait(painted+` > 200`))
		if wide := eval[int](t, q, "document.documentElement.scrollWidth"); wide > int(width) {
			t.Errorf("%d px wide: the page is %d px, because of %s", width, wide, eval[string](t, q, tooWide))
		}
		keep(t, q, fmt.Sprint("pool-", width))
		q.Close()
	}
	fill(t) // what waited may have left
	must(t, p.Click(".shares tbody th a"))
	must(t, p.WaitText("h1", "heavy"))
	must(t, p.WaitText(".headline a.pill", "in the pool erp"))
	must(t, p.WaitText(".headline .pill", "in its pool")) // not at its rate: three fifths of the pool's are less
	must(t, p.Wait(`document.querySelector("section[aria-labelledby=routes-title] tbody a").textContent === "erp"`))
}

// The rate of a pool is tuned by keyboard, not over an unseen change. Pausing asks first. The
// history has both, with their reasons.
func TestPoolIsTuned(t *testing.T) {
	fill(t)
	defer call(t, "PUT", "/v1/pools/erp", map[string]any{}, nil)
	p := open(t, 1280, 900, "dark", "#/pool/erp")
	must(t, p.Wait(`document.querySelector("#rate")?.value === "40"`))
	must(t, p.Wait(`document.querySelector(".forecast").hidden`))
	eval[bool](t, p, `(document.querySelector("#rate-slider").focus(), true)`)
	must(t, p.Press(kb.ArrowRight))
	must(t, p.Wait(`document.querySelector("#rate").value === "50"`))
	call(t, "PATCH", "/v1/pools/erp", map[string]any{"concurrency": 90}, nil)
	must(t, p.WaitText(".knobs .notice", "Changed meanwhile"))
	must(t, p.Fill("#reason", "their new contract"))
	must(t, p.Press(kb.Enter))
	must(t, p.WaitText(".knobs .notice", "Somebody has changed erp"))
	must(t, p.Click(".apply .primary"))
	must(t, p.WaitText(".knobs .notice", "Applied: rate 50/s"))
	now := poolNow(t)
	queuetest.Compare(t, "the limit of the rate", now.Rate.Limit, 50)
	queuetest.Compare(t, "the concurrency", *now.Concurrency, 90)
	queuetest.Compare(t, "the reason", now.Reason, "their new contract")
	must(t, p.WaitText("section[aria-labelledby=history-title]", "their new contract"))
	press := func(button string) {
		t.Helper()
		must(t,
			p.Wait(fmt.Sprintf(`(() => { const b = [...document.querySelectorAll(".headline button")].find((b) => b.textContent.startsWith(%s) && !b.hidden && !b.disabled); b?.click(); return b; })()`, Quote(button))))
		must(t, p.WaitText("dialog h2", button+" the pool erp?"))
	}
	press("Pause")
	must(t, p.WaitText("dialog li", "of all tenants will wait"))
	must(t, p.Press(kb.Escape))
	must(t, p.Wait(`!document.querySelector("dialog")`))
	queuetest.Compare(t, "Escape has paused it", *poolNow(t).Paused, false)
	press("Pause")
	must(t, p.Fill("#ask-reason", "they are closed"))
	must(t, p.Click("dialog .primary"))
	must(t, p.WaitText(".headline .pill", "paused"))
	must(t, p.WaitText(".notice.warn", "Reason: they are closed"))
	keep(t, p, "pool-paused")
	queuetest.Compare(t, "it is paused", *poolNow(t).Paused, true)
	press("Resume")
	must(t, p.Click("dialog .primary"))
	must(t, p.Wait(`![...document.querySelectorAll(".headline .pill")].some((n) => n.textContent === "paused")`))
	must(t, p.WaitText("section[aria-labelledby=history-title]", "they are closed"))
	for _, said := range p.Complaints() {
		if !strings.Contains(said, "412") {
			t.Errorf("the browser complains: %s", said)
		}
	}
}

// Weight and reserve of a tenant in a pool are tuned where its rate is. Others do not see them.
func TestWeightAndReserve(t *testing.T) {
	const name = "weighs"
	must(t, program.SubmitTo(t.Context(), name, "orders", 300))
	defer call(t, "PUT", "/v1/tenants/"+name, map[string]any{}, nil)
	p := open(t, 1280, 900, "light", "#/tenant/"+name)
	must(t, p.WaitText(".knob small", "1 in the pool, the default"))
	must(t, p.Wait(`document.querySelector(".figures [title*='for all flows of erp']") !== null`)) // the effective rate
	must(t, p.Fill("#weight", "5"))
	must(t, p.WaitText(".forecast", "have no forecast"))
	must(t, p.Fill("#reserve", "4"))
	must(t, p.Press(kb.Enter))
	must(t, p.WaitText(".knobs .notice", "Applied: weight 5, reserve 4/s"))
	now := tenantOf(t, name)
	queuetest.Compare(t, "the weight", *now.Weight, 5)
	queuetest.Compare(t, "the reserve", *now.Reserve, shaper.Rate{Limit: 4, Period: time.Second})
	keep(t, p, "weight")
	must(t, p.Fill("#reserve", "0"))
	must(t, p.Click(".apply .primary"))
	must(t, p.WaitText(".knobs .notice", "Applied: reserve as configured"))
	if now := tenantOf(t, name); now.Reserve != nil || *now.Weight != 5 {
		t.Errorf("reserve %v, weight %d", now.Reserve, *now.Weight)
	}
	must(t, program.Submit(t.Context(), "elsewhere", 1))
	q := open(t, 1000, 800, "light", "#/tenant/elsewhere")
	must(t, q.Wait(`document.querySelector("#rate")?.value === "20" && document.querySelector("#weight").closest(".knob").hidden && document.querySelector("#reserve").closest(".knob").hidden`))
	must(t, q.Wait(`document.querySelector(".headline .pools").hidden`))
}

// Reserves above the rate are reported on both pages.
func TestOversubscribedPool(t *testing.T) {
	for _, name := range []string{"first", "second"} {
		call(t, "PATCH", "/v1/tenants/"+name, map[string]any{"rate": shaper.Rate{Limit: 30, Period: time.Second},
			"reserve": shaper.Rate{Limit: 30, Period: time.Second}}, nil)
		must(t, program.SubmitTo(t.Context(), name, "orders", 400))
		defer call(t, "PUT", "/v1/tenants/"+name, map[string]any{}, nil)
		defer call(t, "POST", "/v1/tenants/"+name+"/purge", map[string]any{"all": true}, nil)
	}
	p := open(t, 1000, 800, "light", "#/pool/erp")
	must(t, p.WaitText(".notice.bad", "add up to 60/s, more than the rate of 40/s"))
	keep(t, p, "oversubscribed")
	q := open(t, 390, 844, "light", "#/")
	must(t, q.WaitText(".pools header small", "1 pool oversubscribed"))
	must(t, q.WaitText(".pools tbody .also", "oversubscribed"))
}

// A pool that the configuration does not declare is reported as unknown, and its name stays text.
func TestUnknownPool(t *testing.T) {
	p := open(t, 800, 700, "dark", "#/pool/"+url.PathEscape(hostile))
	must(t, p.WaitText(".notice", "has no pool of this name"))
	must(t, p.Wait(`document.querySelector("h1").textContent === `+Quote(hostile)))
	for _, said := range p.Complaints() {
		if !strings.Contains(said, "404") {
			t.Errorf("the browser complains: %s", said)
		}
	}
}
