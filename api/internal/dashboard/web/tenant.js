// One tenant: its bucket with the knobs beside it, how long jobs wait, its jobs, dead letters and history.
import { el, text, attribute, keyed } from "./dom.js";
import { offers, poolLink, tenantPath } from "./api.js";
import { Picture } from "./picture.js";
import { ChartCard, area, dashed, line } from "./chart.js";
import { Series, samplesOf, spansOf } from "./meter.js";
import { Knobs } from "./knobs.js";
import { Jobs } from "./jobs.js";
import { History } from "./history.js";
import { Submit } from "./submit.js";
import { drain, pause, pausedAlone, purge, resume, switchRoute, unhold } from "./actions.js";
import { allRates, bytes, count, duration, leftOf, limitedBy, none, perSecond, plural, policyRate, rateNow, ratePerSecond, short, strictest } from "./format.js";

const totalsOf = (e) => ({ admitted: e.admitted_total, rejected: e.rejected_total, departed: e.departed_total });

// limitsOf are the limits of departures: the effective rate, and a stricter further rate, if any.
const limitsOf = (left, rate, least) => ({ rate: left * rate, further: least < left * rate ? least : null });

// pooled reports whether all routes of the tenant are in pools: its rate is theirs then.
const pooled = (e) => Object.keys(e.routes || {}).length > 0 && Object.values(e.routes).every((r) => r.pool);

// poolSays is what the pool of a flow allows.
const poolSays = (r) => `${perSecond(r.pool_rate_per_s || 0)} for all flows of ${r.pool}${r.pool_part > 0 && r.pool_part < 0.995 ? `, ${perSecond(r.pool_part * (r.pool_rate_per_s || 0))} for this one while the same flows wait` : ""}${r.owed ? `; owes ${count(r.owed)} to it` : ""}`;

const poolsSay = (e) => Object.values(e.routes || {}).filter((r) => r.pool).map(poolSays).join("; ");

// stored is what the tenant has stored, of what a single route may store.
function stored(e) {
  const [only, ...others] = Object.values(e.routes || {});
  return only?.share_bytes && others.length === 0 ? `${bytes(e.stored_bytes)} of ${bytes(only.share_bytes)}` : bytes(e.stored_bytes);
}

export class TenantView {
  constructor({ tenant }) {
    this.tenant = tenant;
    this.title = tenant;
    this.picture = new Picture({ title: "The bucket", note: "the last minute", whose: tenant });
    this.series = new Series(["depth", "capacity", "oldest", "p50", "p95", "p99", "effective", "set", "running", "cap"]);
    const pick = (...names) => ({ data: () => [this.series.xs, ...names.map((n) => this.series.ys[this.series.names.indexOf(n)])] });
    this.cards = [
      new ChartCard({
        title: "Depth against capacity", data: pick("depth", "capacity"), say: short, least: 4, within: true,
        series: [{ label: "waiting", colour: "--water", draw: area("--water", 0.18) }, { label: "capacity", colour: "--edge", mark: "dash", draw: dashed("--edge") }],
      }),
      new ChartCard({
        title: "Wait", note: "of waiting and recently ended jobs", data: pick("oldest", "p50", "p95", "p99"), say: duration, least: 10, empty: "No job has waited recently.",
        series: [{ label: "oldest waiting", colour: "--water", draw: area("--water", 0.18) }, { label: "median", colour: "--departures", draw: line("--departures") }, { label: "95 %", colour: "--violet", draw: line("--violet") }, { label: "99 %", colour: "--warn", draw: line("--warn") }],
      }),
      this.rates = new ChartCard({
        title: "Effective against configured rate", note: "", data: pick("effective", "set"), say: perSecond, least: 1,
        series: [{ label: "effective", colour: "--departures", draw: area("--departures", 0.14) }, { label: "configured", colour: "--edge", mark: "dash", draw: dashed("--edge") }],
      }),
      new ChartCard({
        title: "In flight", data: pick("running", "cap"), say: count, least: 2,
        series: [{ label: "deliveries", colour: "--violet", draw: area("--violet", 0.16) }, { label: "concurrency cap", colour: "--edge", mark: "dash", draw: dashed("--edge") }],
      }),
    ];
    this.knobs = new Knobs(tenant);
    this.jobs = new Jobs(tenant, () => this.now);
    this.history = new History(tenantPath(tenant, "history"));
    const button = (label, act, cls = "") => el("button", { type: "button", class: `${cls} changes`, disabled: true, onclick: () => this.now && act(this.now) }, label);
    this.buttons = { pause: button("Pause …", pause), resume: button("Resume …", resume, "primary"), unhold: button("End the hold …", unhold), drain: button("Drain …", drain), purge: button("Purge …", purge, "danger") };
    this.buttons.resume.hidden = this.buttons.unhold.hidden = true;
    this.pill = el("span", { class: "pill" });
    this.tier = el("span", { class: "pill" });
    this.pools = el("span", { class: "pools", hidden: true });
    this.reason = el("p", { class: "notice warn", hidden: true });
    this.figures = {};
    const fact = (name, label) => el("div", null, el("dt", null, label), this.figures[name] = el("dd", null, none));
    this.routesBody = el("tbody");
    const head = (label, cls) => el("th", { scope: "col", class: cls }, label);
    this.routes = el("section", { class: "card", hidden: true, "aria-labelledby": "routes-title" }, el("header", null, el("h2", { id: "routes-title" }, "Routes"), el("small", null, "each has its own queue, capacity and rate")),
      el("div", { class: "scroll" }, el("table", { class: "rows" }, el("thead", null, el("tr", null, head("Route"), head("Rate"), head("Waiting"), head("Oldest wait", "num p1"), head("In flight", "num p2"), head("Refused", "num p1"), head("State"), this.poolHead = head("Pool", "p1"), head(el("span", { class: "visually-hidden" }, "Actions")))), this.routesBody)));
    this.node = el("div", { class: "stack" },
      el("div", { class: "headline" }, el("h1", null, tenant), this.pill, this.tier, this.pools, el("div", { class: "actions" }, Object.values(this.buttons))),
      this.reason,
      el("div", { class: "beside" }, this.picture.node, this.knobs.node),
      el("dl", { class: "figures", "aria-label": "Now" }, fact("oldest", "Oldest wait"), fact("running", "In flight"), fact("effective", "Effective rate"), fact("admitted", "Admitted"), fact("rejected", "Refused"), fact("departed", "Departed"), fact("succeeded", "Succeeded"), fact("dead", "Dead letters"), fact("stored", "Stored")),
      this.routes,
      el("div", { class: "grid four" }, this.cards.map((c) => c.node)),
      this.more = el("div", { class: "stack" }, this.jobs.node, this.history.node));
    offers("post", "/v1/tenants/{tenant}/jobs").then((takes) => {
      if (!takes || this.gone) return;
      this.submit = new Submit(tenant, () => this.jobs.read());
      this.more.before(this.submit.node);
    });
  }

  // want requests no other tenants: their table is not shown.
  want() { return { tenant: this.tenant, limit: 0 }; }

  on(name, e) {
    if (e.tenant !== this.tenant) return;
    if (name === "tenant_history") this.past(e);
    if (name === "tenant") this.show(e);
  }

  // past adds the history of the server, without the samples already held.
  past({ looks: samples, arrivals }) {
    const { lanes } = this.picture, seen = lanes.now ?? -Infinity;
    const past = samplesOf(samples).map((l) => ({ ...l, ...limitsOf(l.effective_rate_per_s / l.strictest_rate_per_s, l.rate_per_s, l.strictest_rate_per_s) }));
    lanes.past(past, spansOf(arrivals));
    for (const l of past) {
      if (l.t <= seen) continue;
      if (l.gap) this.series.gap();
      this.series.add(l.t, { depth: l.depth, capacity: l.capacity, oldest: l.oldest_wait_ms, effective: l.effective_rate_per_s, set: l.strictest_rate_per_s, running: l.running });
    }
  }

  show(e) {
    const t = Date.parse(e.at) / 1000;
    this.now = e;
    const set = strictest(e), further = e.rates?.length > 0;
    const closed = e.paused || ["paused", "held", "auth"].includes(e.limited_by);
    this.picture.show(t, totalsOf(e),
      { depth: e.depth, rim: e.capacity, room: `of ${count(e.capacity)}`, ...limitsOf(e.paused ? 0 : leftOf(e), ratePerSecond(e.rate), set), pace: `rate ${allRates(e)}`, closed });
    const news = this.series.add(t, {
      depth: e.depth, capacity: e.capacity, oldest: e.oldest_wait_ms, p50: e.wait_p50_ms || null, p95: e.wait_p95_ms || null, p99: e.wait_p99_ms || null, effective: e.effective_rate_per_s, set, running: e.running, cap: e.concurrency || null,
    });
    if (news) for (const card of this.cards) card.draw(t);
    this.knobs.show(e);
    this.jobs.tally(e);
    this.history.follow(e.revision);
    this.showState(e);
    const f = this.figures;
    text(f.oldest, e.depth > 0 ? duration(e.oldest_wait_ms) : none);
    text(f.running, e.concurrency ? `${short(e.running)} of ${short(e.concurrency)}` : short(e.running));
    text(f.effective, perSecond(e.effective_rate_per_s));
    text(f.effective.previousSibling, further ? "Effective, strictest" : pooled(e) ? "Effective, in its pool" : "Effective rate");
    attribute(f.effective, "title", poolsSay(e) || null);
    text(f.stored, stored(e));
    text(this.rates.note, further ? "of the strictest of its rates" : "");
    text(f.admitted, short(e.admitted_total));
    text(f.rejected, short(e.rejected_total));
    text(f.departed, short(e.departed_total));
    text(f.succeeded, short(e.succeeded_total));
    text(f.dead, short(e.dead));
    attribute(f.dead, "title", `${plural(e.dead_total, "job")} became dead letters in total, including replayed and deleted ones and those past retention`);
    f.dead.classList.toggle("bad", e.dead > 0);
    this.showPools(e);
    this.showRoutes(e);
  }

  // showPools names the pools that the flows are in.
  showPools(e) {
    const pools = [...new Set(Object.values(e.routes || {}).map((f) => f.pool).filter(Boolean))].sort();
    this.pools.hidden = pools.length === 0;
    keyed(this.pools, pools, (p) => p, (p) => el("a", { class: "pill", href: poolLink(p) }, `in the pool ${p}`), () => {});
  }

  showState(e) {
    const { says, tone, why } = limitedBy(e);
    text(this.pill, says);
    attribute(this.pill, "title", why);
    attribute(this.pill, "data-tone", tone || null);
    this.tier.hidden = !e.tier;
    text(this.tier, `tier ${e.tier}`);
    const b = this.buttons, stopped = e.paused || e.draining;
    for (const button of Object.values(b)) button.disabled = false;
    b.resume.hidden = !stopped;
    b.unhold.hidden = !e.held_until;
    b.pause.hidden = e.paused;
    b.drain.hidden = Boolean(e.draining);
    const over = Object.entries(e.routes || {}).filter(([, r]) => r.share_bytes && r.stored_bytes >= r.share_bytes);
    const explained = [...over.map(([route, r]) => `The route ${route} has stored ${bytes(r.stored_bytes)} of the ${bytes(r.share_bytes)} that it may have in the store now: new jobs are refused with 429 queue-bytes-full.`), stopped || e.limited_by === "paused" || ["auth", "held", "concurrency", "upstream", "workers"].includes(e.limited_by) ? why : "", (stopped || e.limited_by === "paused") && e.reason ? `Reason: ${e.reason}` : ""].filter(Boolean);
    const unknown = explained.length === 0 && !e.revision && !(e.depth + e.running + e.admitted_total + e.rejected_total);
    if (unknown) explained.push("No job of this tenant is known: it has sent none yet, or its figures were deleted while it was idle. Settings apply from its next job on.");
    attribute(this.reason, "class", unknown ? "notice" : "notice warn");
    this.reason.hidden = explained.length === 0;
    text(this.reason, explained.join(" "));
  }

  // showRoutes hides a single route with the settings of the tenant and without a pool.
  showRoutes(e) {
    const items = Object.entries(e.routes || {}).map(([route, flow]) => ({ route, ...flow })).sort((a, b) => (a.route < b.route ? -1 : 1));
    this.routes.hidden = items.length < 2 && items.every((r) => allRates(r) === allRates(e) && !r.pool);
    if (this.routes.hidden) return;
    this.poolHead.hidden = items.every((r) => !r.pool);
    keyed(this.routesBody, items, (r) => r.route, (r) => {
      const cells = ["", "", "num p1", "num p2", "num p1"].map((cls) => el("td", { class: cls })), pill = el("span", { class: "pill" }), pool = el("td", { class: "p1" });
      const act = el("button", { type: "button", class: "small changes", onclick: () => switchRoute(this.now, r.route) });
      const row = el("tr", null, el("th", { scope: "row", class: "name" }, r.route), cells, el("td", null, pill), pool, el("td", { class: "num" }, act));
      row.cellsOf = { cells, pill, pool, act };
      return row;
    }, (row, r) => {
      const { cells, pill, pool, act } = row.cellsOf, { says, tone, why } = limitedBy(r);
      pool.hidden = this.poolHead.hidden;
      const verb = pausedAlone(e, r.route) ? "Resume" : "Pause";
      text(act, `${verb} …`);
      attribute(act, "aria-label", `${verb} the route ${r.route}`);
      keyed(pool, r.pool ? [r.pool] : [], (p) => p, (p) => el("a", { href: poolLink(p) }, p), () => {});
      attribute(pool, "title", r.pool && `${poolSays(r)}, weight ${count(r.weight)}, ${r.reserve ? `reserve ${policyRate(r.reserve)}` : "no reserve"}`);
      [rateNow(r, allRates(r)), `${short(r.depth)} of ${short(r.capacity)}`, r.depth > 0 ? duration(r.oldest_wait_ms) : none, short(r.running), short(r.rejected_total)].forEach((said, i) => text(cells[i], said));
      text(pill, says);
      attribute(pill, "title", why);
      attribute(pill, "data-tone", tone || null);
    });
  }

  gap() {
    this.picture.gap();
    this.series.gap();
    this.jobs.read();
  }

  destroy() {
    this.gone = true;
    this.picture.destroy();
    this.knobs.destroy();
    this.jobs.destroy();
    for (const card of this.cards) card.destroy();
  }
}
