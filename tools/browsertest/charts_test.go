//go:build ui

package browsertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
)

// painted counts the pixels of the charts and buckets that are not empty, the fewest of one.
const painted = `Math.min(...[...document.querySelectorAll("main canvas")]
  .filter((c) => c.width > 0 && c.height > 0).map((c) => {
  const pixels = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
  let n = 0;
  for (let i = 3; i < pixels.length; i += 4) if (pixels[i]) n++;
  return n;
}))`

// The labels of an axis are whole, and there are two of them at least, however low the chart.
func TestAxes(t *testing.T) {
	p := open(t, 360, 780, "light", "#/")
	const plot = `(async (height, most) => {
  const { Plot, area, fromZero, timeAxis, valueAxis } = await import("/assets/chart.js");
  const { duration } = await import("/assets/format.js");
  const host = document.querySelector("main").appendChild(document.createElement("div"));
  const now = Date.now() / 1000;
  const plot = new Plot(host, {
    height, seconds: 300, series: [area("--accent", 0.1)], axes: [timeAxis(), valueAxis(duration)],
    range: fromZero(0.5), label: "",
  });
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
  const pen = document.querySelector(".basin canvas").getContext("2d");
  const ask = window.requestAnimationFrame, clear = pen.clearRect;
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
  const [into, out] = uPlot.sync("time").plots
    .filter((u) => u.root.isConnected && u.root.closest(".picture"));
  const [from, to] = into.edges, [, all, admitted] = into.data;
  let sum = 0, highest = 0;
  from.forEach((f, i) => {
    const rate = all[i] ?? admitted[i];
    sum += rate * (to[i] - f);
    highest = Math.max(highest, rate);
  });
  const [ts, rates] = out.data, left = ts.filter((_, i) => rates[i] > 0);
  return {
    sum: Math.round(sum), highest, overlap: from.some((f, i) => i > 0 && f < to[i - 1] - 0.001),
    lasted: left.length ? left.at(-1) - left[0] : 0,
  };
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
	call(t, "PATCH", "/v1/tenants/"+name, map[string]any{"rate": shaper.Rate{Limit: 10, Period: time.Second}}, nil)
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
