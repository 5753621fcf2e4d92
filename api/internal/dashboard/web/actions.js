// The actions on a tenant: pause, resume, drain, purge, replay; and on a pool. Each opens a dialog that names the effect.
import { el } from "./dom.js";
import { ask } from "./dialog.js";
import { poolPath, post, tenantPath } from "./api.js";
import { allRates, count, duration, limitedBy, plural } from "./format.js";

// leaving names the rate at which the jobs of these flows leave. Each flow has its own rate.
function leaving(t, flows) {
  const rates = new Set((flows.length ? flows : [t]).map(allRates));
  if (rates.size > 1) return "at the rates of their routes";
  const pooled = flows.some((f) => f.pool) ? ", as far as their pool allows" : "";
  return `at ${[...rates][0]}${flows.length > 1 ? " from each route" : ""}${pooled}`;
}

const flowsOf = (t) => Object.values(t.routes || {});
const waiting = (t) => leaving(t, flowsOf(t).filter((f) => f.depth > 0));

const reasonBody = (reason) => (reason ? { reason } : {});

export function pause(t) {
  ask({
    title: `Pause ${t.tenant}?`, confirm: "Pause", reason: true,
    lines: [
      `No job leaves until the tenant is resumed: ${plural(t.depth, "job")} will wait.`,
      t.running > 0 && `${plural(t.running, "delivery", "deliveries")} in flight will finish.`,
      `New jobs are still admitted. While ${count(t.capacity)} wait, further ones are refused with 429.`,
    ].filter(Boolean),
    run: async (reason) => {
      await post(tenantPath(t.tenant, "pause"), reasonBody(reason));
      return `${t.tenant} is paused.`;
    },
  });
}

export function resume(t) {
  ask({
    title: `Resume ${t.tenant}?`, confirm: "Resume", reason: true,
    lines: [
      t.depth > 0 ? `${plural(t.depth, "waiting job")} will leave ${waiting(t)}, without a burst.` : "New jobs will leave again.",
      t.draining && "New jobs are admitted again.",
    ].filter(Boolean),
    run: async (reason) => {
      await post(tenantPath(t.tenant, "resume"), reasonBody(reason));
      return `${t.tenant} is resumed.`;
    },
  });
}

// pausedAlone reports whether the route of a tenant is paused itself: a flow of a paused tenant is paused, too.
export const pausedAlone = (t, route) => t.overrides?.routes?.[route]?.paused ?? (t.routes[route].paused && !t.paused);

// switchRoute pauses or resumes one route of a tenant.
export function switchRoute(t, route) {
  const flow = t.routes[route], paused = pausedAlone(t, route), verb = paused ? "resume" : "pause", Verb = paused ? "Resume" : "Pause";
  ask({
    title: `${Verb} the route ${route} of ${t.tenant}?`, confirm: Verb, reason: true,
    lines: [
      paused ? `${plural(flow.depth, "waiting job")} will leave ${leaving(t, [flow])}, without a burst.` : `No job of this route leaves until it is resumed: ${plural(flow.depth, "job")} will wait. Other routes go on.`,
      paused && t.paused && "The tenant is paused as well: no job leaves before it is resumed.",
      !paused && `New jobs are still admitted. While ${count(flow.capacity)} wait, further ones are refused with 429.`,
    ].filter(Boolean),
    run: async (reason) => {
      await post(tenantPath(t.tenant, verb), { ...reasonBody(reason), route });
      return `The route ${route} of ${t.tenant} is ${verb}d.`;
    },
  });
}

export function unhold(t) {
  ask({
    title: `End the hold of ${t.tenant}?`, confirm: "End the hold", reason: true,
    lines: [
      `${limitedBy({ ...t, limited_by: "held" }).why}`,
      `${plural(t.depth, "waiting job")} will leave, at a reduced rate at first.`,
      /breaker$/.test(t.held_by) && "If the upstream still does not answer, the circuit breaker holds the flow again.",
    ].filter(Boolean),
    run: async (reason) => {
      await post(tenantPath(t.tenant, "unhold"), reasonBody(reason));
      return `The hold of ${t.tenant} has ended.`;
    },
  });
}

export function pausePool(p) {
  ask({
    title: `Pause the pool ${p.pool}?`, confirm: "Pause", reason: true,
    lines: [
      `No job of its flows leaves until the pool is resumed: ${plural(p.depth, "job")} of all tenants will wait.`,
      p.running > 0 && `${plural(p.running, "delivery", "deliveries")} in flight will finish.`,
      `New jobs are still admitted. While ${count(p.capacity)} wait, further ones are refused with 429.`,
    ].filter(Boolean),
    run: async (reason) => {
      await post(poolPath(p.pool, "pause"), reasonBody(reason));
      return `The pool ${p.pool} is paused.`;
    },
  });
}

export function resumePool(p) {
  ask({
    title: `Resume the pool ${p.pool}?`, confirm: "Resume", reason: true,
    lines: [p.depth > 0 ? `${plural(p.depth, "waiting job")} will leave at ${allRates(p)}, without a burst. Flows that are paused themselves stay paused.` : "New jobs will leave again."],
    run: async (reason) => {
      await post(poolPath(p.pool, "resume"), reasonBody(reason));
      return `The pool ${p.pool} is resumed.`;
    },
  });
}

export function unholdPool(p) {
  ask({
    title: `End the hold of the pool ${p.pool}?`, confirm: "End the hold", reason: true,
    lines: [
      `${limitedBy({ ...p, limited_by: "held" }).why}`,
      `${plural(p.depth, "waiting job")} will leave, at a reduced rate at first.`,
      /breaker$/.test(p.held_by) && "If the upstream still does not answer, the circuit breaker holds the pool again.",
    ].filter(Boolean),
    run: async (reason) => {
      await post(poolPath(p.pool, "unhold"), reasonBody(reason));
      return `The hold of the pool ${p.pool} has ended.`;
    },
  });
}

export function drain(t) {
  ask({
    title: `Drain ${t.tenant}?`, confirm: "Drain", reason: true,
    lines: [
      "New jobs are refused with 503 until the tenant is resumed, and dead letters cannot be replayed.",
      `${plural(t.depth, "waiting job")} will leave ${waiting(t)}.`,
      t.paused && "The tenant is paused as well: no job leaves before it is resumed.",
    ].filter(Boolean),
    run: async (reason) => {
      await post(tenantPath(t.tenant, "drain"), reasonBody(reason));
      return `${t.tenant} is draining.`;
    },
  });
}

// sweep repeats a request until no job matches its filter: one request changes about 10,000 jobs.
async function sweep(t, what, filter, progress) {
  let total = 0;
  let body = filter;
  for (;;) {
    const swept = await post(tenantPath(t.tenant, what), body);
    total += swept.count;
    if (!swept.more || swept.stopped) return { total, stopped: swept.stopped, retry: swept.retry_after_ms };
    body = { ...filter, created_before: swept.created_before };
    progress(`${count(total)} so far …`);
  }
}

export function purge(t) {
  const choices = [
    ["queued", "Queued jobs", "Every queued job will be cancelled."],
    ["scheduled", "Scheduled jobs", "Every scheduled job will be cancelled."],
    ["retrying", "Retrying jobs", "Every retrying job will be cancelled."],
    ["dead", `Dead letters (${count(t.dead)})`, `${plural(t.dead, "dead letter")} will be deleted, with payloads and errors.`],
    ["", "All: waiting jobs and dead letters", `${plural(t.depth, "waiting job")} will be cancelled, and ${plural(t.dead, "dead letter")} deleted.`],
  ];
  let state;
  const effect = el("p", { class: "notice warn", role: "status" }, "Choose what to purge.");
  const options = el("fieldset", null, el("legend", { class: "visually-hidden" }, "What to purge"), choices.map(([value, label, says]) =>
    el("label", null, el("input", { type: "radio", name: "what", value, onchange: () => {
      state = value;
      effect.textContent = says + " This cannot be undone.";
      go.disabled = false;
    } }), label)));
  const { go } = ask({
    title: `Purge ${t.tenant}?`, confirm: "Purge", danger: true, extra: el("div", { class: "stack" }, options, effect),
    lines: ["Deliveries in flight are not affected.", "Jobs created from now on are not affected."],
    run: async (_, progress) => {
      const { total } = await sweep(t, "purge", state ? { state } : { all: true }, progress);
      return `${plural(total, "job")} of ${t.tenant} purged.`;
    },
  });
  go.disabled = true; // nothing is chosen yet
}

// purgeDead deletes all dead letters, from the list of jobs, or those whose last error contains a text.
export function purgeDead(t, done, text = "") {
  const which = text ? `Of ${plural(t.dead, "dead letter")}, those whose last error contains “${text}” will be deleted` : `${plural(t.dead, "dead letter")} will be deleted`;
  ask({
    title: text ? `Delete these dead letters of ${t.tenant}?` : `Delete all dead letters of ${t.tenant}?`, confirm: text ? "Delete these" : "Delete all", danger: true,
    lines: [`${which}, with payloads and errors.`, "This cannot be undone."],
    run: async (_, progress) => {
      const { total } = await sweep(t, "purge", { state: "dead", error: text || undefined }, progress);
      done();
      return `${plural(total, "dead letter")} deleted.`;
    },
  });
}

const stops = { "queue-full": "the queue is full", "queue-bytes-full": "the queue has reached its limit of bytes", draining: "the tenant is draining" };

export function replayAll(t, done, text = "") {
  const error = el("input", { id: "replay-error", value: text, maxlength: 255, autocomplete: "off", placeholder: "Any" });
  ask({
    title: `Replay all dead letters of ${t.tenant}?`, confirm: "Replay all",
    lines: [
      `${plural(t.dead, "dead letter")} will go back into the queue with fresh attempts, and leave ${leaving(t, flowsOf(t))}.`,
      `The queue has capacity for ${count(Math.max(0, t.capacity - t.depth))} more. Replay stops when it is full.`,
    ],
    extra: el("div", { class: "field" }, el("label", { for: "replay-error" }, "Only those whose last error contains"), error),
    run: async (_, progress) => {
      const filter = error.value.trim() ? { error: error.value.trim() } : { all: true };
      const { total, stopped, retry } = await sweep(t, "replay", filter, progress);
      done();
      const end = stopped ? ` It stopped: ${stops[stopped] || stopped}${retry ? `; capacity frees in ${duration(retry)}` : ""}.` : "";
      return `${plural(total, "dead letter")} replayed.${end}`;
    },
  });
}

export async function replay(tenant, id) {
  return post(tenantPath(tenant, "jobs", encodeURIComponent(id), "replay"));
}
