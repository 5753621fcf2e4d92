// Formats figures briefly. Numbers are grouped as 12,345; times are local.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

export const none = "–";

export const count = (n) => (Number.isFinite(n) ? whole.format(n) : none);

// short is count, from a hundred thousand on in thousands and millions.
export const short = (n) => (!Number.isFinite(n) ? none : Math.abs(n) < 1e5 ? whole.format(n) : compact.format(n));

export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || one + "s"}`;

// figure keeps three digits.
export function figure(n) {
  if (!Number.isFinite(n)) return none;
  const size = Math.abs(n);
  if (size === 0) return "0";
  if (size >= 1e5) return compact.format(n);
  if (size >= 99.95) return whole.format(n);
  const digits = size >= 9.995 ? 1 : size >= 0.1 ? 2 : 4;
  return String(Number(n.toFixed(digits)));
}

export const perSecond = (n) => (Number.isFinite(n) ? figure(n) + "/s" : none);

const periods = [[86400000, "d"], [3600000, "h"], [60000, "m"], [1000, "s"], [1, "ms"]];

// policyRate is a rate nearly as the configuration writes it: 10/s, 5/24h, 12,000/s.
export function policyRate(rate) {
  if (!rate) return none;
  for (const [ms, unit] of periods) {
    if (rate.period_ms % ms === 0) {
      const n = rate.period_ms / ms;
      return `${count(rate.limit)}/${n === 1 ? "" : n}${unit}`;
    }
  }
  return none;
}

export const ratePerSecond = (rate) => (rate ? rate.limit * 1000 / rate.period_ms : NaN);

// furtherRates are those that hold beside the rate: 1,000/d burst 1,000 by jobs. Empty if there are none.
export const furtherRates = (rates) => (rates || []).map((r) => `${policyRate(r)}${r.burst > 1 ? ` burst ${count(r.burst)}` : ""}${r.by === "jobs" ? " by jobs" : ""}`).join(", ");

export const allRates = (p) => [policyRate(p.rate), furtherRates(p.rates)].filter(Boolean).join(" and ");

// strictest is the lowest of the rates, per second. It is what effective_rate_per_s is a part of.
export const strictest = (p) => Math.min(...[p.rate, ...(p.rates || [])].map(ratePerSecond));

// countsJobs says whether the strictest rate counts jobs, not costs.
export const countsJobs = (p) => (p.rates || []).some((r) => r.by === "jobs" && ratePerSecond(r) === strictest(p));

// leftOf is the part of its rate that a flow has, less than 1 after a hold or in a slower pool.
export const leftOf = (p) => p.effective_rate_per_s / strictest(p);

// rateNow is the rate, after the effective rate where that is lower. said is the text of the rate.
export const rateNow = (p, said) => (leftOf(p) < 0.99 ? `${figure(leftOf(p) * p.rate.limit)} of ${said}` : said);

export function duration(ms) {
  if (!Number.isFinite(ms)) return none;
  if (ms < 0) return "0 ms";
  if (ms < 1) return `${Number(ms.toFixed(2))} ms`;
  if (ms < 10) return `${Number(ms.toFixed(1))} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 9950) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

export function bytes(n) {
  if (!Number.isFinite(n)) return none;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; n >= 1000 && i < units.length - 1; i++) n /= 1000;
  return `${i === 0 ? n : n.toPrecision(3)} ${units[i]}`;
}

const dateOf = (t) => (t instanceof Date ? t : new Date(t));

export const timeOfDay = (t) => clock.format(dateOf(t));

// moment is the time of day, with the day where it is another one than today.
export function moment(t) {
  if (!t) return none;
  const at = dateOf(t);
  return at.toDateString() === new Date().toDateString() ? clock.format(at) : day.format(at);
}

// shortID is the random part of a job's id.
export const shortID = (id) => (id.length > 16 ? `${id.slice(0, 8)}…${id.slice(-6)}` : id);

const limits = {
  rate: { says: "at the rate", tone: "good", why: "Jobs wait and leave as fast as the rate allows." },
  concurrency: { says: "at the cap", tone: "warn", why: "Deliveries in flight have reached the concurrency cap: the upstream is slower than the rate." },
  pool: { says: "in its pool", tone: "good", why: "Jobs wait for their turn in a pool: its rate is shared by weight and reserves." },
  upstream: { says: "slow upstream", tone: "warn", why: "Deliveries to this upstream fill all the slots that a worker reserves for it, so they end more slowly than the rate allows. Other routes have their own slots." },
  late: { says: "late", tone: "warn", why: "For seconds, many jobs have arrived from Redis too late to leave on time and were released: Redis is too slow for worker.lease, or the machine of the worker is too busy." },
  flows: { says: "its flows", tone: "good", why: "The pool could give more, but each of its flows waits for its own rate, hold or pause, or has its part of the concurrency." },
  workers: { says: "no worker", tone: "warn", why: "Jobs may leave, but no worker takes them: all slots are in use (worker.concurrency), or no worker is live." },
  auth: { says: "no token", tone: "warn", why: "The authorization server gives no token for the upstream. Jobs wait and spend no attempt; the card of the route has the reason." },
  held: { says: "held", tone: "warn", why: "Held: the upstream asked for a pause or does not answer. Jobs wait; delivery is retried automatically." },
  paused: { says: "paused", tone: "warn", why: "No job leaves until an operator resumes it." },
  idle: { says: "idle", tone: "", why: "No job waits." },
};

const heldBecause = {
  retry_after: "and sent Retry-After",
  breaker: "and the circuit breaker of the route is not closed",
  flow_breaker: "and the flow's own circuit breaker is not closed; other flows of the route are well",
  hand_off: "asynq does not accept its jobs",
  auth: "no token for the upstream can be had",
  codec: "a worker has no key to decrypt the next job",
};

// held describes a hold: its end and its cause, as far as the server reports them.
function held({ held_until: until, held_by: by, held_status: status, hold }) {
  if (!until) return limits.held;
  const to = by !== "retry_after" || !hold ? "" : hold === "pool" ? " to one tenant, because of hold: pool" : " to two tenants";
  const answer = ["hand_off", "auth", "codec"].includes(by) ? "" : status ? `the upstream answered ${status} ` : "the last delivery got no whole answer ";
  return {
    says: `held until ${moment(until)}`, tone: "warn",
    why: `Held until ${moment(until)}${by ? `: ${answer}${heldBecause[by] || by}${to}` : ""}. Jobs wait; then one is retried automatically.`,
  };
}

// limitedBy describes what delays the next job, with a tone.
export const limitedBy = (t) => {
  if (t.draining) return { says: "draining", tone: "warn", why: "New jobs are refused; waiting jobs still leave." };
  if (t.denied) return { says: "denied", tone: "warn", why: "New jobs are refused with 403, as the tenant may not use this; waiting jobs still leave." };
  if (t.paused) return limits.paused;
  return t.limited_by === "held" ? held(t) : limits[t.limited_by] || { says: t.limited_by || none, tone: "" };
};

export const stateTone = { succeeded: "good", dead: "bad", expired: "bad", cancelled: "warn", retrying: "warn", leased: "move", queued: "", scheduled: "" };

// failure is the last error of a job with its detail, and with its status where the message lacks it.
export const failure = (e) => (!e ? "" : [e.status && !e.message.includes(String(e.status)) && e.status, e.message, e.detail].filter(Boolean).join(": "));

const headerOf = (message, name) => (Object.entries(message.headers || {}).find(([k]) => k.toLowerCase() === name) || [])[1];

// bodyText is the body of a request or an answer where it is text, else what it is.
function bodyText(m) {
  if (m.body_encoding !== "base64") return m.body;
  const size = m.body_bytes ?? Math.floor(m.body.replace(/=+$/, "").length * 3 / 4);
  const what = [headerOf(m, "content-type") || "unknown type", headerOf(m, "content-encoding")].filter(Boolean).join(", ");
  return `${m.body_truncated && !m.body_bytes ? `more than ${bytes(size)}` : bytes(size)} of ${what}: not text, not shown`;
}

// httpMessage is a request or an answer as text: its first line, its headers and its body.
export const httpMessage = (first, m) => [[first, ...Object.entries(m.headers || {}).sort().map(([k, v]) => `${k}: ${v}`)].filter(Boolean).join("\n"), bodyText(m)].filter(Boolean).join("\n\n");

// messageNote is the size of the body, where it is known, and whether only its start is shown.
export const messageNote = (m) => [m.body_bytes > 0 && `${bytes(m.body_bytes)} of body`, m.body_truncated && "shortened"].filter(Boolean).join(", ");
