// Derives rates from cumulative counts, sampled a few times a second. Times are seconds, rates per second.

const leastSpan = 1, mostSpan = 8; // s that an estimate covers
const soonest = 2; // s of few departures before there is an estimate
const usualStep = 0.5; // s between two samples at the most, of a stream that keeps up
export const givenBack = 1000; // the count falls by departures that were released unused; if it falls by more, it was reset
const enough = 24; // departures, after which the error of one is small

// Meter measures even traffic. A count seen four times a second says of two a second 0, 4, 0, 4: so it measures from one change of the count to
// another, over as many as it needs to be exact, and over no more, so that another rate shows at once.
export class Meter {
  constructor() { this.reset(); }

  // reset drops the history.
  reset() {
    this.edges = [];
    this.total = null;
    this.seen = null;
    this.slack = 0; // s by which samples are further apart than usual; within it, an unchanged count is no sign of an end
  }

  // turn starts anew at the present count, as after a change of the rate.
  turn() { this.edges.splice(0, this.edges.length - 1); }

  add(t, total) {
    if (this.total === null || total < this.total - givenBack) {
      this.reset();
      this.total = total;
      this.seen = t;
      return null;
    }
    total = Math.max(total, this.total);
    this.slack = Math.max(0, t - this.seen - usualStep);
    // The last of n departures since the last sample, evenly spaced, was half their distance ago on average: with one of them, in the middle.
    if (total !== this.total) this.edges.push({ t: t - (t - this.seen) / (2 * (total - this.total)), total });
    this.total = total;
    this.seen = t;
    return this.rate(t);
  }

  rate(now) {
    const last = this.edges.at(-1);
    if (!last) return 0;
    let k = this.edges.length - 2;
    while (k > 0) {
      const span = last.t - this.edges[k].t, n = last.total - this.edges[k].total;
      if (span >= mostSpan || (span >= leastSpan && n >= enough)) break;
      k--;
    }
    const first = this.edges[Math.max(0, Math.min(k, this.edges.length - 2))];
    if (k > 8) this.edges.splice(0, k - 8);
    const span = last.t - first.t, n = last.total - first.total;
    if (span < soonest && !(n >= enough && span >= leastSpan)) return now - last.t < soonest + this.slack ? null : 0;
    const rate = n / span;
    // No change for longer than the rate explains: it has ended, or is about to.
    const still = now - last.t;
    if (still > 4 / rate + 1 + this.slack) return 0;
    return still > 2 / rate + 0.5 + this.slack ? Math.min(rate, 1 / still) : rate;
  }
}

// Lanes keeps the last seconds of arrivals, refusals and departures for a picture of them. Arrivals are as jagged as they came: counted in spans that
// do not overlap, of half a second where samples are that close, else as wide as the time between two samples. So none is drawn twice, or finer than it
// is known.
export class Lanes {
  constructor(seconds = 60, width = 0.5) {
    this.seconds = seconds;
    this.width = width;
    this.spans = []; // {from, to, admitted, rejected}, the earliest first; the last half second is open for what comes
    this.line = []; // {t, rate, limit, further}
    this.meter = new Meter();
    this.limit = null; // the rate that departures keep to
    this.last = null; // the latest sample
    this.now = null; // the time up to which the samples reach
  }

  // gap starts anew after a time without samples, and keeps what is drawn.
  gap() {
    this.last = null;
    this.meter.reset();
    if (this.line.length) this.line.push({ t: this.now + 0.001, rate: null, limit: null, further: null });
  }

  // past adds the history of the server, as far as it is older than the own samples: samples as add takes them, with gap where the time before is
  // unknown, and spans {from, to, admitted, rejected}.
  past(samples, spans) {
    const seen = this.now ?? -Infinity;
    for (const s of spans) {
      const from = Math.max(s.from, seen), share = (s.to - from) / (s.to - s.from);
      if (share > 0) this.spans.push({ from, to: s.to, admitted: s.admitted * share, rejected: s.rejected * share });
    }
    for (const sample of samples) {
      if (sample.t <= seen) continue;
      if (sample.gap) this.gap();
      const since = this.last;
      this.sample(sample.t, sample);
      this.lineTo(since);
    }
    this.forget();
  }

  // add takes a sample: totals that only grow, and the rate that departures keep to, if any, with a further one that is stricter. It returns what has
  // happened since the last sample.
  add(t, sample) {
    const none = { admitted: 0, rejected: 0, departed: 0 };
    if (this.now !== null && t <= this.now) return none;
    if (this.last && (sample.admitted < this.last.admitted || sample.departed < this.last.departed - givenBack)) this.gap();
    const since = this.last;
    this.sample(t, sample);
    const seen = since ? { admitted: sample.admitted - since.admitted, rejected: sample.rejected - since.rejected, departed: Math.max(0, sample.departed - since.departed) } : none;
    if (since) this.spread(since.t, t, seen);
    this.forget();
    return seen;
  }

  sample(t, { admitted, rejected, departed, rate = null, further = null }) {
    if (this.limit !== null && Math.abs(rate - this.limit) > 0.03 * this.limit) this.meter.turn();
    this.limit = rate;
    this.now = t;
    this.last = { t, admitted, rejected, departed };
    this.line.push({ t, rate: this.meter.add(t, departed), limit: rate, further });
  }

  // lineTo draws the mean rate since the sample before, where the meter has no better one yet.
  lineTo(since) {
    const now = this.line.at(-1), step = since && now.t - since.t;
    if (now.rate !== null || !(step >= leastSpan * 0.9)) return;
    now.rate = Math.max(0, this.last.departed - since.departed) / step;
    this.line.splice(-1, 0, { ...now, t: since.t + 0.002 });
  }

  // spread distributes the arrivals between two samples over half seconds, by time, so that steady arrivals stay steady.
  spread(from, to, { admitted, rejected }) {
    if (to - from > this.width * 1.5) {
      this.spans.push({ from, to, admitted, rejected });
      return;
    }
    for (let at = from; at < to;) {
      let span = this.spans.at(-1);
      if (!(span?.open && Math.abs(span.to - at) < 0.001 && span.to - span.from < this.width - 0.001)) {
        this.spans.push(span = { open: true, from: at, admitted: 0, rejected: 0 });
      }
      const end = Math.min(to, span.from + this.width), share = (end - at) / (to - from);
      span.to = end;
      span.admitted += admitted * share;
      span.rejected += rejected * share;
      at = end;
    }
  }

  forget() {
    const from = this.now - this.seconds;
    while (this.line.length && this.line[0].t < from - 2) this.line.shift();
    while (this.spans.length && this.spans[0].to <= from) this.spans.shift();
  }

  // arrivals are columns: the middles of the spans, all that came in each per second where some of it was refused, and the admitted part. edges are
  // where each begins and ends.
  arrivals() {
    const data = [[], [], []], edges = [[], []], first = this.now - this.seconds;
    for (const { from, to, admitted, rejected } of this.spans) {
      const begin = Math.max(from, first);
      edges[0].push(begin);
      edges[1].push(to);
      data[0].push((begin + to) / 2);
      data[1].push(rejected > 0 ? (admitted + rejected) / (to - from) : null);
      data[2].push(admitted / (to - from));
    }
    return { data, edges };
  }

  departures() { return ["t", "rate", "limit", "further"].map((name) => this.line.map((p) => p[name])); }

  // rates are the present ones, over the last two seconds where traffic is jagged.
  rates() {
    const first = this.now - 2;
    let admitted = 0, rejected = 0, known = 0;
    for (const s of this.spans) {
      const time = s.to - Math.max(s.from, first);
      if (time <= 0) continue;
      admitted += s.admitted * time / (s.to - s.from);
      rejected += s.rejected * time / (s.to - s.from);
      known += time;
    }
    const rate = (n) => (known >= this.width ? n / known : null);
    return { arrivals: rate(admitted + rejected), rejected: rate(rejected), departures: this.line.at(-1)?.rate ?? null };
  }
}

const seconds = (at) => Date.parse(at) / 1000;

// spansOf converts the arrivals in the history of the server for Lanes.past.
export const spansOf = (arrivals) => arrivals.map((a) => ({ from: seconds(a.from), to: seconds(a.until), admitted: a.admitted, rejected: a.refused }));

// samplesOf converts the history of the server for Lanes.past.
export const samplesOf = (figures) => figures.map((f) => ({ ...f, t: seconds(f.at), admitted: f.admitted_total, rejected: f.rejected_total, departed: f.departed_total }));

// Series keeps named figures of the last seconds, at most one a step, for a chart.
export class Series {
  constructor(names, seconds = 300, step = 1) {
    this.names = names;
    this.seconds = seconds;
    this.step = step;
    this.xs = [];
    this.ys = names.map(() => []);
  }

  add(t, values) {
    if (this.xs.length && t - this.xs.at(-1) < this.step * 0.9) return false;
    this.xs.push(t);
    this.names.forEach((name, i) => this.ys[i].push(values[name] ?? null));
    while (this.xs[0] < t - this.seconds - 2) {
      this.xs.shift();
      for (const y of this.ys) y.shift();
    }
    return true;
  }

  gap() {
    if (!this.xs.length) return;
    this.xs.push(this.xs.at(-1) + 0.001);
    for (const y of this.ys) y.push(null);
  }

  data() { return [this.xs, ...this.ys]; }
}
