// The jobs of a tenant by state, the newest first: dead letters among them, to be inspected and replayed.
import { el, text, attribute, keyed } from "./dom.js";
import { get, jobLink, query, tenantPath } from "./api.js";
import { purgeDead, replay, replayAll } from "./actions.js";
import { toast } from "./dialog.js";
import { failure, moment, none, shortID, short, stateTone } from "./format.js";

const page = 20; // rows of a page
const typing = 300; // ms from the last key to the search
const mostPages = 20; // of the API in one read
const often = 2000; // ms between two reads while the list is in view
const states = [
  ["all", "All"], ["queued", "Queued"], ["leased", "Leased"], ["retrying", "Retrying"], ["scheduled", "Scheduled"], ["succeeded", "Succeeded"], ["dead", "Dead"],
  ["cancelled", "Cancelled"], ["expired", "Expired"],
];
const nothing = {
  queued: "No job waits.", leased: "No job is being delivered.", retrying: "No job waits for a retry.", scheduled: "No job is scheduled.",
  all: "No job was submitted recently.", succeeded: "No job has succeeded recently.", dead: "No job is dead.", cancelled: "No job was cancelled recently.", expired: "No job has expired recently.",
};

export class Jobs {
  constructor(tenant, tenantNow) {
    this.tenant = tenant;
    this.tenantNow = tenantNow;
    this.state = "all";
    this.size = page;
    this.tallies = { leased: el("i"), dead: el("i") }; // beside their tabs
    this.tabs = states.map(([state, label]) => el("button", { type: "button", "data-state": state, onclick: () => this.choose(state) }, label, this.tallies[state]));
    this.body = el("tbody");
    this.more = el("button", { type: "button", class: "small", hidden: true, onclick: () => {
      this.size += page;
      this.read();
    } }, "Show more");
    this.replayAll = el("button", { type: "button", class: "small changes", hidden: true, onclick: () => replayAll(this.tenantNow(), () => this.read(), this.error.value.trim()) }, "Replay all …");
    this.deleteAll = el("button", { type: "button", class: "small danger changes", hidden: true, onclick: () => purgeDead(this.tenantNow(), () => this.read(), this.error.value.trim()) }, "Delete all …");
    this.error = el("input", { type: "search", id: "jobs-error", placeholder: "Text of the last error", maxlength: 255, autocomplete: "off", spellcheck: "false" });
    this.error.addEventListener("input", () => {
      clearTimeout(this.typed);
      this.typed = setTimeout(() => {
        this.size = page;
        this.read();
      }, typing);
    });
    this.failed = el("p", { class: "notice bad", role: "alert", hidden: true });
    const head = (label, cls) => el("th", { scope: "col", class: cls }, label);
    this.node = el("section", { class: "card", "aria-labelledby": "jobs-title" },
      el("header", null, el("h2", { id: "jobs-title" }, "Jobs"), el("div", { class: "tabs", role: "group", "aria-label": "State" }, this.tabs), el("div", { class: "controls search" }, el("label", { for: "jobs-error" }, "Error"), this.error), el("div", { class: "actions" }, this.replayAll, this.deleteAll)),
      this.failed,
      el("div", { class: "scroll" }, el("table", { class: "rows" },
        el("thead", null, el("tr", null, head("Job"), head("State"), head("Type", "p1"), head("Route", "p3"), head("Attempts", "num p1"), head("Created", "num p2"), this.when = head("Ended", "num p1"), head("Last error", "p2"), this.acts = head(el("span", { class: "visually-hidden" }, "Actions")))),
        this.body)),
      el("div", { class: "more" }, this.more));
    this.mark();
    this.read();
  }

  // tally shows the numbers of leased jobs and dead letters beside their tabs. Their widths are reserved, so that nothing jumps.
  tally({ running, dead }) {
    text(this.tallies.leased, running > 0 ? short(running) : "");
    text(this.tallies.dead, dead > 0 ? short(dead) : "");
  }

  choose(state) {
    this.state = state;
    this.size = page;
    this.mark();
    this.read();
  }

  mark() {
    for (const tab of this.tabs) attribute(tab, "aria-pressed", String(tab.dataset.state === this.state));
    const dead = this.state === "dead";
    this.replayAll.hidden = this.deleteAll.hidden = !dead;
    this.acts.hidden = !dead;
    text(this.when, { queued: "Position", leased: "Departed", retrying: "Again at", scheduled: "Due at", all: "Next or last" }[this.state] || "Ended");
  }

  // read loads the list, now and periodically. Late answers are dropped; so is the answer of a periodic read (unasked) while the focus is in the
  // list: rows must not vanish under the focus.
  async read(unasked) {
    clearTimeout(this.timer);
    const asked = (this.asked = (this.asked || 0) + 1);
    try {
      const list = { items: [] };
      // A page may be short, or empty, and be followed by others.
      for (let pages = 0; pages < mostPages && list.items.length < this.size && (pages === 0 || list.next_cursor); pages++) {
        const page = await get(tenantPath(this.tenant, "jobs") + query({ state: this.state, error: this.error.value.trim() || undefined, limit: this.size - list.items.length, cursor: list.next_cursor }));
        if (asked !== this.asked || this.gone) return;
        list.items.push(...page.items);
        list.next_cursor = page.next_cursor;
      }
      this.failed.hidden = true;
      if (!(unasked && this.body.contains(document.activeElement))) this.show(list);
    } catch (problem) {
      if (asked !== this.asked || this.gone) return;
      text(this.failed, problem.message);
      this.failed.hidden = false;
    }
    this.timer = setTimeout(() => this.again(), often);
  }

  // again reads the list while it is in view and does not have the focus.
  again() {
    const box = this.node.getBoundingClientRect();
    const seen = !document.hidden && box.bottom > 0 && box.top < innerHeight;
    if (seen && !this.body.contains(document.activeElement)) this.read(true);
    else this.timer = setTimeout(() => this.again(), often);
  }

  show(list) {
    this.more.hidden = !list.next_cursor;
    if (list.items.length === 0) {
      keyed(this.body, [{ id: "" }], (j) => j.id, () => el("tr", null, el("td", { class: "nothing", colspan: 9 })), (row) => text(row.firstChild, this.error.value.trim() ? "No job of this list has this text in its last error." : nothing[this.state]));
      return;
    }
    keyed(this.body, list.items, (j) => j.id + this.state, (j) => this.row(j), (row, j) => this.fill(row, j));
  }

  row(j) {
    const cell = (cls) => el("td", { class: cls });
    const c = { pill: el("span", { class: "pill" }), type: cell("p1 name"), route: cell("p3"), attempts: cell("num p1"), created: cell("num p2"), when: cell("num p1"), error: cell("p2 wide"), act: cell("num") };
    if (this.state === "dead") {
      const button = el("button", { type: "button", class: "small changes", "aria-label": `Replay ${j.id}`, onclick: () => this.replay(j, button) }, "Replay");
      c.act.append(button);
    } else c.act.hidden = true;
    const row = el("tr", null, el("th", { scope: "row" }, el("a", { href: jobLink(this.tenant, j.id), class: "mono", title: j.id }, shortID(j.id))), el("td", null, c.pill), c.type, c.route, c.attempts, c.created, c.when, c.error, c.act);
    row.cellsOf = c;
    return row;
  }

  fill(row, j) {
    const c = row.cellsOf;
    text(c.pill, j.state || "gone");
    attribute(c.pill, "data-tone", stateTone[j.state] || null);
    text(c.type, j.type);
    text(c.route, j.route);
    text(c.attempts, `${j.attempts} of ${j.max_attempts}`);
    text(c.created, moment(j.created_at));
    const at = { queued: j.estimated_start_at, leased: j.started_at, retrying: j.scheduled_at, scheduled: j.scheduled_at }[j.state] || j.finished_at;
    text(c.when, this.state === "queued" ? (j.position ?? none) : moment(at));
    const refused = j.state === "succeeded" && j.response?.status >= 400; // forwarded, and the upstream's answer
    text(c.error, refused ? `answered ${j.response.status}` : failure(j.last_error));
    attribute(c.error, "class", j.state === "succeeded" && !refused ? "p2 wide zero" : "p2 wide bad");
  }

  async replay(j, button) {
    button.disabled = true;
    try {
      await replay(this.tenant, j.id);
      toast(`${shortID(j.id)} is queued again.`);
    } catch (problem) {
      toast(problem.message, "bad");
      button.disabled = false;
    }
    this.read();
  }

  destroy() {
    this.gone = true;
    clearTimeout(this.timer);
    clearTimeout(this.typed);
  }
}
