// Makes rates of cumulative counts that are seen a few times a second. Times are seconds, rates per second.

const leastSpan = 1, mostSpan = 8; // s that an estimate looks back
const soonest = 2; // s of few departures before there is an estimate
const usualStep = 0.5; // s between two looks at the most, of a stream that keeps up
const givenBack = 1000; // departures that were given back unused are taken off again; where more are missing, the count has begun anew
const mostLooks = 120; // of a tenant in the table
const enough = 24; // departures, after which the error of one is small

// Meter measures even traffic. A count seen four times a second says of two a second 0, 4, 0, 4: so it looks from one change of the count to
// another, over as many as it needs to be exact, and over no more, so that another rate shows at once.
export class Meter {
  constructor() { this.reset(); }

  // reset forgets: what comes now has nothing to do with what was.
  reset() {
    this.edges = [];
    this.total = null;
    this.seen = null;
    this.slack = 0; // s by which looks are further apart than usual: no change between two of them says nothing
  }

  // turn begins anew at the present count, as after a change of the rate.
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
    // The last of n departures since the last look, evenly spaced, was half their distance ago on average: with one of them, in the middle.
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

// Lanes keeps the last seconds of arrivals, refusals and departures for a picture of them. Arrivals are as jagged as they came: counted in bins of
// equal width, to which a look gives its share by time, so that steady arrivals stay steady.
export class Lanes {
  constructor(seconds = 60, width = 0.5) {
    this.seconds = seconds;
    this.width = width;
    this.clear();
  }

  clear() {
    this.bins = new Map(); // index to {admitted, rejected}
    this.line = []; // {t, rate}
    this.meter = new Meter();
    this.arriving = new Meter();
    this.last = null;
    this.now = null;
  }

  // gap begins anew after a time in which nothing was seen, and keeps what is drawn.
  gap() {
    this.last = null;
    this.meter.reset();
    this.arriving.reset();
    if (this.line.length) this.line.push({ t: this.now + 0.001, rate: null });
  }

  add(t, totals) {
    if (this.now !== null && t <= this.now) return { admitted: 0, rejected: 0, departed: 0 };
    const before = this.last;
    const fell = before && (totals.admitted < before.admitted || totals.departed < before.departed - givenBack);
    if (fell) this.gap();
    const since = fell ? null : before;
    this.now = t;
    this.last = { t, ...totals };
    this.arriving.add(t, totals.admitted + totals.rejected);
    this.line.push({ t, rate: this.meter.add(t, totals.departed) });
    const from = t - this.seconds - 2;
    while (this.line.length && this.line[0].t < from) this.line.shift();
    for (const k of this.bins.keys()) {
      if (k * this.width >= from) break;
      this.bins.delete(k);
    }
    if (!since) return { admitted: 0, rejected: 0, departed: 0 };
    const seen = { admitted: totals.admitted - since.admitted, rejected: totals.rejected - since.rejected, departed: Math.max(0, totals.departed - since.departed) };
    this.spread(since.t, t, seen);
    return seen;
  }

  spread(from, to, seen) {
    for (let k = Math.floor(from / this.width); k * this.width < to; k++) {
      const share = (Math.min(to, (k + 1) * this.width) - Math.max(from, k * this.width)) / (to - from);
      const bin = this.bins.get(k) || { admitted: 0, rejected: 0 };
      bin.admitted += seen.admitted * share;
      bin.rejected += seen.rejected * share;
      this.bins.set(k, bin);
    }
  }

  // record lays down arrivals of before that the server remembers, counted in bins of the same width, where nothing was seen here.
  record({ from, width_ms, admitted, refused }) {
    if (width_ms !== this.width * 1000) return;
    const first = Math.round(Date.parse(from) / width_ms);
    admitted.forEach((n, i) => {
      if (!this.bins.has(first + i)) this.bins.set(first + i, { admitted: n, rejected: refused[i], recorded: true });
    });
    this.bins = new Map([...this.bins].sort(([a], [b]) => a - b));
  }

  // arrivals are columns: the middles of the bins, all that came in each per second where some of it was refused, the admitted part, and that
  // where it was recorded, not seen.
  arrivals() {
    const xs = [], all = [], admitted = [], recorded = [];
    for (const [k, bin] of this.bins) {
      xs.push((k + 0.5) * this.width);
      all.push(bin.rejected > 0 ? (bin.admitted + bin.rejected) / this.width : null);
      admitted.push(bin.recorded ? null : bin.admitted / this.width);
      recorded.push(bin.recorded ? bin.admitted / this.width : null);
    }
    return [xs, all, admitted, recorded];
  }

  departures() { return [this.line.map((p) => p.t), this.line.map((p) => p.rate)]; }

  // rates are the present ones, over the last two seconds where traffic is jagged.
  rates() {
    const whole = Math.floor(this.now / this.width);
    let admitted = 0, rejected = 0, n = 0;
    for (let k = whole - 4; k < whole; k++) {
      const bin = this.bins.get(k);
      if (!bin) continue;
      admitted += bin.admitted;
      rejected += bin.rejected;
      n++;
    }
    const span = n * this.width || 1;
    return { arrivals: n ? (admitted + rejected) / span : null, rejected: n ? rejected / span : null, departures: this.line.at(-1)?.rate ?? null };
  }
}

// A longer time between two looks is one in which nothing was seen.
export const longestStep = 12; // s

// Seen keeps what the table has shown of tenants, so that the page of one does not begin with nothing.
export class Seen {
  constructor() { this.tenants = new Map(); } // to [{t, item}], the earliest first

  note(t, item) {
    let looks = this.tenants.get(item.tenant);
    if (!looks) this.tenants.set(item.tenant, looks = []);
    if (looks.length && t <= looks.at(-1).t) return;
    looks.push({ t, item });
    if (looks.length > mostLooks) looks.shift();
  }

  // forget drops tenants that the table has not shown for long.
  forget(t) {
    for (const [name, looks] of this.tenants) if (looks.at(-1).t < t - mostLooks) this.tenants.delete(name);
  }

  of(tenant) { return this.tenants.get(tenant) || []; }
}

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
