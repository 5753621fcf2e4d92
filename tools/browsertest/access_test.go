//go:build ui

package browsertest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// named are the roles that need a name for screen readers.
var named = []string{
	"button", "link", "textbox", "searchbox", "spinbutton", "slider", "combobox", "radio", "checkbox",
	"image", "img", "dialog", "region", "navigation", "table",
}

// unnamed may have none: their headings precede them.
var unnamed = []string{"table"}

// Controls have names for screen readers, texts have contrast, and the focus moves forward in
// sight, in both colour schemes.
func TestAccessibility(t *testing.T) {
	must(t, program.Submit(t.Context(), "reader", 400))
	for _, view := range []struct {
		name, hash, ready string
	}{
		{"overview", "#/", `document.querySelector(".table tbody th a")`},
		{"tenant", "#/tenant/reader",
			`document.querySelector("#rate")?.value && document.querySelector("#submit-type")`},
	} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(view.name+"/"+scheme, func(t *testing.T) {
				p := open(t, 1280, 900, scheme, view.hash)
				must(t, p.Wait(view.ready))
				checkNames(t, p)
				checkContrast(t, p)
				checkFocus(t, p)
			})
		}
	}
}

// checkNames reads the tree that a screen reader gets.
func checkNames(t *testing.T, p *Page) {
	t.Helper()
	tree, err := chromedp.Call(p.Context(), accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	must(t, err)
	if _, err := chromedp.Call(p.Context(), accessibility.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, n := range tree.Nodes {
		if n.Ignored || n.Role == nil {
			continue
		}
		role, name := text(n.Role), strings.TrimSpace(text(n.Name))
		seen[role]++
		if slices.Contains(named, role) && !slices.Contains(unnamed, role) && name == "" {
			t.Errorf("%s %v has no name", role, n.BackendDOMNodeID)
		}
	}
	for _, role := range []string{"button", "link", "main", "heading", "banner", "navigation"} {
		if seen[role] == 0 {
			t.Errorf("there is no %s in %v", role, seen)
		}
	}
}

func text(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	var said string
	if json.Unmarshal([]byte(v.Value), &said) != nil {
		return ""
	}
	return said
}

// contrast lists texts whose contrast with what is behind them is below 4.5, or below 3 where they
// are large. Colours are read by painting them, so that it does not matter in which notation they
// are.
const contrast = `(() => {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    pen.clearRect(0, 0, 1, 1);
    for (const c of colours) { pen.fillStyle = c; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (rgb) => rgb.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const poor = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode());) {
    const e = n.parentElement;
    if (!n.textContent.trim() || !e.checkVisibility({ visibilityProperty: true }) || e.closest(":disabled, script, noscript, option, .visually-hidden, .skip")) continue;
    const behind = [];
    for (let a = e; a; a = a.parentElement) behind.unshift(getComputedStyle(a).backgroundColor);
    const style = getComputedStyle(e);
    const ground = paint(["white", ...behind]), ink = paint(["white", ...behind, style.color]);
    const [high, low] = [luminance(ground), luminance(ink)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const px = parseFloat(style.fontSize), large = px >= 24 || (px >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) poor.add(ratio.toFixed(2) + " " + n.textContent.trim().slice(0, 40) + " (" + style.color + " on " + ground + ")");
  }
  return [...poor];
})()`

func checkContrast(t *testing.T, p *Page) {
	t.Helper()
	for _, poor := range eval[[]string](t, p, contrast) {
		t.Errorf("too little contrast: %s", poor)
	}
}

// focused describes the focus: its number in the order of the document, what it is, and
// whether it can be seen to have it.
const focused = `(() => {
  const e = document.activeElement;
  if (!e || e === document.body || e === document.documentElement) return { at: -1, what: "", shown: true, visible: true };
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  return {
    at: [...document.querySelectorAll("*")].indexOf(e), what: e.tagName + "#" + e.id + " " + (e.getAttribute("aria-label") || e.textContent || e.name || "").trim().slice(0, 30),
    shown: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2, visible: box.width > 0 && box.height > 0 && box.top >= -1 && box.top < innerHeight,
  };
})()`

// checkFocus goes through the page by the Tab key: in the order of the document, always with a
// visible mark, and past every control.
func checkFocus(t *testing.T, p *Page) {
	t.Helper()
	type focus struct {
		At      int    `json:"at"`
		What    string `json:"what"`
		Shown   bool   `json:"shown"`
		Visible bool   `json:"visible"`
	}
	if !eval[bool](t, p, `(document.querySelector("#skip").focus(), document.activeElement.id === "skip")`) {
		t.Error("the link past the head takes no focus")
	}
	last, steps := -1, 1
	for ; steps < 400; steps++ {
		must(t, p.Press(kb.Tab))
		f := eval[focus](t, p, focused)
		if f.At < 0 { // past the end, to the browser's own controls
			break
		}
		if f.At <= last {
			t.Errorf("the focus jumps back to %s", f.What)
			break
		}
		last = f.At
		// Figures above have just changed their height; the browser keeps the focus in sight with
		// its next picture.
		if !f.Visible {
			f.Visible = p.Wait(focused+`.visible`) == nil
		}
		if !f.Shown || !f.Visible {
			t.Errorf("the focus on %s is not to be seen: %+v", f.What, f)
		}
	}
	want := eval[int](t, p,
		`[...document.querySelectorAll("a[href], button, input, select, textarea, [tabindex='0']")].filter((e) => !e.disabled && e.checkVisibility({ visibilityProperty: true })).length`)
	if steps < want*8/10 { // rows come and go meanwhile
		t.Errorf("the Tab key finds %d of %d controls", steps, want)
	}
	t.Log(fmt.Sprint(steps, " of ", want, " controls by the Tab key"))
}

// What has the focus stays in sight while figures and rows above it come and go, until the reader
// scrolls away from it.
func TestFocusStaysInSight(t *testing.T) {
	must(t, program.Submit(t.Context(), "sight", 40))
	p := open(t, 1280, 900, "light", "#/")
	must(t, p.Wait(`document.querySelector(".table tbody th a")`))
	reach := func() {
		t.Helper()
		for range 100 {
			if eval[bool](t, p, `document.activeElement.matches(".table tbody th a")`) {
				return
			}
			must(t, p.Press(kb.Tab))
		}
		t.Fatal("the Tab key does not reach the table")
	}
	grow := func(height int) {
		t.Helper()
		eval[bool](t, p, fmt.Sprintf(`new Promise((drawn) => {
  document.getElementById("view").style.paddingTop = "%dpx";
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => drawn(true))));
})`, height))
	}
	reach()
	must(t, p.Wait(focused+`.visible`))
	for _, height := range []int{1500, 0} {
		grow(height)
		must(t, p.Wait(focused+`.visible`))
	}
	// The reader goes back to where they were in the moment in which the page has moved.
	was := eval[float64](t, p, `scrollY`)
	eval[bool](t, p, fmt.Sprintf(`(addEventListener("scroll", () => {
  scrollTo(0, %f);
  window.went = true;
}, { once: true }), true)`, was))
	grow(2500)
	must(t, p.Wait(`window.went && !`+focused+`.visible`))
	for _, height := range []int{2600, 2700} {
		grow(height)
		if at := eval[float64](t, p, "scrollY"); at != was {
			t.Errorf("the page is scrolled from %.0f to %.0f px although the reader went away", was, at)
		}
	}
}
