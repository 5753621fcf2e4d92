// Submits test jobs and bursts, where the server allows it.
import { el, text } from "./dom.js";
import { post, tenantPath } from "./api.js";
import { plural } from "./format.js";

const most = 1000; // of a burst
const atOnce = 6; // requests; a browser opens no more to one server

export class Submit {
  constructor(tenant, done) {
    this.tenant = tenant;
    this.done = done;
    this.type = el("input", { id: "submit-type", value: "test", maxlength: 255, required: true, autocomplete: "off" });
    this.many = el("input", { id: "submit-many", type: "number", min: 1, max: most, value: 1, required: true });
    this.cost = el("input", { id: "submit-cost", type: "number", min: 1, max: 100, value: 1, required: true });
    this.delay = el("input", { id: "submit-delay", type: "number", min: 0, max: 86400000, value: 0, required: true });
    this.payload = el("textarea", { id: "submit-payload", rows: 3, spellcheck: "false" });
    this.payload.value = "{\"sku\": 1}";
    this.said = el("p", { class: "hint", role: "status" });
    this.go = el("button", { class: "primary changes" }, "Submit");
    this.burst = el("button", { type: "button", class: "changes", onclick: () => { this.many.value = 60; this.send(); } }, "Burst of 60");
    const field = (label, node) => el("div", { class: "field" }, el("label", { for: node.id }, label), node);
    const form = el("form", { class: "body stack" },
      el("div", { class: "fields" }, field("Type", this.type), field("How many", this.many), field("Cost", this.cost), field("Delay, ms", this.delay)),
      field("Payload, JSON", this.payload), el("div", { class: "actions" }, this.go, this.burst), this.said);
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      this.send();
    });
    this.node = el("section", { class: "card", "aria-labelledby": "submit-title" }, el("header", null, el("h2", { id: "submit-title" }, "Submit test jobs")), form);
  }

  async send() {
    try {
      JSON.parse(this.payload.value);
    } catch {
      text(this.said, "The payload is not JSON.");
      return;
    }
    const body = { type: this.type.value };
    if (Number(this.cost.value) > 1) body.cost = Number(this.cost.value);
    if (Number(this.delay.value) > 0) body.delay_ms = Number(this.delay.value);
    const job = `${JSON.stringify(body).slice(0, -1)},"payload":${this.payload.value}}`; // as it was typed
    const n = Math.min(most, Math.max(1, Math.floor(Number(this.many.value) || 1)));
    const tally = { taken: 0, refused: 0, next: 0, failed: "" };
    this.go.disabled = this.burst.disabled = true;
    const sender = async () => {
      while (tally.next < n && !tally.failed) {
        tally.next++;
        try {
          await post(tenantPath(this.tenant, "jobs"), job);
          tally.taken++;
        } catch (problem) {
          if (problem.status === 429) tally.refused++;
          else tally.failed = problem.message;
        }
        text(this.said, `${plural(tally.taken, "job")} admitted${tally.refused ? `, ${tally.refused} refused: the queue is full` : ""}${tally.failed ? ". " + tally.failed : ""}`);
      }
    };
    await Promise.all(Array.from({ length: Math.min(atOnce, n) }, sender));
    this.go.disabled = this.burst.disabled = false;
    this.done();
  }
}
