// What can be done to a tenant beside its knobs: pause, resume, drain, purge, replay. Each asks first and names what will happen.
import { el } from "./dom.js";
import { ask } from "./dialog.js";
import { post, tenantPath } from "./api.js";
import { allRates, count, duration, limitedBy, plural } from "./format.js";

// leaving says at what rate the jobs of these flows leave: at that of each, for each has its own.
function leaving(t, flows) {
  const rates = new Set((flows.length ? flows : [t]).map(allRates));
  if (rates.size > 1) return "at the rates of their routes";
  return `at ${[...rates][0]}${flows.length > 1 ? " from each route" : ""}`;
}

const flowsOf = (t) => Object.values(t.routes || {});
const waiting = (t) => leaving(t, flowsOf(t).filter((f) => f.depth > 0));

const reasonBody = (reason) => (reason ? { reason } : {});

export function pause(t) {
  ask({
    title: `Pause ${t.tenant}?`, confirm: "Pause", reason: true,
    lines: [
      `No job leaves any more: ${plural(t.depth, "job")} will wait.`,
      t.running > 0 && `${plural(t.running, "delivery", "deliveries")} under way will end.`,
      `New jobs are still admitted, until ${count(t.capacity)} wait; then they are refused with 429.`,
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
      t.depth > 0 ? `${plural(t.depth, "waiting job")} will leave ${waiting(t)}, without a burst.` : "Jobs leave again as they come.",
      t.draining && "New jobs are admitted again.",
    ].filter(Boolean),
    run: async (reason) => {
      await post(tenantPath(t.tenant, "resume"), reasonBody(reason));
      return `${t.tenant} runs again.`;
    },
  });
}

export function unhold(t) {
  ask({
    title: `End the hold of ${t.tenant}?`, confirm: "End the hold", reason: true,
    lines: [
      `${limitedBy({ ...t, limited_by: "held" }).why}`,
      `${plural(t.depth, "waiting job")} will leave, at the part of the rate that the hold has left at first.`,
      t.held_by === "breaker" && "If the upstream still does not answer, the circuit breaker holds the flow again.",
    ].filter(Boolean),
    run: async (reason) => {
      await post(tenantPath(t.tenant, "unhold"), reasonBody(reason));
      return `${t.tenant} is held no longer.`;
    },
  });
}

export function drain(t) {
  ask({
    title: `Drain ${t.tenant}?`, confirm: "Drain", reason: true,
    lines: [
      "New jobs are refused with 503 until the tenant is resumed, and dead letters cannot be replayed.",
      `${plural(t.depth, "waiting job")} will leave ${waiting(t)}.`,
      t.paused && "The tenant is paused as well: nothing leaves before it is resumed.",
    ].filter(Boolean),
    run: async (reason) => {
      await post(tenantPath(t.tenant, "drain"), reasonBody(reason));
      return `${t.tenant} drains.`;
    },
  });
}

// sweep sends one filter until nothing is left: one request changes about 10,000 jobs.
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
    ["queued", "Queued jobs", "Every job that waits for its turn will be cancelled."],
    ["scheduled", "Scheduled jobs", "Every job that waits for its time will be cancelled."],
    ["retrying", "Retrying jobs", "Every job that waits for another attempt will be cancelled."],
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
    lines: ["Deliveries under way are not touched.", "Jobs created from now on are not touched."],
    run: async (_, progress) => {
      const { total } = await sweep(t, "purge", state ? { state } : {}, progress);
      return `${plural(total, "job")} of ${t.tenant} purged.`;
    },
  });
  go.disabled = true; // nothing is chosen yet
}

// purgeDead is the purge that stands beside the dead letters.
export function purgeDead(t, done) {
  ask({
    title: `Delete all dead letters of ${t.tenant}?`, confirm: "Delete all", danger: true,
    lines: [`${plural(t.dead, "dead letter")} will be deleted, with payloads and errors.`, "This cannot be undone."],
    run: async (_, progress) => {
      const { total } = await sweep(t, "purge", { state: "dead" }, progress);
      done();
      return `${plural(total, "dead letter")} deleted.`;
    },
  });
}

const stops = { "queue-full": "the queue is full", "queue-bytes-full": "the queue holds as many bytes as it may", draining: "the tenant drains" };

export function replayAll(t, done) {
  const error = el("input", { id: "replay-error", maxlength: 255, autocomplete: "off", placeholder: "Any" });
  ask({
    title: `Replay all dead letters of ${t.tenant}?`, confirm: "Replay all",
    lines: [
      `${plural(t.dead, "dead letter")} will go back through the bucket with fresh attempts, and leave ${leaving(t, flowsOf(t))}.`,
      `There is room for ${count(Math.max(0, t.capacity - t.depth))}; the first that finds no place ends it.`,
    ],
    extra: el("div", { class: "field" }, el("label", { for: "replay-error" }, "Only those whose last error contains"), error),
    run: async (_, progress) => {
      const filter = error.value.trim() ? { error: error.value.trim() } : {};
      const { total, stopped, retry } = await sweep(t, "replay", filter, progress);
      done();
      const end = stopped ? ` It stopped: ${stops[stopped] || stopped}${retry ? `; a place frees in ${duration(retry)}` : ""}.` : "";
      return `${plural(total, "dead letter")} replayed.${end}`;
    },
  });
}

export async function replay(tenant, id) {
  return post(tenantPath(tenant, "jobs", encodeURIComponent(id), "replay"));
}
