// The knobs of a tenant or a pool: those settings of the server's table that it marks for the page. Changes are a draft until they are applied. For a tenant, a forecast simulates the draft with the arrivals of the last hour. Applying a draft never overwrites a change that the reader has not seen.
import { el, text, attribute } from "./dom.js";
import { patch, poolPath, post, tenantPath } from "./api.js";
import { settings } from "./settings.js";
import { count, duration, furtherRates, plural, policyRate, timeOfDay } from "./format.js";

const units = [[1000, "per second"], [60000, "per minute"], [3600000, "per hour"], [86400000, "per day"]];
const patience = 350; // ms without a change before a forecast is asked for
const settling = 2000; // ms after a change in which figures from before it may arrive
const mantissas = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];

// nice are round numbers up to most, closer together where they are small, with those that are in use among them.
function nice(least, most, ...used) {
  const all = new Set([least, ...used]);
  for (let power = 1; power <= most; power *= 10) for (const m of mantissas) if (m * power <= most && Number.isInteger(m * power)) all.add(m * power);
  return [...all].filter((n) => n >= least).sort((a, b) => a - b);
}

const upTo = (n, least) => Math.max(least, 10 ** Math.ceil(Math.log10(Math.max(1, n * 4))));

// Knob is a field for one number, with a slider unless it is small.
class Knob {
  constructor({ id, label, least, most, high, say, extra, changed, small = false }) {
    Object.assign(this, { least, most, high, say, changed });
    this.slider = el("input", { type: "range", min: 0, step: 1, "aria-label": `${label}, slider`, id: id + "-slider", hidden: small });
    this.field = el("input", { type: "number", id, min: least, max: most, step: 1, required: true });
    this.from = el("small");
    this.reset = el("button", { type: "button", class: "link", hidden: true }, "Reset");
    this.reset.setAttribute("aria-label", `Reset ${label.toLowerCase()} to the configuration`);
    this.node = el("div", { class: "knob" }, el("div", { class: "line" }, el("label", { for: id }, label), this.field, extra), this.slider, el("div", { class: "source" }, this.from, this.reset));
    this.slider.addEventListener("input", () => {
      this.field.value = this.values[Number(this.slider.value)];
      this.mark();
      this.changed();
    });
    this.field.addEventListener("input", () => {
      this.place();
      this.changed();
    });
  }

  get value() { return this.field.value === "" ? NaN : Number(this.field.value); }

  // chosen is the value of the setting, as the API takes it.
  get chosen() { return this.value; }

  // name is a value of the setting in words.
  name(value) { return this.say(value); }

  same(value) { return this.value === value; }

  show(value) {
    if (document.activeElement === this.field && this.values) return; // the reader types
    if (this.value !== value) this.field.value = value;
    this.place();
  }

  // place puts the slider where the field is.
  place() {
    const value = Number.isFinite(this.value) ? Math.min(Math.max(this.value, this.least), this.most) : this.least;
    if (!this.values || value > this.values.at(-1) || !this.values.includes(value)) {
      this.values = nice(this.least, Math.min(this.most, upTo(value, this.high)), value);
      attribute(this.slider, "max", this.values.length - 1);
    }
    this.slider.value = this.values.indexOf(value);
    this.mark();
  }

  mark() {
    attribute(this.slider, "aria-valuetext", this.say(this.value));
    this.slider.style.setProperty("--at", `${100 * Number(this.slider.value) / Math.max(1, this.values.length - 1)}%`);
  }
}

// RateKnob is a knob for a rate, with its period. With least 0 it may be none, which is null in the API.
class RateKnob extends Knob {
  constructor(options) {
    const period = el("select", { "aria-label": `Period of the ${options.label.toLowerCase()}` });
    super({ ...options, most: 1e9, extra: period, say: (n) => (n === 0 ? "none" : `${count(n)} ${period.selectedOptions[0]?.textContent || ""}`) });
    this.period = period;
    period.addEventListener("change", () => {
      this.mark();
      this.changed();
    });
  }

  get chosen() { return this.value === 0 ? null : { limit: this.value, period_ms: Number(this.period.value) }; }

  name(rate) { return rate ? policyRate(rate) : "none"; }

  same(rate) { return rate ? this.value === rate.limit && Number(this.period.value) === rate.period_ms : this.value === 0; }

  show(rate) {
    const ms = rate?.period_ms ?? 1000;
    const options = units.some(([unit]) => unit === ms) ? units : [...units, [ms, `per ${duration(ms)}`]];
    if (this.period.options.length !== options.length || ![...this.period.options].some((o) => Number(o.value) === ms)) {
      this.period.replaceChildren(...options.map(([unit, name]) => el("option", { value: unit }, name)));
    }
    this.period.value = ms;
    super.show(rate?.limit ?? 0);
  }
}

const sourceText = (source) => (!source ? "" : source === "api" ? "set here" : source === "default" ? "the default" : `from the ${source.startsWith("tier:") ? source.replace(":", " ") : source}`);

// faces are how the page shows settings, by name: high is the usual end of the slider, and ofPools marks what counts in pools alone.
const faces = {
  rate: { high: 1000 },
  capacity: { high: 10000, say: (n) => plural(n, "job") },
  concurrency: { high: 256, say: (n) => (n === 0 ? "no cap" : plural(n, "delivery at once", "deliveries at once")) },
  weight: { high: 20, say: (n) => `${count(n)} in the pool`, ofPools: true },
  reserve: { high: 100, ofPools: true },
};

// knobOf makes the knob of a row of the table. A rate without a default may be none.
function knobOf({ name, label, kind, low, high, optional }, changed) {
  const face = faces[name] || { high: 100 };
  const options = { id: name, label, high: face.high, small: Boolean(face.ofPools), changed };
  if (kind === "rate") return new RateKnob({ ...options, least: optional ? 0 : 1 });
  return new Knob({ ...options, least: low, most: high || 1e9, say: face.say || count });
}

export class Knobs {
  // name is that of the tenant, or of the pool.
  constructor(name, isPool = false) {
    this.name = name;
    this.path = isPool ? poolPath(name) : tenantPath(name);
    this.forecasts = !isPool;
    this.touched = new Set(); // settings of the draft
    const changed = function () { this.owner.edited(this.setting); };
    this.knobs = Object.fromEntries(settings.filter((s) => s.pool || !isPool).map((s) => [s.name, knobOf(s, changed)]));
    for (const [setting, knob] of Object.entries(this.knobs)) Object.assign(knob, { setting, owner: this });
    this.knobs.rate.node.append(this.further = el("small", { hidden: true }));
    this.reason = el("input", { id: "reason", maxlength: 255, autocomplete: "off", placeholder: "Kept in the history" });
    this.apply = el("button", { class: "primary changes", disabled: true }, "Apply");
    this.discard = el("button", { type: "button", disabled: true, onclick: () => this.drop() }, "Discard");
    this.said = el("p", { class: "notice", role: "status", hidden: true });
    this.forecast = el("div", { class: "forecast", role: "status", hidden: isPool });
    this.showNoForecast();
    this.form = el("form", { novalidate: true }, Object.values(this.knobs).map((k) => k.node), this.forecast,
      el("div", { class: "field" }, el("label", { for: "reason" }, "Reason"), this.reason), this.said, el("div", { class: "apply" }, this.apply, this.discard));
    this.form.addEventListener("submit", (e) => {
      e.preventDefault();
      this.send();
    });
    this.node = el("section", { class: "card knobs", "aria-label": "Settings" }, el("header", null, el("h2", null, "Settings"), this.revision = el("small")), this.form);
    for (const [setting, knob] of Object.entries(this.knobs)) knob.reset.addEventListener("click", () => this.change({ [setting]: null }, "Reset."));
  }

  // show takes the tenant as it is now; a draft stays as it is.
  show(t) {
    if (t.revision < this.appliedRevision && Date.now() - this.appliedAt < settling) return; // it was read before the change
    this.tenant = t;
    text(this.revision, `revision ${t.revision}`);
    for (const [setting, knob] of Object.entries(this.knobs)) {
      const source = t.sources?.[setting];
      text(knob.from, `${knob.name(t[setting])}, ${sourceText(source)}`);
      knob.reset.hidden = source !== "api";
    }
    const pooled = Object.values(t.routes || {}).some((f) => f.pool);
    for (const [setting, knob] of Object.entries(this.knobs)) if (faces[setting]?.ofPools) knob.node.hidden = !pooled && t.sources?.[setting] === "default";
    this.further.hidden = !t.rates?.length;
    text(this.further, `and ${furtherRates(t.rates)}, ${sourceText(t.sources?.rates)}`);
    this.fill();
    if (this.base && t.revision !== this.base.revision && !this.busy && !this.warned) {
      this.warned = true;
      this.tell(`Changed meanwhile, revision ${t.revision}. Settings outside your draft show the new values.`, "warn");
    }
  }

  // fill sets the settings outside the draft to the values in force.
  fill() {
    for (const [setting, knob] of Object.entries(this.knobs)) if (!this.touched.has(setting)) knob.show(this.tenant[setting]);
    this.marks();
  }

  // draft is a merge patch of the touched settings.
  draft() { return Object.fromEntries([...this.touched].map((setting) => [setting, this.knobs[setting].chosen])); }

  marks() {
    for (const [setting, knob] of Object.entries(this.knobs)) knob.node.classList.toggle("changed", this.touched.has(setting));
    this.apply.disabled = this.discard.disabled = this.touched.size === 0 || Boolean(this.busy);
  }

  edited(setting) {
    if (!this.tenant) return;
    if (!this.base) this.base = this.tenant;
    if (this.knobs[setting].same(this.tenant[setting])) this.touched.delete(setting);
    else this.touched.add(setting);
    this.marks();
    this.said.hidden = true;
    clearTimeout(this.timer);
    if (this.touched.size === 0) this.forget();
    else if (this.forecasts) this.timer = setTimeout(() => this.predict(this.draft()), patience);
  }

  // forget ends the draft.
  forget() {
    this.base = null;
    this.warned = false;
    this.touched.clear();
    this.showNoForecast();
  }

  async predict(d) {
    if (!this.form.checkValidity()) {
      this.showNoForecast();
      return;
    }
    const asked = (this.asked = (this.asked || 0) + 1);
    if (Object.keys(d).every((setting) => faces[setting]?.ofPools)) {
      this.forecast.replaceChildren(el("small", null, "Weight and reserve have no forecast: what they give depends on the other flows of the pool."));
      return;
    }
    try {
      const p = await post(tenantPath(this.name, "predict"), d);
      if (asked !== this.asked || !this.base) return;
      this.showForecast(p);
    } catch (problem) {
      if (asked !== this.asked || !this.base) return;
      this.forecast.replaceChildren(el("small", null, problem.status === 404 || problem.status === 405 ? "This server makes no forecasts." : problem.message));
    }
  }

  showForecast(p) {
    if (!p.arrivals) {
      this.forecast.replaceChildren(el("small", null, "No job has arrived in the last hour, so there is no forecast."));
      return;
    }
    const row = (label, key, say) => {
      const a = p.now[key], b = p.then[key];
      const says = say(b);
      return el("tr", null, el("th", { scope: "row" }, label), el("td", null, say(a)),
        el("td", { class: says === say(a) ? "" : b < a ? "better" : "worse" }, says + (says === say(a) ? "" : b < a ? " ↓" : " ↑")));
    };
    this.forecast.replaceChildren(
      el("table", null,
        el("thead", null, el("tr", null, el("th", { scope: "col" }, `The ${plural(p.arrivals, "arrival")} since ${timeOfDay(p.from)}, again`), el("th", { scope: "col" }, "now"), el("th", { scope: "col" }, "then"))),
        el("tbody", null, row("Refused", "refused", count), row("Wait, median", "wait_p50_ms", duration), row("Wait, 95 %", "wait_p95_ms", duration),
          row("Wait, 99 %", "wait_p99_ms", duration), row("Longest wait", "wait_max_ms", duration), row("Deepest queue", "depth_max", count))));
  }

  // showNoForecast reserves the height, so that nothing jumps when a knob is touched.
  showNoForecast() {
    this.forecast.replaceChildren(el("small", null, "Move a knob to see a forecast: the arrivals of the last hour, simulated with the change."));
  }

  drop() {
    clearTimeout(this.timer);
    this.forget();
    this.said.hidden = true;
    this.fill();
  }

  async send() {
    const wrong = Object.values(this.knobs).map((k) => k.field).find((f) => !f.checkValidity());
    if (wrong) {
      wrong.reportValidity();
      return;
    }
    const d = this.draft();
    if (Object.keys(d).length > 0) await this.change(d, "Applied");
  }

  async change(body, done) {
    const base = this.base || this.tenant;
    this.busy = true;
    this.marks();
    try {
      const reason = this.reason.value.trim();
      const after = await patch(this.path, reason ? { ...body, reason } : body, { "If-Match": `"${base.revision}"` });
      this.busy = false;
      if (done === "Applied") this.forget();
      else for (const setting of Object.keys(body)) this.touched.delete(setting);
      if (this.touched.size === 0) this.forget();
      else this.base = after;
      this.reason.value = "";
      this.tenant = { ...this.tenant, ...after };
      this.appliedRevision = after.revision;
      this.appliedAt = Date.now();
      this.show(this.tenant);
      this.tell(done === "Applied" ? `Applied: ${this.says(body)}.` : done, "good");
    } catch (problem) {
      this.busy = false;
      if (problem.status === 412) {
        this.base = this.tenant;
        this.tell(`Somebody has changed ${this.name} meanwhile: it is ${policyRate(this.tenant.rate)}, capacity ${count(this.tenant.capacity)}, concurrency ${count(this.tenant.concurrency)} now. Apply again to overwrite it with your draft.`, "warn");
      } else {
        this.tell(problem.message, "bad");
      }
      this.marks();
    }
  }

  says(body) {
    return Object.entries(body).map(([k, v]) => `${k} ${v === null ? "as configured" : typeof v === "object" ? policyRate(v) : count(v)}`).join(", ");
  }

  tell(said, tone) {
    text(this.said, said);
    this.said.className = "notice " + tone;
    this.said.hidden = false;
  }

  destroy() { clearTimeout(this.timer); }
}
