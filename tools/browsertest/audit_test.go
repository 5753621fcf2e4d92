//go:build ui

package browsertest

import (
	"net/url"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// The audit shows who changed what, is searched by its fields, and leaves a hostile name as text.
func TestAudit(t *testing.T) {
	path := "/v1/tenants/" + url.PathEscape(hostile)
	call(t, "PATCH", path, map[string]any{"capacity": 4001}, nil)
	call(t, "PATCH", path, map[string]any{"capacity": 4002, "reason": "<b>why</b>"}, nil)
	p := open(t, 1280, 860, "light", "#/")
	must(t, p.Click("#nav-audit"))
	must(t, p.WaitText("h1", "Audit"))
	must(t, p.WaitText("tbody", "tenant.patch"))
	must(t, p.Fill("#audit-subject", hostile))
	must(t, p.Wait(`document.querySelectorAll("tbody tr").length === 2`))
	must(t, p.WaitText("tbody", "capacity 4,001 → 4,002"))
	must(t, p.WaitText("tbody", "<b>why</b>"))
	if n := eval[int](t, p, `document.querySelectorAll("main img, main b").length`); n != 0 {
		t.Errorf("%d elements were made of texts", n)
	}
	keep(t, p, "audit")
	must(t, p.Fill("#audit-actor", "nobody"))
	must(t, p.WaitText("tbody", "There are no such entries"))
	must(t, p.Fill("#audit-actor", kb.Delete))
}
