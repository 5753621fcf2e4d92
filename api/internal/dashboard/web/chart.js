// Charts by uPlot, in the colours of the theme. What a chart shows is also said in its legend, as text.
import { el, text } from "./dom.js";
import { colour, onTheme } from "./theme.js";
import { timeOfDay } from "./format.js";

const uPlot = window.uPlot;
const leastSpan = 60; // s
const crosshair = uPlot.sync("time");

const font = () => `12px ${getComputedStyle(document.body).fontFamily}`;

// ticks are few and round.
function axis(extra) {
  return {
    stroke: () => colour("--soft"), font: font(), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, ...extra,
  };
}

const halfLabel = 32; // px

// A label that would be cut off at an edge is left out.
export const timeAxis = (show = true) => axis({
  show, size: show ? 26 : 0, gap: 6, space: 90, grid: { show: false },
  values: (u, splits) => splits.map((s) => {
    const x = u.valToPos(s, "x");
    return s === null || x < halfLabel - 50 || x > u.bbox.width / devicePixelRatio - halfLabel ? "" : timeOfDay(s * 1000);
  }),
});

const labelGap = 6, leastAxis = 54; // px

// wideEnough is the width of an axis that cuts off none of its labels, which are not known at first.
function wideEnough(u, labels, i) {
  if (!labels) return leastAxis;
  u.ctx.font = u.axes[i].font[0];
  return Math.max(leastAxis, ...labels.map((said) => Math.ceil(u.ctx.measureText(said).width / devicePixelRatio) + labelGap + 2));
}

// valueAxis is as wide as its labels need, or has the given size. Even a low chart has two labels, which show its scale.
export const valueAxis = (say, size = wideEnough) => axis({
  size, gap: labelGap, space: (u, i, low, high, px) => Math.min(34, px / 2), values: (_, splits) => splits.map((v) => (v === null ? "" : say(v))),
});

const farAbove = 100; // times the values of the first series: a bound there would make them a flat line

// fromZero leaves a margin above the highest value. least keeps small values small. A chart that is within scales by its
// first series where the others, its bounds, are far above; the legend says them.
export function fromZero(least, within = false) {
  return (u, low, high) => {
    const first = within ? u.data[1].reduce((most, y) => Math.max(most, y ?? 0), least) : Infinity;
    const top = high > farAbove * first ? first : high;
    return [0, Math.max((Number.isFinite(top) ? top : 0) * 1.12, least)];
  };
}

export const line = (name, extra = {}) => ({ stroke: () => colour(name), width: 2, points: { show: false }, spanGaps: false, ...extra });
export const area = (name, alpha, extra = {}) => line(name, { fill: () => colour(name, alpha), ...extra });
export const dashed = (name, extra = {}) => line(name, { width: 1.5, dash: [5, 5], ...extra });
const columnShare = 0.78, columnMargin = 14; // share of its time span that a column fills; margin in px

// columns are as wide as their time spans, which the plot's edges hold.
export const columns = (name) => ({
  stroke: () => colour(name), fill: () => colour(name), width: 0, points: { show: false }, paths: (u, series, first, last) => {
    const fill = new Path2D(), [from, to] = u.edges, zero = u.valToPos(0, "y", true), ys = u.data[series];
    for (let i = first; i <= last; i++) {
      if (!(ys[i] > 0)) continue;
      const left = u.valToPos(from[i], "x", true), right = u.valToPos(to[i], "x", true), top = u.valToPos(ys[i], "y", true);
      const wide = Math.max((right - left) * columnShare, right - left - columnMargin * devicePixelRatio, 1), high = Math.max(zero - top, 1);
      fill.roundRect((left + right - wide) / 2, zero - high, wide, high, [Math.min(wide / 4, high), Math.min(wide / 4, high), 0, 0]);
    }
    return { stroke: null, fill, clip: null, band: null, gaps: null, flags: 0 };
  },
});

// Plot is one chart that fills the width of its element, and without a height all of it. Destroy it when its view ends.
export class Plot {
  constructor(host, { height, seconds, series, axes, range, hover, label }) {
    this.host = host;
    this.seconds = seconds;
    this.height = height;
    host.setAttribute("role", "img");
    host.setAttribute("aria-label", label);
    const options = {
      width: Math.max(host.clientWidth, 60), height: this.tall(), padding: [8, 8, 4, 0], legend: { show: false },
      cursor: { sync: { key: crosshair.key, setSeries: false, scales: ["x", null] }, drag: { x: false, y: false }, y: false, points: { size: 7 } },
      scales: { x: { time: false, range: () => this.span() }, y: { range } },
      series: [{}, ...series], axes,
      hooks: { setCursor: [(u) => hover && hover(u.cursor.idx ?? null)] },
    };
    this.u = new uPlot(options, [[], ...series.map(() => [])], host);
    this.resize = new ResizeObserver(() => {
      if (host.clientWidth > 0 && this.tall() > 0) this.u.setSize({ width: host.clientWidth, height: this.tall() });
    });
    this.resize.observe(host);
    this.off = onTheme(() => this.u.redraw(false));
  }

  // tall is the given height, or that of an element whose size does not follow from the chart.
  tall() { return this.height || this.host.clientHeight; }

  // span is the time range shown: that of the data, at least a minute, at most the seconds.
  span() {
    const now = this.now ?? Date.now() / 1000;
    return [now - Math.min(this.seconds, Math.max(leastSpan, now - (this.since ?? now))), now];
  }

  // draw shows the data up to now, unless the page is hidden. Columns need the edges of their time spans.
  draw(now, data, edges) {
    this.now = now;
    this.u.edges = edges;
    this.since = data[0][0];
    if (!document.hidden) this.u.setData(data);
  }

  destroy() {
    this.off();
    this.resize.disconnect();
    this.u.destroy();
  }
}

// ChartCard is a card with a title, a legend that says the present values, or those under the pointer, and the chart.
export class ChartCard {
  // empty is the text while there is no data. A chart that fills is as high as the card beside it. within: see fromZero.
  constructor({ title, series, data, say, least = 1, height = 170, seconds = 300, note, empty, fill = false, within = false }) {
    this.series = series;
    this.source = data;
    this.say = say;
    this.at = null;
    this.values = series.map(() => el("dd"));
    this.when = el("div", { class: "when" });
    const legend = el("dl", { class: "legend" },
      series.map((s, i) => el("div", null, el("span", { class: "swatch " + (s.mark || "thin"), "data-c": s.colour }), el("dt", null, s.label), this.values[i])), this.when);
    for (const swatch of legend.querySelectorAll(".swatch")) swatch.style.setProperty("--c", `var(${swatch.dataset.c})`);
    const host = el("div", { class: fill ? "fills" : "chart" });
    this.nothing = empty && el("p", { class: "nothing", hidden: true }, empty);
    this.note = note !== undefined && el("small", null, note);
    this.node = el("section", { class: "card charted" + (fill ? " full" : "") }, el("header", null, el("h2", null, title), this.note), legend, host, this.nothing);
    this.start = () => {
      this.plot = new Plot(host, {
        height: fill ? undefined : height, seconds, label: `Chart: ${title}`, series: series.map((s) => s.draw), axes: [timeAxis(), valueAxis(say)], range: fromZero(least, within),
        hover: (i) => { this.at = i; this.tell(); },
      });
    };
  }

  draw(now) {
    if (!this.plot) this.start();
    const data = this.source.data();
    this.plot.draw(now, data);
    if (this.nothing) this.nothing.hidden = data.slice(1).some((ys) => ys.some((y) => y !== null));
    this.tell();
  }

  tell() {
    const [xs, ...ys] = this.source.data();
    const i = this.at !== null && this.at < xs.length ? this.at : xs.length - 1;
    this.values.forEach((node, k) => text(node, i >= 0 && ys[k][i] !== null && ys[k][i] !== undefined ? this.say(ys[k][i]) : "–"));
    text(this.when, this.at !== null && i >= 0 && i < xs.length ? timeOfDay(xs[i] * 1000) : "");
  }

  destroy() { this.plot?.destroy(); }
}
