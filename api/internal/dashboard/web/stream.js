// The one event stream of the page. It reconnects with backoff and reports the state of the connection.
import { get, query, request, unreachable } from "./api.js";

const firstPause = 500, longestPause = 5000; // ms between two tries
const silence = 20000; // ms without any event: longer than the slowest scan and the server's heartbeat
const changeover = 3000; // ms for the next stream to begin where one has ended

export class Stream {
  // onEvent gets the name and the data of each event, onPhase "connecting", "live" or "lost".
  constructor(onEvent, onPhase) {
    this.onEvent = onEvent;
    this.onPhase = onPhase;
    this.phase = "connecting";
    this.pause = firstPause;
    this.parameters = {};
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (e) => { if (e.persisted) this.open(); });
  }

  // want sets what to stream. A stream with the same parameters is kept.
  want(parameters) {
    const path = "/v1/stream" + query(parameters);
    if (path === this.path) return;
    this.path = path;
    this.open();
  }

  open() {
    this.close();
    const source = new AbortController();
    this.source = source;
    this.follow(source).catch(() => {}).then(() => { if (this.source === source) this.ended(); });
    this.watch(this.ending ? changeover : silence);
  }

  close() {
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    if (this.source) this.source.abort();
    this.source = null;
  }

  // follow reads events until the stream ends. An EventSource could not send the key of the session.
  async follow(source) {
    const answer = await request(this.path, { method: "GET", headers: { Accept: "text/event-stream" }, signal: source.signal });
    if (!answer.ok) return;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done || this.source !== source) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) this.hear(event);
    }
  }

  // hear takes one event: its name and its data, each in one line.
  hear(event) {
    const name = /^event: (.*)$/m.exec(event)?.[1], data = /^data: (.*)$/m.exec(event)?.[1];
    if (!name || !data) return; // a heartbeat
    this.alive();
    this.onEvent(name, JSON.parse(data));
  }

  alive() {
    this.ending = false;
    this.pause = firstPause;
    this.watch();
    this.enter("live");
  }

  watch(patience = silence) {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.broken(), patience);
  }

  // ended opens the next stream at once, without a notice: the server ends each after ten minutes. If that fails, the connection is lost.
  ended() {
    if (this.phase !== "live" || this.ending) {
      this.broken();
      return;
    }
    this.ending = true;
    this.open();
  }

  // broken retries, also after an error status, as a proxy or a starting server may send.
  broken() {
    this.ending = false;
    this.close();
    this.enter("lost");
    this.timer = setTimeout(async () => {
      this.pause = Math.min(this.pause * 2, longestPause);
      try {
        await get("/v1/tenants?limit=1"); // an ended session shows as 401 here, and leads to the sign-in
      } catch (problem) {
        if (problem.status === unreachable || problem.status >= 500) {
          this.broken();
          return;
        }
      }
      this.open();
    }, this.pause);
  }

  enter(phase) {
    if (phase === this.phase) return;
    const before = this.phase;
    this.phase = phase;
    this.onPhase(phase, before);
  }
}
