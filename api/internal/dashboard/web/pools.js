// The table of pools in the overview.
import { el, text, attribute, keyed } from "./dom.js";
import { poolLink } from "./api.js";
import { Meter } from "./meter.js";
import { allRates, count, limitedBy, none, perSecond, plural, rateNow, short, strictest } from "./format.js";

// oversubscribed is the pill of a pool whose reserves are above its rate.
export const oversubscribed = () => el("span", { class: "pill", "data-tone": "bad", hidden: true, title: "The reserves of the flows that wait add up to more than the rate. Each gets its part in proportion, and flows without a reserve get nothing." }, "oversubscribed");

// bar shows a share from 0 to 1, in colour where it is full.
export const bar = (cls) => {
  const fill = el("i"), node = el("span", { class: "bar " + cls, "aria-hidden": "true" }, fill);
  node.show = (share, full = share >= 1) => {
    const scale = `scaleX(${Math.min(1, Math.max(0, share || 0)).toFixed(3)})`;
    if (fill.style.transform !== scale) fill.style.transform = scale;
    attribute(node, "data-full", full ? "" : null);
  };
  return node;
};

export class Pools {
  constructor() {
    this.meters = new Map();
    const head = (label, cls) => el("th", { scope: "col", class: cls }, label);
    this.body = el("tbody");
    this.said = el("small", { role: "status" });
    this.node = el("section", { class: "card pools", hidden: true, "aria-labelledby": "pools-title" },
      el("header", null, el("h2", { id: "pools-title" }, "Pools"), this.said),
      el("div", { class: "scroll low" }, el("table", { class: "rows" },
        el("thead", null, el("tr", null, head("Pool"), head("Departures"), head("Rate", "num"), head("Waiting"), head("Waiting flows", "num p2"), head("In flight", "num p2"), head("State", "p1"))), this.body)));
  }

  show({ at, items }) {
    this.node.hidden = items.length === 0;
    const t = Date.parse(at) / 1000, over = items.filter((p) => p.oversubscribed).length;
    text(this.said, over > 0 ? `${plural(over, "pool")} oversubscribed` : "");
    for (const name of this.meters.keys()) if (!items.some((p) => p.pool === name)) this.meters.delete(name);
    keyed(this.body, items, (p) => p.pool, (p) => this.row(p), (row, p) => this.fill(row, p, t));
  }

  row(p) {
    const cell = (cls) => el("td", { class: cls }), figure = () => el("span", { class: "num" });
    const c = { left: figure(), leftBar: bar("out"), rate: cell("num"), depth: figure(), depthBar: bar(""), flows: cell("num p2"), running: cell("num p2"), pill: el("span", { class: "pill" }), over: oversubscribed(), small: el("span", { class: "also p1" }) };
    const row = el("tr", null, el("th", { scope: "row", class: "name" }, el("a", { href: poolLink(p.pool), title: p.pool }, p.pool), c.small),
      el("td", null, el("div", { class: "level" }, c.left, c.leftBar)), c.rate, el("td", null, el("div", { class: "level" }, c.depth, c.depthBar)), c.flows, c.running,
      el("td", { class: "p1" }, c.pill, " ", c.over));
    row.cellsOf = c;
    return row;
  }

  fill(row, p, t) {
    const c = row.cellsOf;
    if (!this.meters.has(p.pool)) this.meters.set(p.pool, new Meter());
    const left = this.meters.get(p.pool).add(t, p.departed_total);
    text(c.left, perSecond(left ?? NaN));
    c.leftBar.show((left ?? 0) / strictest(p), false);
    text(c.rate, rateNow(p, allRates(p)));
    text(c.depth, short(p.depth));
    attribute(c.depth, "title", p.capacity < 1e9 ? `${count(p.depth)} of ${count(p.capacity)}` : `${count(p.depth)}, without a bound`);
    c.depthBar.show(p.capacity > 0 ? p.depth / p.capacity : p.depth);
    text(c.flows, count(p.waiting_flows));
    text(c.running, p.concurrency ? `${short(p.running)} of ${short(p.concurrency)}` : short(p.running));
    const { says, tone, why } = limitedBy(p);
    text(c.pill, says);
    attribute(c.pill, "title", why);
    attribute(c.pill, "data-tone", tone || null);
    c.over.hidden = !p.oversubscribed;
    text(c.small, [says === none ? "" : says, p.oversubscribed && "oversubscribed"].filter(Boolean).join(", "));
  }
}
