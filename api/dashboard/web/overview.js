// The overview: all tenants together, what carries them, and the table to find one in.
import { el, text, attribute } from "./dom.js";
import { Picture } from "./picture.js";
import { ChartCard, area, line } from "./chart.js";
import { Lanes, Series } from "./meter.js";
import { TenantTable } from "./tenants.js";
import { bytes, count, duration, none, perSecond, plural, short } from "./format.js";

const engines = { redis: "Redis", private: "Redis, private to this process", embedded: "In memory: jobs are lost on exit" };

// rim is the scale of a bucket that has no capacity: a round number that what waits fits in, and not smaller than it was.
function rimFor(depth, before) {
  let rim = 100;
  while (rim < depth * 1.08) rim *= rim.toString().startsWith("2") ? 2.5 : 2;
  return Math.max(rim, before && depth > before / 8 ? before : 0);
}

// Totals keeps what was seen of all tenants, also while another view is shown.
export class Totals {
  constructor() {
    this.lanes = new Lanes();
    this.series = new Series(["depth", "running", "lateness", "refused", "ping"]);
  }

  // keep remembers what no picture has drawn.
  keep(e) { this.lanes.add(Date.parse(e.at) / 1000, totalsOf(e)); }

  chart(e) {
    const rates = this.lanes.rates();
    this.series.add(Date.parse(e.at) / 1000, { depth: e.depth, running: e.running, lateness: e.lateness_p99_ms, refused: rates.rejected, ping: e.store?.ping_ms });
  }

  gap() {
    this.lanes.gap();
    this.series.gap();
  }
}

const totalsOf = (e) => ({ admitted: e.admitted_total, rejected: e.rejected_total, departed: e.departed_total });

export class Overview {
  constructor({ totals, parameters, ask }) {
    this.title = "Overview";
    this.totals = totals;
    this.picture = new Picture({ title: "All tenants", note: "the last minute", whose: "all tenants", lanes: totals.lanes });
    this.table = new TenantTable(parameters, ask);
    this.parameters = parameters;
    const pick = (name, also) => ({ data: () => {
      const s = totals.series;
      return [s.xs, ...[name, ...(also ? [also] : [])].map((n) => s.ys[s.names.indexOf(n)])];
    } });
    this.cards = [
      new ChartCard({
        title: "Waiting", data: pick("depth", "running"), say: short, least: 4, height: 130,
        series: [{ label: "waiting", colour: "--water", draw: area("--water", 0.18) }, { label: "in flight", colour: "--violet", draw: line("--violet", { width: 1.5 }) }],
      }),
      new ChartCard({
        title: "Lateness of departures", data: pick("lateness"), say: duration, least: 1, height: 130,
        series: [{ label: "99 % left no later than", colour: "--warn", draw: area("--warn", 0.14) }],
      }),
      new ChartCard({
        title: "Refusals", data: pick("refused"), say: perSecond, least: 1, height: 130,
        series: [{ label: "refused", colour: "--refused", draw: area("--refused", 0.16) }],
      }),
    ];
    this.figures = {};
    const fact = (name, label) => el("div", null, el("dt", null, label), this.figures[name] = el("dd", null, none));
    this.store = {};
    const line2 = (name, label) => el("div", null, el("dt", null, label), this.store[name] = el("dd", null, none));
    this.health = el("span", { class: "pill" });
    this.complaint = el("p", { class: "notice bad", role: "alert", hidden: true });
    this.node = el("div", { class: "stack" },
      el("h1", { class: "visually-hidden" }, "Overview"),
      el("dl", { class: "figures", "aria-label": "Now" }, fact("arrivals", "Arrivals"), fact("departures", "Departures"), fact("refused", "Refused"), fact("depth", "Waiting"),
        fact("running", "In flight"), fact("lateness", "Lateness p99"), fact("tenants", "Tenants"), fact("workers", "Workers")),
      el("div", { class: "beside" }, this.picture.node,
        el("section", { class: "card" }, el("header", null, el("h2", null, "Redis"), this.health),
          el("div", { class: "body stack" }, this.complaint,
            el("dl", { class: "facts" }, line2("engine", "Store"), line2("ping", "Answers within"), line2("memory", "Memory"), line2("version", "Version"), line2("bytes", "Payloads that wait"), line2("totals", "Since the start"))))),
      el("div", { class: "grid" }, this.cards.map((c) => c.node)),
      this.table.node);
  }

  want() { return { ...this.parameters }; }

  on(name, e) {
    if (name === "overview") this.show(e);
    if (name === "tenants") this.table.show(e);
  }

  show(e) {
    const t = Date.parse(e.at) / 1000;
    this.rim = rimFor(e.depth, this.rim);
    this.picture.show(t, totalsOf(e), { depth: e.depth, rim: this.rim, room: e.tenants > 0 ? `in ${plural(e.tenants, "queue")}` : "" });
    this.totals.chart(e);
    for (const card of this.cards) card.draw(t);
    const f = this.figures, rates = this.totals.lanes.rates();
    text(f.arrivals, perSecond(rates.arrivals));
    text(f.departures, perSecond(rates.departures));
    text(f.refused, perSecond(rates.rejected));
    text(f.depth, short(e.depth));
    text(f.running, short(e.running));
    text(f.lateness, e.lateness_p99_ms === undefined ? none : duration(e.lateness_p99_ms));
    text(f.tenants, short(e.tenants));
    text(f.workers, count(e.workers));
    this.showStore(e);
  }

  showStore(e) {
    const s = this.store, store = e.store || {};
    text(this.health, store.ok ? "healthy" : "away");
    attribute(this.health, "data-tone", store.ok ? (store.engine === "embedded" ? "warn" : "good") : "bad");
    text(s.engine, engines[store.engine] || store.engine || none);
    text(s.ping, duration(store.ping_ms));
    text(s.memory, store.used_memory === undefined ? none : store.max_memory ? `${bytes(store.used_memory)} of ${bytes(store.max_memory)} (${Math.round(100 * store.used_memory / store.max_memory)} %)` : bytes(store.used_memory));
    text(s.version, store.version || none);
    text(s.bytes, bytes(e.bytes));
    text(s.totals, `${short(e.admitted_total)} admitted, ${short(e.rejected_total)} refused, ${short(e.departed_total)} departed`);
    this.complaint.hidden = Boolean(store.ok);
    if (!store.ok) text(this.complaint, store.error ? `Redis does not answer: ${store.error}` : "Redis does not answer.");
  }

  gap() { this.totals.gap(); }

  destroy() {
    this.picture.destroy();
    for (const card of this.cards) card.destroy();
    this.table.destroy();
  }
}
