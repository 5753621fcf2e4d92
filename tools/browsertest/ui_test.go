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

	"github.com/chromedp/chromedp/kb"

	"github.com/7509e464/sluice/api/client/wire"
)

var (
	program *Program
	browser *Browser
)

// pictures is where screenshots are kept, outside of version control.
const pictures = "../../build/ui"

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
	must(t, p.WaitText("[role=alert]", "not a valid token"))
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
			said+`([{ route: "stock", breaker: "open", in_flight: 1, ended: 40, failed: 39, method: "PUT", url: "https://stock.test/v2",`+
				` headers: ["X-Api-Key"], auth: ["header", "oauth2", "certificate"], token_problem: "answered 401", certificate_expires_at: "2031-05-06T07:08:09Z" },`+
				` { route: "mail", breaker: "closed", in_flight: 0, ended: 0, failed: 0 }])`)
		wanted := []string{"1 breaker not closed", "stock open 1", "39 (98 %)", "mail closed 0"}
		if width > 1000 {
			wanted = append(wanted, "PUT https://stock.test/v2 with X-Api-Key", "certificate until 2031-05-06", "no token: answered 401")
		}
		for _, want := range wanted {
			if !strings.Contains(got, want) {
				t.Errorf("%d px wide: %q is not in %q", width, want, got)
			}
		}
		eval[bool](t, p, `(document.querySelector(".routes").scrollIntoView(), true)`)
		keep(t, p, fmt.Sprint("routes-", width))
	}
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
