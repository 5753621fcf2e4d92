//go:build ui

package browsertest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/7509e464/sluice/internal/queuetest"
)

// Every view has the same number of dead letters. Each shows why it died, and is replayed alone or
// with the others.
func TestDeadLetters(t *testing.T) {
	const name = "letters"
	program.Fail(name)
	defer program.Fail("")
	must(t, program.Submit(t.Context(), name, 3))
	p := open(t, 1280, 900, "light", "#/tenant/"+name)
	must(t, p.Click(`button[data-state="dead"]`))
	must(t,
		p.Wait(`[...document.querySelectorAll("section[aria-labelledby=jobs-title] tbody .pill")].filter((n) => n.textContent === "dead").length === 3`))
	must(t, p.WaitText("section[aria-labelledby=jobs-title] tbody", "400"))
	program.Fail("")
	checkDead(t, p, name, 3, 3)
	// The list is searched by the text of the last error.
	must(t, p.Fill("#jobs-error", "no such text"))
	must(t, p.WaitText("section[aria-labelledby=jobs-title] tbody", "No job of this list has this text in its last error"))
	must(t, p.Fill("#jobs-error", "ANSWERED 400"))
	must(t, p.Wait(`document.querySelectorAll("section[aria-labelledby=jobs-title] tbody tr").length === 3`))
	must(t, p.Fill("#jobs-error", kb.Delete))
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

// A failing route says why on the overview, and leads to the job; a job is found by its id.
func TestFailuresLeadToTheJob(t *testing.T) {
	const name = "failing"
	program.Fail(name)
	defer program.Fail("")
	must(t, program.Submit(t.Context(), name, 1))
	p := open(t, 1280, 900, "light", "#/")
	must(t, p.WaitText(".routes tbody", "400"))
	must(t, p.WaitText(".routes tbody", name))
	must(t, p.Click(".routes tbody td a"))
	must(t, p.WaitText(".timeline li", "Dead: the upstream answered 400, which is not retried"))
	id := eval[string](t, p, `document.querySelector("h1").textContent`)
	must(t, p.Click("#nav-overview"))
	must(t, p.WaitText(".routes tbody", name))
	must(t, p.Fill("#tenant-search", id))
	must(t, p.Wait(`location.hash.endsWith(`+Quote("/tenant/"+name+"/job/"+id)+`)`))
	must(t, p.WaitText("h1", id))
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

// A payload is shown as it was written, and sent as it was typed: no number is rounded, no member
// left out.
func TestPayloadsAsWritten(t *testing.T) {
	const name = "exact"
	const payload = `{"order":9007199254740993,"ref":12345678901234567890,"price":1.10,"big":1E400,"a":1,"a":[{}, "}\""]}`
	call(t, "POST", "/v1/tenants/"+name+"/pause?create=true", nil, nil)
	p := open(t, 1000, 900, "light", "#/tenant/"+name)
	must(t, p.Wait(`document.querySelector("#submit-payload")`))
	eval[bool](t, p, `(document.querySelector("#submit-payload").value = `+Quote(payload)+`, true)`)
	must(t, p.Click("section[aria-labelledby=submit-title] .primary"))
	must(t, p.WaitText("section[aria-labelledby=submit-title] [role=status]", "1 job admitted"))
	must(t, p.Click(`section[aria-labelledby=jobs-title] tbody a`))
	must(t, p.WaitText("pre.payload", "{\n  \"order\": 9007199254740993,\n  \"ref\": 12345678901234567890,\n"+
		"  \"price\": 1.10,\n  \"big\": 1E400,\n  \"a\": 1,\n  \"a\": [\n    {},\n    \"}\\\"\"\n  ]\n}"))
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
	} {
		must(t, p.WaitText("pre[aria-label=Request]", want))
	}
	if strings.Contains(eval[string](t, p, "document.body.textContent"), "caf\u00e9") {
		t.Error("the page shows the body before the operator asks for it")
	}
	must(t, p.Click("button.show-body"))
	must(t, p.WaitText("pre[aria-label=Request]", `{"name":"caf\u00e9"}`))
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
	program.Fail(name)
	defer program.Fail("")
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
