// Client of the Sluice API: submit jobs, wait for them, and verify what Sluice sends. It needs Node
// 20 or a browser, and nothing else. Types are in sluice.d.ts.

const LONGEST_WAIT = 30; // seconds that the server waits for a job in one request
const BUSY = [429, 502, 503, 504]; // statuses after which the same request may succeed

/** An answer that is not a success. */
export class SluiceError extends Error {
  constructor(status, problem, retryAfter) {
    const kind = String(problem.type ?? "").split(":").at(-1);
    super(`${problem.detail ?? problem.title ?? "no reason given"} (${status} ${kind})`);
    this.name = new.target.name;
    this.status = status;
    this.kind = kind;
    this.problem = problem;
    this.retryAfter = retryAfter; // seconds; undefined if the server does not say
  }
}
/** The tenant's queue, its pool or the store is full, or requests come too fast: 429. */
export class QueueFull extends SluiceError {}
/** The server, or its store, cannot answer now: 502, 503 or 504. */
export class Unavailable extends SluiceError {}
/** A request is not from Sluice, or it is too old. */
export class InvalidSignature extends Error {}

async function failure(response) {
  let problem = {};
  try {
    const parsed = await response.json();
    if (parsed && typeof parsed === "object") problem = parsed;
  } catch {
    // not a problem: perhaps the page of a proxy
  }
  const kind = response.status === 429 ? QueueFull : BUSY.includes(response.status) ? Unavailable : SluiceError;
  return new kind(response.status, problem, seconds(response.headers.get("retry-after"), problem));
}

// seconds to wait: Retry-After, which gives each client a turn of its own, or retry_after_ms.
function seconds(header, problem) {
  if (!header) return problem.retry_after_ms > 0 ? problem.retry_after_ms / 1000 : undefined;
  if (/^\d+$/.test(header.trim())) return Number(header);
  const at = Date.parse(header);
  return Number.isNaN(at) ? undefined : Math.max(0, (at - Date.now()) / 1000);
}

const pause = (s, signal) =>
  new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const end = () => (clearTimeout(timer), reject(signal.reason));
    const timer = setTimeout(() => (signal?.removeEventListener("abort", end), resolve()), s * 1000);
    signal?.addEventListener("abort", end, { once: true });
  });

// refuse throws if there are options of other names. A misspelt token would make the caller a guest,
// and a misspelt tenant would leave out a check of verify.
const refuse = (others) => {
  const [name] = Object.keys(others);
  if (name !== undefined) throw new TypeError(`option ${name}: unknown`);
};

/** A client of the intake of one server. */
export class Client {
  #base;
  #headers = {};
  #retryFor;
  #timeout;
  #fetch;

  constructor(base, { token, tenant, retryFor = 60, timeout = 15, fetch = globalThis.fetch, ...others } = {}) {
    refuse(others);
    this.#base = new URL(base).href.replace(/\/+$/, "");
    if (!/^https?:/.test(this.#base)) throw new TypeError(`base: ${base}: must start with http:// or https://`);
    if (token) this.#headers.Authorization = `Bearer ${token}`;
    if (tenant !== undefined) this.#headers["Sluice-Tenant"] = tenant;
    this.#retryFor = retryFor;
    this.#timeout = timeout;
    this.#fetch = fetch;
  }

  async submit(submission, { key = crypto.randomUUID(), wait = 0, signal, ...others } = {}) {
    refuse(others);
    const headers = { "Idempotency-Key": JSON.stringify(key) };
    if (wait) headers.Prefer = `wait=${Math.min(wait, LONGEST_WAIT)}`;
    return this.#json("POST", "/v1/jobs", { body: submission, headers, longest: wait, signal });
  }

  async submitBatch(jobs, { atomic = false, signal, ...others } = {}) {
    refuse(others);
    const keyed = jobs.map((job) => ({ idempotency_key: crypto.randomUUID(), ...job }));
    return (await this.#json("POST", "/v1/jobs/batch", { body: { atomic, jobs: keyed }, signal })).items;
  }

  job(id, { signal, ...others } = {}) {
    refuse(others);
    return this.#json("GET", path(id), { signal });
  }

  async wait(id, { timeout = 300, signal, ...others } = {}) {
    refuse(others);
    for (const end = Date.now() + timeout * 1000; ; ) {
      const left = Math.max(0, Math.min(LONGEST_WAIT, Math.ceil((end - Date.now()) / 1000)));
      const job = await this.#json("GET", path(id), { headers: { Prefer: `wait=${left}` }, longest: left, signal });
      if (job.done) return job;
      if (Date.now() >= end) throw new DOMException(`job ${id} is ${job.state} after ${timeout} s`, "TimeoutError");
    }
  }

  async *states(id, { signal, ...others } = {}) {
    refuse(others);
    for (let last = ""; ; ) {
      const headers = { Accept: "text/event-stream" };
      if (last) headers["Last-Event-ID"] = last;
      const response = await this.#send("GET", `${path(id)}/events`, { headers, signal, stream: true });
      try {
        for await (const event of events(response.body)) {
          last = event.id || last;
          if (event.name !== "state") continue;
          const job = JSON.parse(event.data);
          yield job;
          if (job.done) return;
        }
      } catch (lost) {
        if (signal?.aborted || lost instanceof SyntaxError) throw lost; // otherwise go on behind the last event
      }
    }
  }

  cancel(id, { signal, ...others } = {}) {
    refuse(others);
    return this.#json("DELETE", path(id), { signal });
  }

  replay(id, { signal, ...others } = {}) {
    refuse(others);
    return this.#json("POST", `${path(id)}/replay`, { body: {}, signal });
  }

  async #json(method, where, options) {
    return (await this.#send(method, where, options)).json();
  }

  // #send repeats a request until it succeeds, is refused for good, or retryFor is over.
  async #send(method, where, { body, headers, longest = 0, signal, stream = false }) {
    const content = body === undefined ? undefined : JSON.stringify(body);
    const sent = { ...this.#headers, ...headers };
    if (content !== undefined) sent["Content-Type"] = "application/json";
    for (let attempt = 0, end = Date.now() + this.#retryFor * 1000; ; attempt++) {
      let rest = Math.min(5, 0.1 * 2 ** attempt) * (0.5 + Math.random() / 2);
      let why;
      const late = new AbortController(); // ends what takes too long; a stream may take any time
      const timer = setTimeout(() => late.abort(new DOMException("no answer in time", "TimeoutError")), (this.#timeout + longest) * 1000);
      try {
        const response = await this.#fetch(this.#base + where, {
          method, headers: sent, body: content, redirect: "error",
          signal: signal ? AbortSignal.any([signal, late.signal]) : late.signal,
        });
        if (response.ok) {
          if (stream) return response;
          return new Response(await response.arrayBuffer(), response);
        }
        why = await failure(response);
        if (!BUSY.includes(why.status) || why.kind === "never-fits") throw why;
        rest = why.retryAfter ?? rest;
      } catch (lost) {
        if (signal?.aborted || lost === why) throw lost;
        why = lost;
      } finally {
        clearTimeout(timer);
      }
      if (Date.now() + rest * 1000 > end) throw why;
      await pause(rest, signal);
    }
  }
}

const path = (id) => {
  if (typeof id !== "string") throw new TypeError("id: must be a text, such as the id of a job");
  return `/v1/jobs/${encodeURIComponent(id)}`;
};

// events are those of a stream of server-sent events (HTML, section 9.2).
async function* events(body) {
  let name = "message", id = "", data = [], rest = "";
  const decoder = new TextDecoder();
  for await (const piece of body) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split("\n");
    rest = lines.pop();
    for (const raw of lines) {
      const line = raw.replace(/\r$/, "");
      if (line === "") {
        if (data.length) yield { name, id, data: data.join("\n") };
        name = "message";
        data = [];
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") name = value;
      else if (field === "id") id = value;
      else if (field === "data") data.push(value);
    }
  }
}

/** Check that a callback is from Sluice and return its event, or throw InvalidSignature. */
export async function verify(headers, body, secrets, { tenant, tolerance = 300, now = Date.now() / 1000, ...others } = {}) {
  refuse(others);
  const find = (name) => (typeof headers.get === "function" ? headers.get(name) : headers[name]);
  const id = find("webhook-id"), at = find("webhook-timestamp"), signed = find("webhook-signature");
  if (!id || !signed || !/^\d{1,12}$/.test(at ?? "")) throw new InvalidSignature("the request is not signed");
  if (Math.abs(now - Number(at)) > tolerance) throw new InvalidSignature("the signature is too old or too early");
  const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
  const prefix = new TextEncoder().encode(`${id}.${at}.`);
  const text = new Uint8Array(prefix.length + bytes.length);
  text.set(prefix);
  text.set(bytes, prefix.length);
  const given = signed.split(" ").filter((part) => part.startsWith("v1,")).map((part) => part.slice(3));
  for (const secret of [secrets].flat()) {
    const key = await crypto.subtle.importKey("raw", decode(secret.replace(/^whsec_/, "")), { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
    for (const one of given) {
      const mac = decode(one);
      if (mac && (await crypto.subtle.verify("HMAC", key, mac, text))) {
        const event = JSON.parse(new TextDecoder().decode(bytes));
        if (tenant !== undefined && event.data?.tenant !== tenant) throw new InvalidSignature("the event is of another tenant");
        return event;
      }
    }
  }
  throw new InvalidSignature("no signature fits");
}

// decode is what base64 encodes; undefined if it is none.
function decode(text) {
  try {
    return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  } catch {
    return undefined;
  }
}
