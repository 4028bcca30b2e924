// A chart of curves as SVG; it adapts to the available width and is read with the pointer or the arrow keys.

const MARGIN = { top: 10, right: 14, bottom: 26, left: 54 };
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];

/** About `wanted` round numbers from low to high. */
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) values.push(k * step);
  return values;
}

function logTicks(low, high) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const within = (factors) => {
    const values = [];
    for (let power = from; power <= to; power++) values.push(...factors.map((factor) => factor * 10 ** power));
    return values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  };
  const whole = within([1]);
  if (whole.length < 2) return within([1, 2, 5]);
  return whole.filter((_, i) => i % Math.ceil(whole.length / 6) === 0);
}

/** A scale from values to pixels, linear or logarithmic. */
function scale(low, high, from, to, log) {
  const f = log ? Math.log : (value) => value;
  if (!(f(high) > f(low))) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const slope = (to - from) / (f(high) - f(low));
  const scaled = (value) => from + (f(value) - f(low)) * slope;
  return Object.assign(scaled, { low, high, log });
}

class Chart {
  constructor({ title, axis, curves, height = 230, marks = false }) {
    Object.assign(this, { title, axis, height, marks, log: false, at: null });
    this.curves = curves.map((curve) => ({ ...curve, points: curve.points.filter(([x]) => x !== null) }));
    this.steps = [...new Set(this.curves.flatMap((curve) => curve.points.map(([x]) => x)))].sort((a, b) => a - b);
    const values = this.curves.flatMap((curve) => curve.points.map(([, y]) => y)).filter((y) => y !== null);
    this.range = values.reduce(([low, high], y) => [Math.min(low, y), Math.max(high, y)], [Infinity, -Infinity]);
    this.build();
  }

  build() {
    this.svg = makeSvg("svg", { class: "plot", height: this.height, "aria-hidden": "true" });
    this.where = make("span", { class: "where" });
    this.toggle = make("button", { type: "button", class: "small", "aria-pressed": "false" }, "log scale");
    this.toggle.hidden = !(this.range[0] > 0 && this.range[1] > this.range[0]);
    this.toggle.addEventListener("click", () => {
      this.log = !this.log;
      this.toggle.setAttribute("aria-pressed", this.log);
      this.redraw();
    });
    this.values = this.curves.map(() => make("output"));
    const legend = make("ul", { class: "key" }, ...this.curves.map((curve, c) => this.entry(curve, c)));
    legend.hidden = this.curves.length < 2; // the title names a single curve
    const names = this.curves.map((curve) => curve.name).join(", ");
    this.plot = make(
      "div",
      {
        class: "plot-frame",
        tabindex: "0",
        role: "group",
        "aria-label": `${this.title} against ${this.axis}: ${names}. Use the left and right arrow keys to read values.`,
      },
      this.svg,
    );
    this.node = make(
      "figure",
      { class: "chart" },
      make("figcaption", {}, make("span", { class: "chart-title" }, this.title), this.where, this.toggle),
      this.plot,
      legend,
    );
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.read(null));
    this.plot.addEventListener("blur", () => this.read(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.redraw()).observe(this.plot);
  }

  entry(curve, c) {
    const sample = makeSvg(
      "svg",
      { width: 22, height: 10, "aria-hidden": "true" },
      makeSvg("line", { x1: 1, x2: 21, y1: 5, y2: 5, ...this.stroke(c) }),
    );
    return make("li", {}, sample, make("span", {}, curve.name), this.values[c]);
  }

  stroke(c) {
    return { class: `line series-${(c % SERIES) + 1}`, "stroke-dasharray": DASHES[Math.floor(c / SERIES) % 4] };
  }

  redraw() {
    const width = this.plot.clientWidth;
    if (!width || !this.steps.length || !Number.isFinite(this.range[0])) return;
    const { top, right, bottom, left } = MARGIN;
    const low = this.log || this.range[0] < 0 || this.range[0] > this.range[1] / 2 ? this.range[0] : 0;
    const pad = this.log ? 0 : (this.range[1] - low) * 0.04;
    this.y = scale(low && low - pad, this.range[1] + pad, this.height - bottom, top, this.log);
    this.x = scale(this.steps[0], this.steps.at(-1), left, width - right, false);
    this.svg.setAttribute("width", width);
    this.cursor = makeSvg("g", { class: "cursor" });
    this.svg.replaceChildren(...this.axes(width), ...this.curves.map((curve, c) => this.line(curve, c)), this.cursor);
    this.read(this.at);
  }

  axes(width) {
    const { right, bottom, left } = MARGIN;
    const levels = this.log ? logTicks(this.y.low, this.y.high) : ticks(this.y.low, this.y.high, 4);
    const digits = clamp(2 + Math.ceil(-Math.log10((this.y.high - this.y.low) / Math.abs(this.y.high) || 1)), 3, 7);
    const lines = levels.map((value) =>
      makeSvg(
        "g",
        { class: "tick" },
        makeSvg("line", { x1: left, x2: width - right, y1: this.y(value), y2: this.y(value) }),
        makeSvg("text", { x: left - 8, y: this.y(value) + 4, "text-anchor": "end" }, tidy(value, digits)),
      ),
    );
    const steps = ticks(this.x.low, this.x.high, Math.max(2, Math.floor(width / 110))).filter(
      (value) => Number.isInteger(value) || !this.steps.every(Number.isInteger),
    );
    const marks = steps.map((value) =>
      makeSvg("text", { x: this.x(value), y: this.height - bottom + 18, "text-anchor": "middle" }, tidy(value, 3)),
    );
    return [...lines, makeSvg("g", { class: "tick" }, ...marks)];
  }

  line(curve, c) {
    let path = "";
    const dots = [];
    const there = (k) => curve.points[k] && curve.points[k][1] !== null; // log scales have positive curves only
    curve.points.forEach(([x, y], k) => {
      if (!there(k)) return;
      const [left, top] = [this.x(x).toFixed(1), this.y(y).toFixed(1)];
      path += `${there(k - 1) ? "L" : "M"}${left} ${top}`;
      const alone = !there(k - 1) && !there(k + 1);
      if (this.marks || alone) dots.push(makeSvg("circle", { cx: left, cy: top, r: 3 }));
    });
    const { class: name, ...dash } = this.stroke(c);
    return makeSvg("g", { class: name }, makeSvg("path", { d: path, ...dash }), ...dots);
  }

  point(event) {
    if (!this.x) return;
    const left = event.clientX - this.plot.getBoundingClientRect().left;
    this.read(nearest(this.steps, (step) => Math.abs(this.x(step) - left)));
  }

  key(event) {
    const last = this.steps.length - 1;
    const now = this.at ?? -1;
    const to = { ArrowLeft: Math.max(now - 1, 0), ArrowRight: Math.min(now + 1, last), Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.read(to);
    const values = this.curves.map((curve, c) => `${curve.name} ${this.values[c].textContent}`);
    announce(`${this.axis} ${number(this.steps[to])}: ${values.join(", ")}`);
  }

  /** Show the value of each curve at the nearest step; null hides them. */
  read(at) {
    this.at = at;
    if (!this.cursor) return;
    this.cursor.replaceChildren();
    this.where.textContent = at === null ? "" : `${this.axis} ${number(this.steps[at], 4)}`;
    const left = at === null ? 0 : this.x(this.steps[at]);
    const line = makeSvg("line", { x1: left, x2: left, y1: MARGIN.top, y2: this.height - MARGIN.bottom });
    if (at !== null) this.cursor.append(line);
    this.curves.forEach((curve, c) => {
      const point = at === null ? null : curve.points[nearest(curve.points, ([x]) => Math.abs(x - this.steps[at]))];
      this.values[c].textContent = point ? number(point[1], 4) : "";
      if (point && this.curves.length === 1) this.where.textContent += `: ${number(point[1], 4)}`;
      if (point && point[1] !== null) {
        const [left, top] = [this.x(point[0]), this.y(point[1])];
        this.cursor.append(makeSvg("circle", { cx: left, cy: top, r: 4, class: `series-${(c % SERIES) + 1}` }));
      }
    });
  }
}

function nearest(items, distance) {
  let best = null;
  items.forEach((item, i) => {
    if (best === null || distance(item) < distance(items[best])) best = i;
  });
  return best;
}

/** Format the number of a tick without redundant digits. */
function tidy(value, digits) {
  if (Math.abs(value) >= 1e4 && Math.abs(value) < 1e9) {
    const [size, letter] = Math.abs(value) >= 1e6 ? [1e6, "M"] : [1e3, "k"];
    return signed(`${+(value / size).toPrecision(digits)}${letter}`);
  }
  const short = +value.toPrecision(digits);
  return signed(Math.abs(short) < 1e-3 && short ? short.toExponential() : String(short));
}
