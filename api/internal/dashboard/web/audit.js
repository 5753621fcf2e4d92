// The audit: who did what, the newest first.
import { el, text } from "./dom.js";
import { get, query } from "./api.js";
import { changes } from "./history.js";
import { none } from "./format.js";

const page = 50; // entries of a page
const typing = 300; // ms from the last key to the search
const mostPages = 20; // of the API in one read: a page may be short, or empty, and be followed by others

// saidOf describes what happened: the settings that differ, and the detail as it is.
function saidOf(e) {
  const of = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});
  const said = e.before === null && e.after !== null ? [JSON.stringify(e.after)] : changes(of(e.before), of(e.after));
  if (e.detail !== null) said.push(JSON.stringify(e.detail));
  return said.join(", ");
}

export class AuditView {
  constructor() {
    this.title = "Audit";
    this.body = el("tbody");
    this.fields = {};
    const field = (name, label, hint, type = "search") => {
      const input = el("input", { type, id: `audit-${name}`, placeholder: hint, maxlength: 255, autocomplete: "off", spellcheck: "false", step: type === "datetime-local" ? 1 : null });
      input.addEventListener("input", () => {
        clearTimeout(this.typed);
        this.typed = setTimeout(() => this.read(), typing);
      });
      this.fields[name] = input;
      return el("div", { class: "search" }, el("label", { for: input.id }, label), input);
    };
    this.failed = el("p", { class: "notice bad", role: "alert", hidden: true });
    this.more = el("button", { type: "button", class: "small", hidden: true, onclick: () => this.read(this.next) }, "Show more");
    const head = (label, cls) => el("th", { scope: "col", class: cls }, label);
    this.node = el("div", { class: "stack" }, el("div", { class: "headline" }, el("h1", null, "Audit")),
      el("section", { class: "card", "aria-labelledby": "audit-title" },
        el("header", null, el("h2", { id: "audit-title" }, "Entries"), el("div", { class: "filters" }, field("actor", "Actor", "Name"), field("action", "Action", "Such as tenant."), field("subject", "Subject", "Tenant, pool or job"), field("since", "Since", "", "datetime-local")),
          el("div", { class: "actions" }, el("button", { type: "button", class: "small", onclick: () => this.read() }, "Read again"))),
        this.failed,
        el("div", { class: "scroll" }, el("table", { class: "rows" },
          el("thead", null, el("tr", null, head("When"), head("Actor"), head("Action"), head("Subject", "p1"), head("Outcome"), head("What", "p2"), head("Address", "p3"))),
          this.body)),
        el("div", { class: "more" }, this.more)));
    this.read();
  }

  // read loads the newest entries, or those behind a cursor. Late answers are dropped.
  async read(cursor) {
    const asked = (this.asked = (this.asked || 0) + 1);
    const value = (name) => this.fields[name].value.trim() || undefined;
    const since = this.fields.since.value ? new Date(this.fields.since.value).toISOString() : undefined;
    try {
      const items = [];
      let next = cursor;
      for (let pages = 0; pages < mostPages && items.length < page && (pages === 0 || next); pages++) {
        const list = await get("/v1/audit" + query({ actor: value("actor"), action: value("action"), subject: value("subject"), since, limit: page - items.length, cursor: next }));
        if (asked !== this.asked || this.gone) return;
        items.push(...list.items);
        next = list.next_cursor;
      }
      this.next = next;
      this.failed.hidden = true;
      const rows = items.map((e) => this.row(e));
      if (cursor) this.body.append(...rows);
      else this.body.replaceChildren(...(rows.length ? rows : [el("tr", null, el("td", { class: "nothing", colspan: 7 }, next ? "None of the newest entries is one of these." : "There are no such entries."))]));
      this.more.hidden = !next;
    } catch (problem) {
      if (asked !== this.asked || this.gone) return;
      text(this.failed, problem.message);
      this.failed.hidden = false;
      this.more.hidden = true;
    }
  }

  row(e) {
    const at = new Date(e.at);
    const said = saidOf(e);
    return el("tr", null, el("td", { title: e.at }, Number.isNaN(at.getTime()) ? none : at.toLocaleString()), el("td", { class: "name" }, e.actor || none), el("td", null, e.action),
      el("td", { class: "p1 name", title: e.subject }, e.subject || none), el("td", { class: e.outcome === "ok" ? "" : "bad" }, e.outcome, el("span", { class: "also p1" }, e.subject)),
      el("td", { class: "p2 wide" }, said || none), el("td", { class: "p3" }, e.address || none));
  }

  want() { return { limit: 0 }; }

  on() {}

  gap() { this.read(); }

  destroy() {
    this.gone = true;
    clearTimeout(this.typed);
  }
}
