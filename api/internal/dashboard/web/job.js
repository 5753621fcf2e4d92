// One job: its facts, its payload or forwarded request, the answer and the steps of its life.
import { el, text, attribute } from "./dom.js";
import { del, getText, tenantLink, tenantPath } from "./api.js";
import { replay } from "./actions.js";
import { ask, toast } from "./dialog.js";
import { laidOut, member } from "./json.js";
import { bytes, count, duration, failure, httpMessage, messageNote, moment, none, plural, shortID, stateTone } from "./format.js";

const often = 1000; // ms between two reads of a job that has not ended

const span = (a, b) => duration(Date.parse(b) - Date.parse(a));

const outcomes = { retry: ["failed, will be retried", "warn"], dead: ["failed, will not be retried", "bad"], held: ["held: the upstream is not ready", "warn"], succeeded: ["delivered", "good"] };
const ends = { succeeded: ["Succeeded", "good"], dead: ["Dead", "bad"], cancelled: ["Cancelled", "warn"], expired: ["Expired: its max wait was over", "bad"] };

// triedAgain reports whether a failure with the status is retried; 0 is no answer. Other failures end the job at once.
const triedAgain = (status) => !status || [408, 425, 429].includes(status) || status >= 500;

// whyDead is why a job is dead: a permanent failure may leave attempts unused.
function whyDead(job) {
  const status = job.last_error?.status || 0;
  if (job.attempts >= job.max_attempts && triedAgain(status)) return `out of attempts, after ${plural(job.attempts, "attempt")}`;
  return triedAgain(status) ? "failed with an error that is not retried" : `the upstream answered ${status}, which is not retried`;
}

// steps are the steps of a job, {what, at, tone, detail}, earliest first. A step to come has next.
export function steps(job) {
  const all = [{ what: "Admitted", at: job.created_at, tone: "move" }];
  for (const a of job.attempt_log || []) {
    const [says, tone] = outcomes[a.outcome] || [a.outcome, ""];
    all.push({ what: `Attempt ${a.attempt}: ${says}`, at: a.at, tone, detail: failure({ status: a.status, message: a.message || "" }) });
  }
  if (job.started_at && !(job.attempt_log || []).some((a) => Date.parse(a.at) >= Date.parse(job.started_at) && job.state !== "leased" && job.state !== "succeeded")) {
    all.push({ what: job.state === "leased" ? "Departed, being delivered" : "Departed", at: job.started_at, tone: "move" });
  }
  all.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  if (job.done && ends[job.state]) {
    const [what, tone] = ends[job.state];
    const detail = job.response ? `the upstream answered ${job.response.status}` : "";
    all.push({ what: job.state === "dead" ? `${what}: ${whyDead(job)}` : what, at: job.finished_at, tone, detail });
  } else if (job.state === "scheduled" || job.state === "retrying") {
    all.push({ what: job.state === "retrying" ? "Retry" : "Due", at: job.scheduled_at, tone: "", next: true });
  } else if (job.state === "queued") {
    all.push({ what: `Leaves as number ${count(job.position)}`, at: job.estimated_start_at, tone: "", next: true });
  }
  return all;
}

export class JobView {
  constructor({ tenant, id, parameters }) {
    this.tenant = tenant;
    this.id = id;
    this.title = `Job ${shortID(id)}`;
    this.parameters = parameters;
    this.pill = el("span", { class: "pill" });
    this.replayButton = el("button", { type: "button", class: "primary changes", hidden: true, onclick: () => this.replay() }, "Replay");
    this.cancelButton = el("button", { type: "button", class: "danger changes", hidden: true, onclick: () => this.cancel() }, "Cancel …");
    this.failed = el("p", { class: "notice bad", role: "alert", hidden: true });
    this.facts = el("dl", { class: "facts" });
    this.steps = el("ol", { class: "timeline" });
    this.payload = el("pre", { class: "payload", tabindex: 0, "aria-label": "Payload" });
    this.answer = el("pre", { class: "payload", tabindex: 0, "aria-label": "Answer of the upstream" });
    this.answerCard = el("section", { class: "card", hidden: true }, el("header", null, el("h2", null, "Answer of the upstream"), this.answerNote = el("small")), el("div", { class: "body" }, this.answer));
    this.node = el("div", { class: "stack" },
      el("div", { class: "headline" }, el("p", { class: "crumb" }, el("a", { href: tenantLink(tenant) }, tenant)), el("h1", { class: "mono" }, id), this.pill, el("div", { class: "actions" }, this.replayButton, this.cancelButton)),
      this.failed,
      this.about = el("section", { class: "card", hidden: true }, el("header", null, el("h2", null, "Job")), el("div", { class: "body" }, this.facts)),
      this.way = el("div", { class: "grid", hidden: true },
        el("section", { class: "card" }, el("header", null, el("h2", null, "Timeline")), el("div", { class: "body" }, this.steps)),
        el("section", { class: "card" }, el("header", null, this.payloadTitle = el("h2", null, "Payload"), this.payloadNote = el("small"), this.bodyButton = el("button", { type: "button", class: "show-body changes", hidden: true, onclick: () => { this.withBody = true; this.read(); } }, "Show the body")), el("div", { class: "body" }, this.payload))),
      this.answerCard);
    this.read();
  }

  want() { return { limit: 0 }; }

  on() {}

  async read() {
    clearTimeout(this.timer);
    let done = false;
    try {
      const said = await getText(tenantPath(this.tenant, "jobs", encodeURIComponent(this.id)) + (this.withBody ? "?request_body=true" : ""));
      if (this.gone) return;
      const job = JSON.parse(said);
      this.failed.hidden = true;
      this.show(job, said);
      done = job.done;
    } catch (problem) {
      if (this.gone) return;
      text(this.failed, problem.status === 404 ? "There is no such job of this tenant: its retention is over, or the id is wrong." : problem.message);
      this.failed.hidden = false;
      done = problem.status === 404;
    }
    if (!done) this.timer = setTimeout(() => this.read(), often);
  }

  show(job, said) {
    this.about.hidden = this.way.hidden = false;
    text(this.pill, job.state || "gone");
    attribute(this.pill, "data-tone", stateTone[job.state] || null);
    this.replayButton.hidden = job.state !== "dead";
    this.cancelButton.hidden = !["queued", "scheduled", "retrying"].includes(job.state);
    const wait = job.started_at ? span(job.created_at, job.started_at) : none;
    const facts = [["Tenant", job.tenant], ["Type", job.type], ["Route", job.route], ...Object.entries(job.headers || {}).map(([name, value]) => [`Header ${name}`, value]), ["Attempts", `${job.attempts} of ${job.max_attempts}`], ["Admitted", moment(job.created_at)], ["From admission to last departure", wait],
      job.finished_at && ["Ended", moment(job.finished_at)], job.last_error && ["Last error", failure(job.last_error)]].filter(Boolean);
    const shownFacts = JSON.stringify(facts);
    if (shownFacts !== this.shownFacts) {
      this.shownFacts = shownFacts;
      this.facts.replaceChildren(...facts.map(([k, v]) => el("div", null, el("dt", null, k), el("dd", null, v))));
    }
    const way = steps(job), shown = JSON.stringify(way);
    if (shown !== this.shownSteps) {
      this.shownSteps = shown;
      this.steps.replaceChildren(...way.map((s, i) => el("li", { "data-tone": s.tone || null }, el("div", { class: "what" }, s.what), s.detail && el("div", null, s.detail),
        s.at ? el("time", { datetime: s.at }, `${s.next ? "about " : ""}${moment(s.at)}`) : el("span", { class: "gap" }, "time unknown"), i > 0 && !s.next && s.at && el("span", { class: "gap" }, `, ${span(way[i - 1].at, s.at)} later`))));
    }
    const forwarded = job.request;
    text(this.payloadTitle, forwarded ? "Request" : "Payload");
    attribute(this.payload, "aria-label", forwarded ? "Request" : "Payload");
    const carries = job.hidden ? "It is not shown to viewers." : forwarded ? httpMessage(`${forwarded.method} ${forwarded.target || "/"}`, forwarded) : job.payload === undefined ? (job.payload_truncated ? "It is larger than 64 KiB and is not shown." : "It is deleted when the job ends, unless the job is dead.") : typeof job.payload === "string" ? job.payload : laidOut(member(said, "payload"));
    text(this.payload, carries);
    this.bodyButton.hidden = !forwarded || this.withBody || !forwarded.body_bytes;
    text(this.payloadNote, forwarded ? messageNote(forwarded) : job.payload_bytes ? bytes(job.payload_bytes) : "");
    this.answerCard.hidden = !job.response;
    if (job.response) {
      text(this.answerNote, [`status ${job.response.status}`, messageNote(job.response)].filter(Boolean).join(", "));
      text(this.answer, job.hidden ? "It is not shown to viewers." : httpMessage("", job.response));
    }
  }

  async replay() {
    this.replayButton.disabled = true;
    try {
      await replay(this.tenant, this.id);
      toast(`${shortID(this.id)} is queued again.`);
    } catch (problem) {
      toast(problem.message, "bad");
    }
    this.replayButton.disabled = false;
    this.read();
  }

  cancel() {
    ask({
      title: `Cancel ${shortID(this.id)}?`, confirm: "Cancel the job", danger: true, lines: ["It will not be delivered, and its capacity becomes free.", "This cannot be undone."],
      run: async () => {
        await del(tenantPath(this.tenant, "jobs", encodeURIComponent(this.id)));
        this.read();
        return `${shortID(this.id)} is cancelled.`;
      },
    });
  }

  gap() { this.read(); }

  destroy() {
    this.gone = true;
    clearTimeout(this.timer);
  }
}
