// The flows of a pool: which part of its rate each got, beside the part that it is entitled to.
import { el, text, attribute, keyed } from "./dom.js";
import { tenantLink } from "./api.js";
import { count, figure, limitedBy, none, perSecond, plural, policyRate, short } from "./format.js";

const scales = [1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01];

// percent is a part of the rate: 3.2 %.
const percent = (part) => (Number.isFinite(part) ? `${figure(100 * part)} %` : none);

// scaleFor is the part that fills a bar: the smallest round one above the largest part shown.
const scaleFor = (items) => {
  const largest = Math.max(0, ...items.flatMap((f) => [f.got || 0, f.part]));
  return scales.filter((s) => s >= largest).at(-1) ?? 1;
};

export class Shares {
  constructor() {
    this.body = el("tbody");
    this.said = el("small", { role: "status" });
    const head = (label, cls, title) => el("th", { scope: "col", class: cls, title }, label);
    const key = (cls, label) => el("div", null, el("span", { class: "key " + cls, "aria-hidden": "true" }), label);
    this.scale = el("small");
    this.node = el("section", { class: "card shares", "aria-labelledby": "shares-title" },
      el("header", null, el("h2", { id: "shares-title" }, "Who gets the rate"), this.said,
        el("div", { class: "keys controls" }, key("got", "got, of the last 10 s"), key("part", "entitled to"), this.scale)),
      el("div", { class: "scroll" }, el("table", { class: "rows" },
        el("thead", null, el("tr", null, head("Tenant"), head("Route", "p2"), head("Part of the rate", "bars"), head("Got", "num"),
          head("Entitled", "num", "What weight and reserve entitle the flow to while the same flows wait. 0 while it does not wait."),
          head("Departures", "num p2"), head("Weight", "num p1"), head("Reserve", "num p2"), head("Waiting", "num p1"), head("In flight", "num p3"), head("State", "p1"))), this.body)));
    this.say("Reading the flows …");
  }

  // say fills the table with a sentence.
  say(said) {
    keyed(this.body, [{ key: "\u0000" }], (i) => i.key, () => el("tr", null, el("td", { class: "nothing", colspan: 11 })), (row) => text(row.firstChild, said));
  }

  show(e) {
    text(this.said, e.matching === e.items.length ? plural(e.matching, "flow") : `${count(e.items.length)} of ${plural(e.matching, "flow")}, the largest parts`);
    if (e.items.length === 0) {
      this.say("No flow waits, and none has left lately.");
      return;
    }
    const scale = scaleFor(e.items);
    text(this.scale, scale < 1 ? `a full bar is ${percent(scale)}` : "");
    keyed(this.body, e.items, (f) => `${f.tenant}\u0000${f.route}`, (f) => this.row(f), (row, f) => this.fill(row, f, scale));
  }

  row(f) {
    const cell = (cls) => el("td", { class: cls });
    const c = { got: el("i"), part: el("b"), gotText: cell("num"), partText: cell("num"), left: cell("num p2"), weight: cell("num p1"), reserve: cell("num p2"), depth: cell("num p1"), running: cell("num p3"), pill: el("span", { class: "pill" }) };
    const row = el("tr", null,
      el("th", { scope: "row", class: "name" }, el("a", { href: tenantLink(f.tenant), title: f.tenant }, f.tenant), el("span", { class: "also p2" }, f.route)),
      el("td", { class: "p2 name", title: f.route }, f.route), el("td", { class: "bars" }, el("span", { class: "shared", "aria-hidden": "true" }, c.got, c.part)),
      c.gotText, c.partText, c.left, c.weight, c.reserve, c.depth, c.running, el("td", { class: "p1" }, c.pill));
    row.cellsOf = c;
    return row;
  }

  fill(row, f, scale) {
    const c = row.cellsOf, at = (part) => `${(100 * Math.min(1, (part || 0) / scale)).toFixed(1)}%`;
    c.got.style.width = at(f.got);
    c.part.style.left = at(f.part);
    text(c.gotText, percent(f.got));
    text(c.partText, percent(f.part));
    text(c.left, perSecond(f.departures_per_s));
    text(c.weight, f.class ? `${count(f.weight)} (${f.class})` : count(f.weight));
    attribute(c.weight, "title", f.class ? `All tenants of the tier ${f.class} have this weight together.` : null);
    text(c.reserve, f.reserve ? policyRate(f.reserve) : none);
    text(c.depth, short(f.depth));
    text(c.running, short(f.running));
    for (const [node, value] of [[c.gotText, f.got], [c.partText, f.part], [c.left, f.departures_per_s], [c.depth, f.depth], [c.running, f.running], [c.reserve, f.reserve ? 1 : 0]]) node.classList.toggle("zero", !(value > 0));
    const { says, tone, why } = limitedBy(f);
    text(c.pill, says);
    attribute(c.pill, "title", why);
    attribute(c.pill, "data-tone", tone || null);
  }
}
