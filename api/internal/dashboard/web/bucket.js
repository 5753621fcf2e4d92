// The bucket: what arrives rains in as it comes, what waits is the water, what leaves drips out evenly, what is refused falls over the rim.
//
// Water level and counts are exact. Drops are true in number up to ten a sample for arrivals, and up to `stream` a second for departures; what is
// more flows together. A reader who wants no motion gets the level alone.
import { colour, onTheme, stillness } from "./theme.js";
import { short } from "./format.js";

const rest = 64; // ms between two pictures, which makes four to a sample: calm motion needs no more, and each takes the browser about a millisecond
const gravity = 900; // px/s²
const stream = 9; // departures a second from which drops join
const bead = 46; // px/s at which what has left flows away
const slimmest = 1.75; // the height of the bucket by its width at most
const mostDrops = 10; // of one sample

export class Bucket {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.level = 0;
    this.state = { depth: 0, rim: 1, running: 0, departures: 0, closed: false, marks: true };
    this.rain = [];
    this.drips = [];
    this.due = []; // drops to come, by time
    this.owed = 0;
    this.wave = 0;
    this.swell = 0;
    this.flow = 0;
    this.paint();
    this.offTheme = onTheme(() => { this.paint(); this.wake(); });
    this.resize = new ResizeObserver(() => this.fit());
    this.resize.observe(canvas);
    this.quiet = () => { this.rain = []; this.drips = []; this.due = []; this.wake(); };
    stillness.addEventListener("change", this.quiet);
    this.fit();
  }

  destroy() {
    this.gone = true;
    clearTimeout(this.resting);
    cancelAnimationFrame(this.asked);
    this.offTheme();
    this.resize.disconnect();
    stillness.removeEventListener("change", this.quiet);
  }

  paint() {
    this.colours = {
      arrivals: colour("--arrivals"), faint: colour("--arrivals", 0.28), departures: colour("--departures"), water: colour("--water"), deep: colour("--water-deep"),
      glass: colour("--edge"), inside: colour("--sunken"), refused: colour("--refused"), soft: colour("--soft"), line: colour("--line"), warn: colour("--warn"),
    };
    this.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  }

  fit() {
    const w = this.canvas.clientWidth, h = this.canvas.clientHeight;
    if (!w || !h) return;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    this.w = w;
    this.h = h;
    this.canvas.width = Math.round(w * ratio);
    this.canvas.height = Math.round(h * ratio);
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const labels = w >= 150 ? 48 : 0;
    const wide = Math.min(w - labels - 26, 190);
    const bottom = h - 74, top = Math.max(46, bottom - wide * slimmest);
    this.g = { cx: 12 + wide / 2 + (w - labels - 26 - wide) * 0.35, half: wide / 2, taper: wide * 0.11, top, bottom, channel: h - 37, spout: 13, mouth: top - 24, labels };
    this.draw();
  }

  // see takes a sample: the state, and the changes since the last one, ms ago.
  see(state, seen, ms) {
    Object.assign(this.state, state);
    if (!stillness.matches && !document.hidden) {
      const now = performance.now();
      this.shed(now, ms, seen.admitted, false);
      this.shed(now, ms, seen.rejected, true);
    }
    this.wake();
  }

  shed(now, ms, n, refused) {
    if (!(n > 0)) return;
    const k = Math.min(Math.ceil(n), mostDrops);
    const size = 2.1 + Math.min(2.2, Math.log2(1 + n / k) * 0.6);
    for (let i = 0; i < k; i++) this.due.push({ at: now + Math.random() * Math.min(ms, 1000), size, refused });
    if (this.due.length > 80) this.due.splice(0, this.due.length - 80);
  }

  // wake requests a drawing in the next frame, which after a sample is that of the charts, and again while something moves. Between two pictures no
  // frame is requested: an empty frame costs the browser as much.
  wake() {
    clearTimeout(this.resting);
    if (this.asked || this.gone) return;
    this.asked = requestAnimationFrame((now) => {
      this.asked = 0;
      const moves = this.move(Math.min(now - (this.last ?? now - rest), 200) / 1000, now);
      this.draw();
      this.last = moves ? now : null;
      if (moves) this.resting = setTimeout(() => this.wake(), rest);
    });
  }

  target() { return Math.max(0, Math.min(1, this.state.rim > 0 ? this.state.depth / this.state.rim : this.state.depth > 0 ? 1 : 0)); }

  // move goes on by dt seconds; it reports whether there is more to come.
  move(dt, now) {
    const to = this.target();
    if (stillness.matches) {
      this.level = to;
      this.flow = this.state.closed ? 0 : this.state.departures || 0;
      return false;
    }
    this.level += (to - this.level) * (1 - Math.exp(-dt / 0.22));
    if (Math.abs(to - this.level) < 0.0008) this.level = to;
    const rate = this.state.closed ? 0 : this.state.departures || 0;
    this.flow += (rate - this.flow) * (1 - Math.exp(-dt / 0.3));
    if (Math.abs(rate - this.flow) < 0.01) this.flow = rate;
    this.swell *= Math.exp(-dt / 0.9);
    this.wave += dt * (1.1 + this.swell * 1.5);
    const g = this.g;
    if (!g) return false;
    const surface = this.surface();
    this.due = this.due.filter((d) => {
      if (d.at > now) return true;
      const spread = d.refused ? 6 : Math.min(16, g.half * 0.3);
      this.rain.push({ x: g.cx - g.half * 0.32 + (Math.random() - 0.5) * spread, y: g.mouth + 2, vx: d.refused ? 60 + Math.random() * 30 : 10, vy: 40, size: d.size, refused: d.refused, life: 1 });
      return false;
    });
    this.rain = this.rain.filter((p) => {
      p.vy += gravity * dt;
      p.x += p.vx * dt;
      p.y += p.vy * dt;
      if (!p.refused) {
        if (p.y < surface) return true;
        this.swell = Math.min(1, this.swell + 0.07 * p.size / 2);
        return false;
      }
      if (!p.over && p.y >= g.top - 5) { // off the rim, once
        p.over = true;
        p.y = g.top - 5;
        p.vy = -130 - Math.random() * 60;
        p.vx = (g.cx + g.half + 14 - p.x) * 2.6;
      }
      if (p.over && p.y > g.top + 12) p.life -= dt * 1.5;
      return p.life > 0 && p.y < this.h - 20;
    });
    // Departures are as even as a clock.
    const dripping = this.flow > 0 && this.flow < stream;
    this.owed = dripping ? this.owed + this.flow * dt : Math.min(this.owed, 0.99);
    while (this.owed >= 1) {
      this.owed -= 1;
      this.drips.push({ x: g.cx, y: g.bottom + 16, vy: 20 });
    }
    this.drips = this.drips.filter((d) => {
      if (d.y < g.channel) {
        d.vy += gravity * dt;
        d.y = Math.min(d.y + d.vy * dt, g.channel);
        return true;
      }
      d.x -= bead * dt;
      return d.x > -4;
    });
    return this.rain.length > 0 || this.due.length > 0 || this.drips.length > 0 || this.flow > 0 || this.level !== to || this.swell > 0.02;
  }

  surface() {
    const { top, bottom } = this.g;
    const full = top + 7;
    return bottom - 3 - (bottom - 3 - full) * this.level;
  }

  draw() {
    const p = this.pen, g = this.g, c = this.colours;
    if (!g) return;
    p.clearRect(0, 0, this.w, this.h);
    p.lineCap = "round";
    p.lineJoin = "round";
    this.drawWater(p, g, c);
    this.drawSpout(p, g, c);
    for (const d of this.rain) {
      p.globalAlpha = Math.max(0, Math.min(1, d.life));
      p.fillStyle = d.refused ? c.refused : c.arrivals;
      p.beginPath();
      p.ellipse(d.x, d.y, d.size * 0.82, d.size * 1.25, 0, 0, 7);
      p.fill();
    }
    p.globalAlpha = 1;
    this.drawGlass(p, g, c);
    this.drawOutflow(p, g, c);
  }

  drawSpout(p, g, c) {
    const x = g.cx - g.half * 0.32;
    p.strokeStyle = c.faint;
    p.lineWidth = 9;
    p.lineCap = "butt";
    p.beginPath();
    p.moveTo(-2, g.spout);
    p.lineTo(x - 8, g.spout);
    p.quadraticCurveTo(x + 1, g.spout, x + 1, g.spout + 9);
    p.lineTo(x + 1, g.mouth);
    p.stroke();
    p.lineCap = "round";
  }

  sides(p, g, from, inset = 0) {
    const at = (y) => g.half - inset - g.taper * (y - g.top) / (g.bottom - g.top);
    const round = 13;
    p.moveTo(g.cx - at(from), from);
    p.lineTo(g.cx - at(g.bottom - round), g.bottom - round);
    p.quadraticCurveTo(g.cx - at(g.bottom), g.bottom, g.cx - at(g.bottom) + round, g.bottom);
    p.lineTo(g.cx + at(g.bottom) - round, g.bottom);
    p.quadraticCurveTo(g.cx + at(g.bottom), g.bottom, g.cx + at(g.bottom - round), g.bottom - round);
    p.lineTo(g.cx + at(from), from);
  }

  // drawWater fills the glass. The waves are drawn only where it is, which costs less than to clip them to its shape.
  drawWater(p, g, c) {
    p.fillStyle = c.inside;
    p.beginPath();
    this.sides(p, g, g.top, 0);
    p.closePath();
    p.fill();
    if (this.level <= 0) return;
    const y = Math.min(this.surface(), g.bottom - 5);
    const high = stillness.matches ? 0 : Math.min(1.3 + this.swell * 2.6, (g.bottom - y) * 0.4);
    const fill = p.createLinearGradient(0, y, 0, g.bottom);
    fill.addColorStop(0, c.water);
    fill.addColorStop(1, c.deep);
    p.fillStyle = fill;
    p.globalCompositeOperation = "source-atop";
    for (const [shade, shift, lift, foot] of [[0.45, 2.1, 2, Math.min(y + 8, g.bottom + 2)], [1, 0, 0, g.bottom + 2]]) { // the front wave hides the rest of the one behind it
      p.globalAlpha = shade;
      p.beginPath();
      p.moveTo(g.cx - g.half - 2, foot);
      for (let x = -g.half - 2; x <= g.half + 2; x += 4) {
        p.lineTo(g.cx + x, y - (lift && high ? lift : 0) + high * Math.sin(x / 19 + this.wave * 1.7 + shift) + high * 0.5 * Math.sin(x / 8 - this.wave * 2.3 + shift));
      }
      p.lineTo(g.cx + g.half + 2, foot);
      p.fill();
    }
    p.globalCompositeOperation = "source-over";
  }

  drawGlass(p, g, c) {
    p.strokeStyle = c.glass;
    p.lineWidth = 2;
    p.beginPath();
    this.sides(p, g, g.top);
    p.stroke();
    p.lineWidth = 4;
    p.beginPath();
    p.moveTo(g.cx - g.half - 4, g.top);
    p.lineTo(g.cx - g.half + 5, g.top);
    p.moveTo(g.cx + g.half - 5, g.top);
    p.lineTo(g.cx + g.half + 4, g.top);
    p.stroke();
    const full = g.top + 7, zero = g.bottom - 3;
    p.lineWidth = 1;
    p.fillStyle = c.soft;
    p.font = this.font;
    p.textBaseline = "middle";
    for (let i = 1; i <= 4; i++) {
      const y = zero - (zero - full) * i / 4;
      const x = g.cx + g.half - g.taper * (y - g.top) / (g.bottom - g.top);
      p.strokeStyle = c.glass;
      p.globalAlpha = 0.75;
      p.beginPath();
      p.moveTo(x - (i % 2 ? 5 : 9), y);
      p.lineTo(x - 1, y);
      p.stroke();
      p.globalAlpha = 1;
      if (i % 2 === 0 && g.labels && this.state.rim > 0) p.fillText(short(this.state.rim * i / 4), g.cx + g.half + 9, y + 1);
    }
  }

  drawOutflow(p, g, c) {
    // The hole, and the valve in it.
    p.fillStyle = c.glass;
    p.fillRect(g.cx - 6, g.bottom, 12, 8);
    if (this.state.closed) {
      p.strokeStyle = c.warn;
      p.lineWidth = 4;
      p.beginPath();
      p.moveTo(g.cx - 13, g.bottom + 12);
      p.lineTo(g.cx + 13, g.bottom + 12);
      p.stroke();
    }
    // The channel that what has left flows away in.
    p.strokeStyle = c.line;
    p.lineWidth = 2;
    p.beginPath();
    p.moveTo(-2, g.channel + 5);
    p.lineTo(g.cx + 12, g.channel + 5);
    p.stroke();
    p.fillStyle = p.strokeStyle = c.departures;
    const still = stillness.matches && this.flow > 0;
    if (this.flow >= stream || still) {
      const thick = Math.min(6, 2.2 + Math.log10(Math.max(1, this.flow / stream)) * 1.5);
      p.lineWidth = thick;
      p.beginPath();
      p.moveTo(g.cx, g.bottom + 11);
      p.lineTo(g.cx, g.channel - 5);
      p.quadraticCurveTo(g.cx, g.channel, g.cx - 8, g.channel);
      p.lineTo(-4, g.channel);
      p.stroke();
      return;
    }
    for (const d of this.drips) {
      p.beginPath();
      const falls = d.y < g.channel;
      p.ellipse(d.x, d.y - (falls ? 0 : 0.5), falls ? 2.6 : 3.2, falls ? 4 : 3.2, 0, 0, 7);
      p.fill();
    }
    if (this.flow > 0) { // the next drop gathers
      p.beginPath();
      p.arc(g.cx, g.bottom + 9, 1 + 2.4 * Math.min(1, this.owed), 0, 7);
      p.fill();
    }
  }
}
