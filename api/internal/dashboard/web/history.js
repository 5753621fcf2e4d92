// The history of the changes of a tenant or a pool.
import { el } from "./dom.js";
import { get } from "./api.js";
import { count, duration, furtherRates, moment, none, plural, policyRate } from "./format.js";

const shown = 20;
const often = 5000; // ms between two reads

const say = {
  rate: policyRate,
  reserve: policyRate,
  rates: (rates) => furtherRates(rates) || "none",
  max_wait_ms: duration,
};

const done = { unhold: "holds ended", "unhold-charge": "hold and charge ended" }; // actions that change no settings

// swept says which jobs were purged or replayed, and how many.
function swept({ action, filter, count: n }) {
  const { ids, state, route, error, created_before } = filter || {};
  const which = [action === "replay" ? "dead" : state || "waiting or dead", ids && "of a list", route && `for ${route}`, error && `with “${error}” in the last error`, created_before && `created before ${moment(created_before)}`];
  return `${plural(n || 0, "job")} ${action === "replay" ? "replayed" : "purged"}: ${which.filter(Boolean).join(", ")}`;
}

const saying = (setting, value) => (value === undefined || value === null ? "as configured" : say[setting] ? say[setting](value) : typeof value === "number" ? count(value) : typeof value === "object" ? JSON.stringify(value) : String(value));

// changes lists the differences of two sets of overrides, with those of routes.
export function changes(before, after, where = "") {
  const said = [];
  for (const setting of new Set([...Object.keys(before || {}), ...Object.keys(after || {})])) {
    const a = before?.[setting], b = after?.[setting];
    if (JSON.stringify(a) === JSON.stringify(b)) continue;
    if (setting === "routes") {
      for (const route of new Set([...Object.keys(a || {}), ...Object.keys(b || {})])) said.push(...changes(a?.[route], b?.[route], `${where}${route}: `));
    } else {
      said.push(`${where}${setting} ${saying(setting, a)} → ${saying(setting, b)}`);
    }
  }
  return said;
}

export class History {
  constructor(path) {
    this.path = path;
    this.body = el("tbody");
    const head = (label, cls) => el("th", { scope: "col", class: cls }, label);
    this.node = el("section", { class: "card", "aria-labelledby": "history-title" }, el("header", null, el("h2", { id: "history-title" }, "History")),
      el("div", { class: "scroll" }, el("table", { class: "rows" }, el("thead", null, el("tr", null, head("When"), head("Change"), head("Reason", "p1"), head("By", "p2"), head("Revision", "num p3"))), this.body)));
  }

  // follow reads the history again when the revision has changed, and else now and then: a purge or a replay has no revision of its own.
  async follow(revision) {
    if (revision === this.revision && Date.now() < this.due) return;
    this.revision = revision;
    this.due = Date.now() + often;
    try {
      const { items } = await get(this.path), text = JSON.stringify(items);
      if (text === this.shown) return;
      this.shown = text;
      this.body.replaceChildren(...(items.length ? items.slice(0, shown).map((e) => this.row(e)) : [el("tr", null, el("td", { class: "nothing", colspan: 5 }, "No setting was changed here, and no jobs were purged or replayed. Changes of the configuration file are not listed."))]));
    } catch {
      this.revision = undefined; // the next event tries again
    }
  }

  row(e) {
    return el("tr", null, el("td", null, moment(e.at)), el("td", { class: "wide" }, (e.action === "purge" || e.action === "replay" ? swept(e) : done[e.action]) || changes(e.before, e.after).join(", ") || "the same settings again",
        e.reason && el("span", { class: "also p1" }, e.reason), e.actor && el("span", { class: "also p2" }, `by ${e.actor}`)),
      el("td", { class: "p1 wide" }, e.reason || none), el("td", { class: "p2" }, e.actor || none), el("td", { class: "num p3" }, e.revision));
  }
}
