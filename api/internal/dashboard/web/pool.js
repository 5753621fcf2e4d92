// One pool: what leaves against its rate, the knobs beside it, who gets which part of the rate, and its history.
import { el, text, attribute } from "./dom.js";
import { get, poolPath } from "./api.js";
import { ChartCard, area, dashed } from "./chart.js";
import { Lanes, Series, givenBack, samplesOf } from "./meter.js";
import { Knobs } from "./knobs.js";
import { History } from "./history.js";
import { Shares } from "./shares.js";
import { oversubscribed } from "./pools.js";
import { pausePool, resumePool, unholdPool } from "./actions.js";
import { allRates, count, countsJobs, duration, limitedBy, none, perSecond, plural, short, strictest } from "./format.js";

const chartSeconds = 300;

// bounded is a capacity to draw: the greatest one, which is the default, bounds nothing and would make all other values flat.
const bounded = (capacity) => (capacity < 1e9 ? capacity : null);

export class PoolView {
  constructor({ pool }) {
    this.pool = pool;
    this.title = pool;
    this.lanes = new Lanes(chartSeconds);
    this.left = this.costs = 0; // totals of the last sample
    this.series = new Series(["depth", "capacity", "running", "cap"]);
    const pick = (...names) => ({ data: () => [this.series.xs, ...names.map((n) => this.series.ys[this.series.names.indexOf(n)])] });
    this.departures = new ChartCard({
      title: "Departures against the rate", note: "of all flows together, as the rate counts them", fill: true, say: perSecond, least: 1, data: { data: () => this.lanes.departures() }, seconds: chartSeconds,
      series: [{ label: "leaving", colour: "--departures", draw: area("--departures", 0.14, { width: 2.5 }) }, { label: "rate now", colour: "--edge", mark: "dash", draw: dashed("--edge") }, { label: "rate set", colour: "--warn", mark: "dash", draw: dashed("--warn", { dash: [2, 4] }) }],
    });
    this.cards = [
      new ChartCard({
        title: "Waiting against capacity", data: pick("depth", "capacity"), say: short, least: 4, within: true,
        series: [{ label: "waiting", colour: "--water", draw: area("--water", 0.18) }, { label: "capacity", colour: "--edge", mark: "dash", draw: dashed("--edge") }],
      }),
      new ChartCard({
        title: "In flight", data: pick("running", "cap"), say: count, least: 2,
        series: [{ label: "deliveries", colour: "--violet", draw: area("--violet", 0.16) }, { label: "concurrency cap", colour: "--edge", mark: "dash", draw: dashed("--edge") }],
      }),
    ];
    this.knobs = new Knobs(pool, true);
    this.history = new History(poolPath(pool, "history"));
    this.shares = new Shares();
    const button = (label, act, cls = "") => el("button", { type: "button", class: `${cls} changes`, disabled: true, onclick: () => this.now && act(this.now) }, label);
    this.buttons = { pause: button("Pause …", pausePool), resume: button("Resume …", resumePool, "primary"), unhold: button("End the hold …", unholdPool) };
    this.buttons.resume.hidden = this.buttons.unhold.hidden = true;
    this.pill = el("span", { class: "pill" });
    this.over = oversubscribed();
    this.routes = el("span", { class: "aside" });
    this.reason = el("p", { class: "notice warn", hidden: true });
    this.short = el("p", { class: "notice bad", role: "alert", hidden: true });
    this.figures = {};
    const fact = (name, label) => el("div", null, el("dt", null, label), this.figures[name] = el("dd", null, none));
    this.node = el("div", { class: "stack" },
      el("div", { class: "headline" }, el("p", { class: "crumb hint" }, "Pool"), el("h1", null, pool), this.pill, this.over, this.routes, el("div", { class: "actions" }, Object.values(this.buttons))),
      this.reason, this.short,
      this.content = el("div", { class: "stack" },
        el("div", { class: "beside" }, this.departures.node, this.knobs.node),
        el("dl", { class: "figures", "aria-label": "Now" }, fact("left", "Departures"), fact("rate", "Rate now"), fact("depth", "Waiting"), fact("running", "In flight"), fact("flows", "Waiting flows"), fact("weights", "Sum of weights"), fact("reserves", "Sum of reserves"), fact("total", "Departed, total")),
        this.shares.node, el("div", { class: "grid four" }, this.cards.map((c) => c.node)), this.history.node));
    get(poolPath(pool)).catch((problem) => {
      if (problem.status !== 404) return; // the notice of the connection reports the others
      text(this.reason, "The configuration in force has no pool of this name.");
      this.reason.hidden = false;
      this.content.hidden = true;
    });
  }

  // want requests no tenants: their table is not shown.
  want() { return { pool: this.pool, limit: 0 }; }

  on(name, e) {
    if (e.pool !== this.pool) return;
    if (name === "pool_history") this.before = e.samples; // until it is known what the rate counts
    if (name === "pool") this.show(e);
    if (name === "pool_flows") this.shares.show(e);
  }

  // past adds the history of the server, without the samples already held.
  past(samples) {
    const seen = this.lanes.now ?? -Infinity, past = samplesOf(samples).map((l) => ({ ...l, admitted: 0, rejected: 0, departed: this.counted(l), ...this.limits(l.effective_rate_per_s, l.strictest_rate_per_s) }));
    this.lanes.past(past, []);
    for (const l of past) {
      if (l.t <= seen) continue;
      if (l.gap) this.series.gap();
      this.series.add(l.t, { depth: l.depth, capacity: bounded(l.capacity), running: l.running });
    }
  }

  // limits are the rate that departures keep to, and the rate of the settings where that is higher.
  limits(effective, set) { return { rate: effective, further: effective < 0.99 * set ? set : null }; }

  // counted is what has left as the strictest rate counts it: jobs, or their costs. Those fall where a job cost less than expected; the line does not.
  counted(l) {
    if (countsJobs(this.now)) return l.departed_total;
    if (l.departed_total < this.left - givenBack) this.costs = 0; // the store has lost the totals
    this.left = l.departed_total;
    return this.costs = Math.max(this.costs, l.cost_total);
  }

  show(e) {
    const t = Date.parse(e.at) / 1000;
    this.now = e;
    if (this.before) this.past(this.before);
    this.before = null;
    this.lanes.add(t, { admitted: 0, rejected: 0, departed: this.counted(e), ...this.limits(e.effective_rate_per_s, strictest(e)) });
    const news = this.series.add(t, { depth: e.depth, capacity: bounded(e.capacity), running: e.running, cap: e.concurrency || null });
    if (news || !this.departures.plot) for (const card of [this.departures, ...this.cards]) card.draw(t);
    this.knobs.show(e);
    this.history.follow(e.revision);
    this.showState(e);
    const f = this.figures;
    text(f.left, perSecond(this.lanes.rates().departures ?? NaN));
    text(f.rate, perSecond(e.effective_rate_per_s));
    text(f.depth, short(e.depth));
    text(f.running, e.concurrency ? `${short(e.running)} of ${short(e.concurrency)}` : short(e.running));
    text(f.flows, count(e.waiting_flows));
    text(f.weights, count(e.weights));
    text(f.reserves, e.reserves_per_s > 0 ? perSecond(e.reserves_per_s) : none);
    f.reserves.classList.toggle("bad", e.oversubscribed);
    text(f.total, e.cost_total === e.departed_total ? short(e.departed_total) : `${short(e.departed_total)}, cost ${short(e.cost_total)}`);
  }

  showState(e) {
    const { says, tone, why } = limitedBy(e);
    text(this.pill, says);
    attribute(this.pill, "title", why);
    attribute(this.pill, "data-tone", tone || null);
    text(this.routes, `${e.routes.length === 1 ? "route" : "routes"} ${e.routes.join(", ")}, rate ${allRates(e)}, max cost ${count(e.max_cost)}, hold ${e.hold}, max hold ${duration(e.max_hold_ms)}`);
    const b = this.buttons;
    for (const button of Object.values(b)) button.disabled = false;
    b.pause.hidden = e.paused;
    b.resume.hidden = !e.paused;
    b.unhold.hidden = !e.held_until;
    const explained = [e.paused || ["auth", "held", "concurrency", "upstream", "workers", "flows"].includes(e.limited_by) ? why : "", e.paused && e.reason ? `Reason: ${e.reason}` : ""].filter(Boolean);
    this.reason.hidden = explained.length === 0;
    text(this.reason, explained.join(" "));
    this.over.hidden = this.short.hidden = !e.oversubscribed;
    if (e.oversubscribed) text(this.short, `The reserves of the ${plural(e.waiting_flows, "waiting flow")} add up to ${perSecond(e.reserves_per_s)}, more than the rate of ${perSecond(strictest(e))}. Each gets its part in proportion, and flows without a reserve get nothing. Raise the rate or lower reserves.`);
  }

  gap() {
    this.lanes.gap();
    this.series.gap();
  }

  destroy() {
    this.knobs.destroy();
    for (const card of [this.departures, ...this.cards]) card.destroy();
  }
}
