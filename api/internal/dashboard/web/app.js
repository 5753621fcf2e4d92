// Puts the page together: one stream, one view at a time, chosen by the hash of the address, and the state of the connection.
import { attribute, el, text } from "./dom.js";
import { get } from "./api.js";
import { keepInSight } from "./focus.js";
import { duration, timeOfDay } from "./format.js";
import { Stream } from "./stream.js";
import { themeButton } from "./theme.js";
import { Overview, Totals } from "./overview.js";
import { TenantView } from "./tenant.js";
import { PoolView } from "./pool.js";
import { JobView } from "./job.js";
import { AuditView } from "./audit.js";

const restoredFor = 6000; // ms that the notice of a restored connection stays
const place = document.getElementById("view");
const banner = document.getElementById("banner");
const totals = new Totals();
const table = { sort: "depth", limit: 50 }; // the chosen sorting and length of the table of tenants

let view = null;
let lostAt = 0;

const stream = new Stream((name, event) => {
  if (name === "history") totals.past(event);
  if (name === "overview") storeState(event);
  if (name === "overview" && !(view instanceof Overview)) {
    totals.keep(event);
    totals.chart(event);
  }
  view.on(name, event);
}, connection);

const says = { connecting: "Connecting", live: "Live", lost: "Reconnecting" };

function connection(phase, before) {
  const pulse = document.getElementById("pulse");
  attribute(pulse, "data-phase", phase);
  attribute(document.body, "data-phase", phase);
  text(document.getElementById("pulse-text"), says[phase]);
  if (phase === "lost") {
    if (!lostAt) lostAt = Date.now();
    notice("warn", `The connection to Sluice was lost at ${timeOfDay(lostAt)}. The figures are from that time. Reconnecting …`);
    totals.gap();
    if (!(view instanceof Overview)) view.gap();
  } else if (phase === "live" && before === "lost") {
    notice("good", `Connected again after ${duration(Date.now() - lostAt)}.`, restoredFor);
    lostAt = 0;
    tellVersion();
  }
}

// storeState shows whether the figures are those of now: not while Redis does not answer.
function storeState(e) {
  const ok = e.store?.ok !== false, pulse = document.getElementById("pulse");
  attribute(pulse, "data-phase", ok ? "live" : "stale");
  text(document.getElementById("pulse-text"), ok ? says.live : e.figures_at ? `Figures of ${timeOfDay(e.figures_at)}` : "No figures");
}

// notice shows the one notice of the connection.
function notice(tone, said, forMS) {
  let node = banner.querySelector("[data-connection]");
  if (!node) banner.prepend(node = el("p", { "data-connection": "" }));
  attribute(node, "class", "notice " + tone);
  text(node, said);
  clearTimeout(notice.timer);
  if (forMS) notice.timer = setTimeout(() => node.remove(), forMS);
}

// part decodes a part of the address. A part that is not encoded well is used as it is.
function part(encoded) {
  try {
    return decodeURIComponent(encoded);
  } catch {
    return encoded;
  }
}

function viewFor(hash) {
  const parts = hash.replace(/^#\/?/, "").replace(/^(tenant|pool)s\//, "$1/").split("/"); // typed by hand
  if (parts[0] === "tenant" && parts[1]) {
    const tenant = part(parts[1]);
    if (parts[2] === "job" && parts[3]) return new JobView({ tenant, id: part(parts[3]), parameters: table });
    return new TenantView({ tenant });
  }
  if (parts[0] === "pool" && parts[1]) return new PoolView({ pool: part(parts[1]) });
  if (parts[0] === "audit") return new AuditView();
  return new Overview({ totals, parameters: table, ask: () => stream.want(view.want()) });
}

function show(first) {
  view?.destroy();
  view = viewFor(location.hash);
  place.replaceChildren(view.node);
  document.title = view.title === "Overview" ? "Sluice" : `${view.title} · Sluice`;
  attribute(document.getElementById("nav-overview"), "aria-current", view instanceof Overview ? "page" : null);
  attribute(document.getElementById("nav-audit"), "aria-current", view instanceof AuditView ? "page" : null);
  stream.want(view.want());
  if (!first) {
    scrollTo(0, 0);
    place.focus({ preventScroll: true }); // a scroll would hide the top of the page with the state of the connection
  }
}

async function tellVersion() {
  try {
    const v = await get("/version");
    text(document.getElementById("version"), `Sluice ${v.version}, ${v.go}`);
  } catch { /* the notice of the connection reports it */ }
}

// tellWho shows who is signed in. The style sheet hides what the role may not do.
async function tellWho() {
  try {
    const self = await get("/v1/self"), who = document.getElementById("who");
    attribute(document.body, "data-role", self.role);
    text(who, `${self.name}, ${self.role}`);
    who.hidden = self.credential === "none";
  } catch { /* the notice of the connection reports it */ }
}

// comeBack returns to the view in which the session ended.
function comeBack() {
  try {
    const hash = sessionStorage.getItem("sluice.return");
    sessionStorage.removeItem("sluice.return");
    if (hash && !location.hash) history.replaceState(null, "", hash);
  } catch { /* the overview is shown */ }
}

document.getElementById("skip").addEventListener("click", (e) => {
  e.preventDefault(); // the hash of the address names the view
  place.focus();
});
document.getElementById("logout").hidden = document.body.dataset.session !== "cookie";
themeButton(document.getElementById("theme"));
keepInSight();
comeBack();
addEventListener("hashchange", () => show(false));
show(true);
tellVersion();
tellWho();
