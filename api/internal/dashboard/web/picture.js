// The picture that explains Sluice: jagged arrivals above, the bucket beside them, the flat line of departures below. Its two lanes share one
// time axis, and each has its own scale, so that a burst does not flatten the line of departures.
import { el, text, attribute } from "./dom.js";
import { Plot, columns, area, dashed, timeAxis, valueAxis, fromZero } from "./chart.js";
import { Bucket } from "./bucket.js";
import { Lanes } from "./meter.js";
import { count, duration, figure, perSecond, timeOfDay } from "./format.js";

const seconds = 60;
const narrow = matchMedia("(max-width: 640px)");

const swatch = (name, kind = "") => {
  const node = el("span", { class: "swatch " + kind, "aria-hidden": "true" });
  node.style.setProperty("--c", `var(${name})`);
  return node;
};

export class Picture {
  // whose names the tenant for screen readers; lanes may be those of an earlier picture, which keeps its data.
  constructor({ title, note, whose, lanes = new Lanes(seconds), limit = "Rate set" }) {
    this.lanes = lanes;
    this.whose = whose;
    this.arrived = el("span", { class: "value" }, "–");
    this.refused = el("span", { class: "aside" });
    this.left = el("span", { class: "value" }, "–");
    this.pace = el("span", { class: "aside" });
    this.waiting = el("span", { class: "value" }, "–");
    this.room = el("span", { class: "aside" });
    this.hostIn = el("div", { class: "fills" });
    this.hostOut = el("div", { class: "fills" });
    this.canvas = el("canvas", { role: "img", "aria-label": `The bucket of ${whose}` });
    this.head = el("header", null, el("h2", null, title), note && el("small", null, note));
    this.node = el("section", { class: "card picture" }, this.head,
      el("div", { class: "lanes" },
        el("p", { class: "lane-head" }, el("span", { class: "name" }, swatch("--arrivals"), "Arrivals"), this.arrived, this.refused), this.hostIn,
        el("p", { class: "lane-head" }, el("span", { class: "name" }, swatch("--departures", "thin"), "Departures"), this.left, this.pace), this.hostOut),
      el("div", { class: "basin" }, el("p", { class: "lane-head" }, el("span", { class: "name" }, swatch("--water"), "Waiting"), this.waiting, this.room), el("div", null, this.canvas)));
  }

  start() {
    const size = narrow.matches ? 42 : 62;
    const say = narrow.matches ? figure : perSecond;
    this.in = new Plot(this.hostIn, {
      seconds, label: `Chart: arrivals of ${this.whose}, in the last minute`,
      series: [columns("--refused"), columns("--arrivals")], axes: [timeAxis(false), valueAxis(say, size)], range: fromZero(4), hover: (i) => { this.at = i; this.tell(); },
    });
    this.out = new Plot(this.hostOut, {
      seconds, label: `Chart: departures of ${this.whose}, each second of the last minute`,
      series: [area("--departures", 0.14, { width: 2.5 }), dashed("--edge"), dashed("--edge", { dash: [2, 4] })], axes: [timeAxis(), valueAxis(say, size)], range: fromZero(1.5),
    });
    this.bucket = new Bucket(this.canvas);
  }

  // show draws a sample: totals that only grow, and the state of the bucket {depth, rim, rate, further, closed}; rate is what departures keep to, if
  // anything, and further a stricter rate that holds as well.
  show(t, totals, state) {
    if (!this.out) this.start();
    const before = this.lanes.now;
    const seen = this.lanes.add(t, { ...totals, rate: state.rate, further: state.further });
    this.rates = this.lanes.rates();
    this.state = state;
    this.paint(t);
    const departures = this.rates.departures ?? 0;
    this.bucket.see({ depth: state.depth, rim: state.rim, departures, closed: Boolean(state.closed) }, seen, before === null ? 250 : (t - before) * 1000);
    this.tell();
  }

  paint(t) {
    const { data, edges } = this.lanes.arrivals();
    this.edges = edges;
    this.columns = data;
    this.in.draw(t, data, edges);
    this.out.draw(t, this.lanes.departures());
  }

  gap() { this.lanes.gap(); }

  tell() {
    const { state, rates } = this;
    if (!rates) return;
    const i = this.at ?? null, [xs, all, admitted] = this.columns;
    if (i !== null && i < xs.length) {
      const wide = this.edges[1][i] - this.edges[0][i];
      text(this.arrived, perSecond(all[i] ?? admitted[i]));
      text(this.refused, `at ${timeOfDay(xs[i] * 1000)}${wide > 0.75 ? ` in ${duration(wide * 1000)}` : ""}${all[i] === null ? "" : `, ${perSecond(all[i] - admitted[i])} refused`}`);
    } else {
      text(this.arrived, perSecond(rates.arrivals));
      text(this.refused, rates.rejected > 0 ? `${perSecond(rates.rejected)} refused` : "");
    }
    attribute(this.refused, "class", rates.rejected > 0 ? "aside bad" : "aside");
    text(this.left, perSecond(rates.departures));
    text(this.pace, state.pace || "");
    text(this.waiting, count(state.depth));
    text(this.room, state.room || "");
    const now = `${this.whose}: ${count(state.depth)} waiting${state.room ? " " + state.room : ""}, ${perSecond(rates.arrivals)} arrive, ${perSecond(rates.departures)} leave`;
    if (!this.saidAt || Date.now() - this.saidAt > 5000) {
      this.saidAt = Date.now();
      attribute(this.canvas, "aria-label", "The bucket of " + now);
    }
  }

  destroy() {
    this.in?.destroy();
    this.out?.destroy();
    this.bucket?.destroy();
  }
}
