// The overview: the sum of all tenants, the store, the pools, the routes and the table of tenants.
import { el, text, attribute } from "./dom.js";
import { Picture } from "./picture.js";
import { ChartCard, Plot, area, fromZero, line, timeAxis, valueAxis } from "./chart.js";
import { Lanes, Series, samplesOf, spansOf } from "./meter.js";
import { Pools } from "./pools.js";
import { Routes } from "./routes.js";
import { TenantTable } from "./tenants.js";
import { bytes, count, duration, none, perSecond, plural, short, timeOfDay } from "./format.js";

const engines = { redis: "Redis", private: "Redis, private to this process", embedded: "In memory: jobs are lost on exit" };

// rim is the scale of a bucket without a capacity: a round number above the depth, never smaller than before.
function rimFor(depth, before) {
  let rim = 100;
  while (rim < depth * 1.08) rim *= rim.toString().startsWith("2") ? 2.5 : 2;
  return Math.max(rim, before && depth > before / 8 ? before : 0);
}

// Totals keeps the figures of all tenants, also while another view is shown.
export class Totals {
  constructor() {
    this.lanes = new Lanes();
    this.series = new Series(["depth", "running", "lateness", "refused", "ping"]);
  }

  // keep stores figures that no picture has drawn.
  keep(e) { this.lanes.add(Date.parse(e.at) / 1000, totalsOf(e)); }

  // chart stores the data of the charts and reports whether it has changed.
  chart(e, refused = this.lanes.rates().rejected) {
    return this.series.add(Date.parse(e.at) / 1000, { depth: e.depth, running: e.running, lateness: e.lateness_p99_ms, refused, ping: (e.store || e).ping_ms });
  }

  // past adds the history of the server, without the samples already held.
  past({ overviews, arrivals }) {
    const seen = this.lanes.now ?? -Infinity, samples = samplesOf(overviews);
    this.lanes.past(samples, spansOf(arrivals));
    samples.forEach((sample, i) => {
      const before = samples[i - 1];
      if (sample.t <= seen) return;
      if (sample.gap) this.series.gap();
      this.chart(sample, before && !sample.gap ? (sample.rejected - before.rejected) / (sample.t - before.t) : null);
    });
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
    this.pools = new Pools();
    this.routes = new Routes();
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
        title: "Lateness of departures", data: pick("lateness"), say: duration, least: 1, height: 130, empty: "No job has left recently.",
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
    const storeFact = (name, label) => el("div", null, el("dt", null, label), this.store[name] = el("dd", null, none));
    this.health = el("span", { class: "pill" });
    this.complaint = el("p", { class: "notice bad", role: "alert", hidden: true });
    this.idle = el("p", { class: "notice bad", role: "alert", hidden: true }, "No worker has reported for three seconds: no job leaves.");
    this.node = el("div", { class: "stack overview" },
      el("h1", { class: "visually-hidden" }, "Overview"), this.idle,
      el("div", { class: "beside" }, this.picture.node,
        el("section", { class: "card full" }, el("header", null, el("h2", null, "Redis"), this.health),
          el("div", { class: "body stack" }, this.complaint,
            el("dl", { class: "facts narrow" }, storeFact("engine", "Store"), storeFact("version", "Version"), storeFact("memory", "Memory"), storeFact("bytes", "Waiting payloads"), storeFact("ping", "Round trip"))),
          this.pingHost = el("div", { class: "fills" }))),
      el("dl", { class: "figures nine", "aria-label": "Now" }, fact("tenants", "Tenants"), fact("workers", "Workers"), fact("running", "In flight"), fact("lateness", "Lateness, 99 %"), fact("refused", "Refused"), fact("dead", "Dead letters"),
        fact("admittedTotal", "Admitted, total"), fact("rejectedTotal", "Refused, total"), fact("departedTotal", "Departed, total")),
      el("div", { class: "grid three" }, this.cards.map((c) => c.node)),
      this.pools.node, this.routes.node, this.table.node);
  }

  want() { return { ...this.parameters }; }

  on(name, e) {
    if (name === "overview") this.show(e);
    if (name === "pools") this.pools.show(e);
    if (name === "tenants") this.table.show(e);
  }

  show(e) {
    const t = Date.parse(e.at) / 1000;
    this.rim = rimFor(e.depth, this.rim);
    this.picture.show(t, totalsOf(e), { depth: e.depth, rim: this.rim, room: e.tenants > 0 ? `in ${plural(e.tenants, "queue")}` : "" });
    const news = this.totals.chart(e) || !this.ping;
    this.ping ||= new Plot(this.pingHost, { seconds: 300, series: [area("--accent", 0.1, { width: 1.5 })], axes: [timeAxis(), valueAxis(duration)], range: fromZero(0.5), label: "Chart: round trip to Redis" });
    const series = this.totals.series;
    if (news) {
      this.ping.draw(t, [series.xs, series.ys[series.names.indexOf("ping")]]);
      for (const card of this.cards) card.draw(t);
    }
    const f = this.figures, rates = this.totals.lanes.rates();
    text(f.refused, perSecond(rates.rejected));
    text(f.admittedTotal, short(e.admitted_total));
    text(f.rejectedTotal, short(e.rejected_total));
    text(f.departedTotal, short(e.departed_total));
    text(f.running, short(e.running));
    text(f.lateness, e.lateness_p99_ms === undefined ? none : duration(e.lateness_p99_ms));
    text(f.dead, short(e.dead));
    f.dead.classList.toggle("bad", e.dead > 0);
    text(f.tenants, short(e.tenants));
    text(f.workers, count(e.workers));
    this.idle.hidden = e.workers > 0 || !e.store?.ok;
    this.routes.show(e.routes || []);
    this.showStore(e);
  }

  showStore(e) {
    const s = this.store, store = e.store || {};
    const volatile = store.engine === "embedded"; // it answers, but loses all at its end
    text(this.health, !store.ok ? "unavailable" : volatile ? "in memory only" : "healthy");
    attribute(this.health, "data-tone", !store.ok ? "bad" : volatile ? "warn" : "good");
    text(s.engine, engines[store.engine] || store.engine || none);
    text(s.ping, duration(store.ping_ms));
    text(s.memory, store.used_memory === undefined ? none : store.max_memory ? `${bytes(store.used_memory)} of ${bytes(store.max_memory)} (${Math.round(100 * store.used_memory / store.max_memory)} %)` : bytes(store.used_memory));
    text(s.version, store.version || none);
    text(s.bytes, bytes(e.bytes));
    const differ = store.differing_processes || 0;
    this.complaint.hidden = Boolean(store.ok) && differ === 0;
    if (store.ok && store.policies_abandoned) text(this.complaint, "No running process has the configuration file whose policies are in force. Send SIGHUP to a process, or restart it, to put its file into force.");
    else if (store.ok && differ > 0) text(this.complaint, `${plural(differ, "process", "processes")} with a different configuration file: its policies are not in force. Give all processes the same file.`);
    if (!store.ok) text(this.complaint, `Redis does not answer${store.error ? `: ${store.error}` : ""}. ${e.figures_at ? `The figures are of ${timeOfDay(e.figures_at)}.` : "Its figures are unknown: 0 stands for them."}`);
  }

  gap() { this.totals.gap(); }

  destroy() {
    this.picture.destroy();
    this.ping?.destroy();
    for (const card of this.cards) card.destroy();
    this.table.destroy();
  }
}
