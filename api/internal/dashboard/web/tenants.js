// The table of tenants. The server finds and sorts; the rows are keyed by tenant and changed in place.
import { el, text, attribute, keyed } from "./dom.js";
import { get, jobLink, tenantLink } from "./api.js";
import { Meter } from "./meter.js";
import { allRates, count, duration, limitedBy, none, perSecond, policyRate, rateNow, short } from "./format.js";

const mostSamples = 6; // of a tenant, for its rates
const jobID = /^[0-9a-v]{28}$/;
const typing = 250; // ms without a key before the server is asked

// figureCell shows a figure, a zero in a softer colour.
function figureCell(cell, said, value) {
  text(cell, said);
  cell.classList.toggle("zero", !(value > 0));
}

const sorts = [["name", "Tenant", "ascending"], ["depth", "Waiting", "descending"], ["oldest_wait", "Oldest wait", "descending"], ["refused", "Refused", "descending"], ["dead", "Dead letters", "descending"]];

export class TenantTable {
  // ask is called when the parameters of the stream change.
  constructor(parameters, ask) {
    this.parameters = parameters;
    this.ask = ask;
    this.recent = new Map();
    this.search = el("input", { type: "search", id: "tenant-search", placeholder: "Part of a name, or a job id", value: parameters.q || "", maxlength: 255, autocomplete: "off", spellcheck: "false" });
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.find(this.search.value.trim()), typing);
    });
    this.limit = el("select", { id: "tenant-limit", onchange: () => this.set({ limit: Number(this.limit.value) }) }, [25, 50, 100, 500].map((n) => el("option", { value: n, selected: n === parameters.limit }, n)));
    this.matching = el("small", { role: "status" });
    const head = (key, label, cls = "") => {
      const sort = sorts.find(([k]) => k === key);
      const th = el("th", { scope: "col", class: cls }, sort ? el("button", { type: "button", class: "sort", onclick: () => this.set({ sort: key }) }, label) : label);
      if (sort) (this.heads ||= new Map()).set(key, th);
      return th;
    };
    this.body = el("tbody");
    this.node = el("section", { class: "card table", "aria-labelledby": "tenants-title" },
      el("header", null, el("h2", { id: "tenants-title" }, "Tenants"), this.matching,
        el("div", { class: "controls search" }, el("label", { for: "tenant-search" }, "Search"), this.search, el("label", { for: "tenant-limit", class: "visually-hidden" }, "Rows"), this.limit)),
      el("div", { class: "scroll" }, el("table", { class: "rows" },
        el("thead", null, el("tr", null, head("name", "Tenant"), head("depth", "Waiting"), head("oldest_wait", "Oldest wait", "num"), head("", "Arrivals", "num p2"), head("", "Departures", "num p1"),
          head("", "Rate", "num p2"), head("refused", "Refused", "num"), head("", "In flight", "num p3"), head("dead", "Dead letters", "num p3"), head("", "State", "p1"))), this.body)));
    this.sorted();
    this.say("Loading tenants …");
  }

  // find opens the job with this id, or shows the tenants whose name contains the text.
  async find(text) {
    if (jobID.test(text)) {
      try {
        const job = await get("/v1/jobs/" + text);
        if (this.search.value.trim() === text && this.search.isConnected) location.hash = jobLink(job.tenant, text);
        return;
      } catch { /* no job has this id, so it may be a tenant's name */ }
    }
    if (this.search.isConnected) this.set({ q: text || undefined });
  }

  set(changes) {
    Object.assign(this.parameters, changes);
    this.sorted();
    this.ask();
  }

  sorted() {
    for (const [key, , direction] of sorts) attribute(this.heads.get(key), "aria-sort", this.parameters.sort === key ? direction : null);
  }

  show(event) {
    const t = Date.parse(event.at) / 1000;
    text(this.matching, event.matching === event.items.length ? `${count(event.matching)} shown` : `${count(event.items.length)} of ${count(event.matching)} shown`);
    for (const item of event.items) this.remember(t, item);
    if (event.items.length === 0) {
      this.say(this.parameters.q ? "No tenant name contains this text, and no job has it as its id." : "No tenant has sent a job yet.");
      return;
    }
    keyed(this.body, event.items, (i) => i.tenant, (i) => this.row(i), (row, i) => this.fill(row, i));
    for (const [name, figures] of this.recent) if (figures.at < t - 30) this.recent.delete(name);
  }

  // say fills the table with a sentence.
  say(said) {
    keyed(this.body, [{ tenant: "\u0000" }], (i) => i.tenant, () => el("tr", null, el("td", { class: "nothing", colspan: 10 })), (row) => text(row.firstChild, said));
  }

  remember(t, item) {
    let figures = this.recent.get(item.tenant);
    if (!figures) this.recent.set(item.tenant, figures = { past: [], meter: new Meter() });
    if (figures.at === t) return;
    figures.at = t;
    figures.departures = figures.meter.add(t, item.departed_total);
    const last = figures.past.at(-1);
    if (last && item.admitted_total < last.admitted) figures.past = [];
    figures.past.push({ t, admitted: item.admitted_total, rejected: item.rejected_total });
    if (figures.past.length > mostSamples) figures.past.shift();
    const first = figures.past[0], now = figures.past.at(-1);
    const span = now.t - first.t;
    figures.arrivals = span > 0 ? (now.admitted + now.rejected - first.admitted - first.rejected) / span : null;
    figures.refused = span > 0 ? (now.rejected - first.rejected) / span : null;
  }

  row(item) {
    const cell = (cls) => el("td", { class: cls });
    const bar = el("i"), depth = el("span", { class: "num" });
    const link = el("a", { href: tenantLink(item.tenant), title: item.tenant }, item.tenant);
    const total = el("span"), now = el("span", { class: "now" });
    const cells = { total, now, bar, depth, level: el("span", { class: "bar", "aria-hidden": "true" }, bar), oldest: cell("num"), arrivals: cell("num p2"), departures: cell("num p1"), rate: cell("num p2"), refused: el("td", { class: "num" }, now, total), running: cell("num p3"), dead: cell("num p3"), pill: el("span", { class: "pill" }) };
    const row = el("tr", null, el("th", { scope: "row", class: "name" }, link), el("td", null, el("div", { class: "level" }, depth, cells.level)), cells.oldest, cells.arrivals, cells.departures,
      cells.rate, cells.refused, cells.running, cells.dead, el("td", { class: "p1" }, cells.pill));
    row.cellsOf = cells;
    return row;
  }

  fill(row, item) {
    const c = row.cellsOf, figures = this.recent.get(item.tenant);
    const share = item.capacity > 0 ? Math.min(1, item.depth / item.capacity) : item.depth > 0 ? 1 : 0;
    figureCell(c.depth, short(item.depth), item.depth);
    c.depth.title !== `${count(item.depth)} of ${count(item.capacity)}` && (c.depth.title = `${count(item.depth)} of ${count(item.capacity)}`);
    const scale = `scaleX(${share.toFixed(3)})`;
    if (c.bar.style.transform !== scale) c.bar.style.transform = scale;
    attribute(c.level, "data-full", share >= 1 ? "" : null);
    text(c.oldest, item.depth > 0 ? duration(item.oldest_wait_ms) : none);
    figureCell(c.arrivals, figures.arrivals === null ? none : perSecond(figures.arrivals), figures.arrivals);
    figureCell(c.departures, figures.departures === null ? none : perSecond(figures.departures), figures.departures);
    const further = item.rates?.length;
    text(c.rate, rateNow(item, further ? `${policyRate(item.rate)} +${further}` : policyRate(item.rate)));
    attribute(c.rate, "title", further ? allRates(item) : null);
    text(c.total, short(item.rejected_total));
    text(c.now, figures.refused > 0 ? `${perSecond(figures.refused)} · ` : "");
    c.refused.classList.toggle("bad", figures.refused > 0);
    c.refused.classList.toggle("zero", item.rejected_total === 0);
    figureCell(c.running, short(item.running), item.running);
    figureCell(c.dead, short(item.dead), item.dead);
    c.dead.classList.toggle("bad", item.dead > 0);
    const { says, tone, why } = limitedBy(item);
    text(c.pill, says);
    attribute(c.pill, "title", why);
    attribute(c.pill, "data-tone", tone || null);
  }

  destroy() { clearTimeout(this.timer); }
}
