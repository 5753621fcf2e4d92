// The card of routes: the state of each upstream, failing ones first.
import { el, text, attribute, keyed } from "./dom.js";
import { jobLink, tenantLink } from "./api.js";
import { count, failure, moment, none, plural, short } from "./format.js";

const breakers = {
  closed: { says: "closed", tone: "good", why: "Deliveries are made normally." },
  "half-open": { says: "half open", tone: "warn", why: "Some deliveries are made to test whether the upstream answers again." },
  open: { says: "open", tone: "bad", why: "The upstream does not answer, or answers only with errors. Its flows are held, and single jobs are tried." },
};

// called describes how the upstream of a route is called.
function called(r) {
  if (!r.url) return none;
  return `${r.method ? `${r.method} ` : ""}${r.url}${r.headers ? ` with ${r.headers.join(", ")}` : ""}${r.proxy ? ` by proxy ${r.proxy}` : ""}${r.job_headers ? `, jobs set ${r.job_headers.join(", ")}` : ""}`;
}

// kindsOf describes how its requests are authenticated, and until when.
function kindsOf(r) {
  const ends = { oauth2: r.token_expires_at && moment(r.token_expires_at), certificate: r.certificate_expires_at?.slice(0, 10) };
  const ended = (kind) => kind === "certificate" && Date.parse(r.certificate_expires_at) < Date.now();
  return (r.auth || []).map((kind) => kind + (ends[kind] ? ` ${ended(kind) ? "ended" : "until"} ${ends[kind]}` : "")).join(", ");
}

export class Routes {
  constructor() {
    const head = (label, cls) => el("th", { scope: "col", class: cls }, label);
    this.body = el("tbody");
    this.said = el("small", { role: "status" });
    this.node = el("section", { class: "card routes", hidden: true, "aria-labelledby": "upstreams-title" },
      el("header", null, el("h2", { id: "upstreams-title" }, "Routes"), this.said),
      el("div", { class: "scroll low" }, el("table", { class: "rows" },
        el("thead", null, el("tr", null, head("Route"), head("Breaker"), head("In flight", "num"), head("Ended in a minute", "num p1"), head("Failed in a minute", "num"), head("Last failure", "wide"), head("Upstream", "wide p1"))), this.body)));
  }

  show(items) {
    this.node.hidden = items.length === 0;
    const open = items.filter((r) => r.breaker !== "closed").length, tokenless = items.filter((r) => r.token_problem).length;
    text(this.said, [open > 0 && `${plural(open, "breaker")} not closed`, tokenless > 0 && `${plural(tokenless, "route")} without a token`].filter(Boolean).join(", "));
    keyed(this.body, items, (r) => r.route, (r) => {
      const c = { url: el("span"), auth: el("small"), token: el("span", { class: "bad" }), pill: el("span", { class: "pill" }), flight: el("td", { class: "num" }), ended: el("td", { class: "num p1" }), failed: el("td", { class: "num" }), why: el("td", { class: "wide" }) };
      const row = el("tr", null, el("th", { scope: "row", class: "name" }, r.route), el("td", null, c.pill), c.flight, c.ended, c.failed, c.why, el("td", { class: "wide p1" }, c.url, " ", c.auth, " ", c.token));
      row.cellsOf = c;
      return row;
    }, (row, r) => {
      const c = row.cellsOf, { says, tone, why } = breakers[r.breaker] || { says: r.breaker, tone: "", why: "" };
      text(c.url, called(r));
      text(c.auth, kindsOf(r));
      text(c.token, r.token_problem ? `no token: ${r.token_problem}` : "");
      text(c.pill, says);
      attribute(c.pill, "data-tone", tone || null);
      attribute(c.pill, "title", why);
      text(c.flight, r.streams ? `${short(r.in_flight)}, ${plural(r.streams, "stream")}` : short(r.in_flight));
      attribute(c.flight, "title", r.streams_since ? `The oldest answer that is passed on while it comes began at ${moment(r.streams_since)}.` : null);
      c.flight.classList.toggle("zero", r.in_flight === 0);
      text(c.ended, short(r.ended));
      c.ended.classList.toggle("zero", r.ended === 0);
      text(c.failed, r.failed > 0 ? `${count(r.failed)} (${Math.ceil(100 * r.failed / r.ended)} %)` : "0");
      attribute(c.failed, "class", r.failed > 0 ? "num bad" : "num zero");
      const last = r.last_failure;
      keyed(c.why, last ? [last] : [{}], (f) => `${f.tenant} ${f.job} ${f.at}`, (f) => f.job ? el("span", { class: "bad", title: moment(f.at) },
        el("a", { href: jobLink(f.tenant, f.job) }, failure(f)), ", ", el("a", { href: tenantLink(f.tenant) }, f.tenant)) : el("span", { class: "zero" }, none), () => {});
    });
  }
}
