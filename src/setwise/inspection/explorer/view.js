// The graph on two canvases: edges and elements on the lower one, the selected element and its neighbours on
// the upper one. Pointing redraws only the upper one; rotating, zooming and the threshold redraw both.

const CAMERA_DISTANCE = 3.2; // from the centre of a point cloud, in radii
const ZOOM_STEP = 1.3;

class View {
  constructor(stage, base, overlay) {
    Object.assign(this, { stage, base, overlay, draws: 0, milliseconds: 0, drawn: 0 });
    Object.assign(this, { set: null, waiting: new Set(), request: null });
    this.pen = base.getContext("2d");
    this.top = overlay.getContext("2d");
    this.resetView();
    new ResizeObserver(() => this.resize()).observe(stage);
  }

  /** Show a set in the initial view. */
  show(set) {
    this.set = set;
    const n = set.size;
    this.x = new Float32Array(n);
    this.y = new Float32Array(n);
    this.depth = new Float32Array(n).fill(1);
    this.grown = new Float32Array(n).fill(1);
    this.order = Uint32Array.from({ length: n }, (_, i) => i);
    this.solid = set.axes === 3;
    this.shape = set.kind === "patches" ? "patch" : set.kind === "images" ? "picture" : "dot";
    this.extent();
    this.resetView();
    this.resize();
  }

  /** Half the width and height to show, and the space per element, in the units of the set. */
  extent() {
    const { places, axes, size, slide, patch } = this.set;
    const half = [1e-3, 1e-3];
    let radius = 1e-3;
    for (let i = 0; i < size; i++) {
      for (const axis of [0, 1]) half[axis] = Math.max(half[axis], Math.abs(places[i * axes + axis]));
      if (this.solid) radius = Math.max(radius, Math.hypot(...places.subarray(i * 3, i * 3 + 3)));
    }
    this.middle = [0, 0];
    this.room = 0;
    if (this.shape === "patch") {
      const [width, height] = slide ? [slide.width, slide.height] : half.map((side) => side + patch);
      this.middle = [width / 2, height / 2];
      this.half = this.middle;
    } else if (this.solid) {
      this.half = [radius, radius];
      this.room = (1.2 * radius) / Math.sqrt(size);
    } else {
      const even = Math.sqrt((half[0] * half[1]) / size);
      if (this.shape === "picture") this.room = 0.8 * Math.max(spacing(places, size), even);
      if (size === 1) this.room = 1;
      this.half = half.map((side) => side + this.room / 2);
    }
    this.radius = radius;
  }

  resetView() {
    Object.assign(this, { zoom: 1, left: 0, down: 0, yaw: 0.6, pitch: 0.35 });
    this.refresh();
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.stage;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    Object.assign(this, { width, height, ratio });
    for (const canvas of [this.base, this.overlay]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.waiting.add("base");
    this.frame(); // immediately: resizing has cleared the canvas
  }

  /** Redraw before the next frame: both canvases, or only the overlay. */
  refresh(what = "base") {
    this.waiting.add(what);
    this.request ??= requestAnimationFrame(() => this.frame());
  }

  frame() {
    const began = performance.now();
    const all = this.waiting.has("base");
    cancelAnimationFrame(this.request);
    this.request = null;
    this.waiting.clear();
    if (!this.set || !this.width) return;
    if (all) {
      this.project();
      this.drawBase();
    }
    this.drawOverlay();
    this.draws++;
    this.milliseconds += performance.now() - began;
  }

  zoomBy(factor, x = this.width / 2, y = this.height / 2) {
    const before = this.zoom;
    this.zoom = clamp(before * factor, 1, 40);
    const grown = this.zoom / before;
    this.left = (x - this.width / 2) * (1 - grown) + this.left * grown;
    this.down = (y - this.height / 2) * (1 - grown) + this.down * grown;
    if (this.zoom === 1) this.left = this.down = 0;
    this.refresh();
    return grown !== 1;
  }

  pan(x, y) {
    this.left = clamp(this.left + x, -this.width * this.zoom, this.width * this.zoom);
    this.down = clamp(this.down + y, -this.height * this.zoom, this.height * this.zoom);
    this.refresh();
  }

  rotate(x, y) {
    this.yaw += x;
    this.pitch = clamp(this.pitch + y, -Math.PI / 2, Math.PI / 2);
    this.refresh();
  }

  /** Project the elements onto the canvas, in CSS pixels. */
  project() {
    const { places, axes, size, patch } = this.set;
    const margin = this.shape === "dot" ? 28 : 10;
    const fit = Math.min((this.width - 2 * margin) / this.half[0], (this.height - 2 * margin) / this.half[1]) / 2;
    this.unit = fit * this.zoom;
    const [across, down] = [this.width / 2 + this.left, this.height / 2 + this.down];
    this.corner = [across - this.middle[0] * this.unit, down - this.middle[1] * this.unit];
    if (this.solid) {
      this.projectSolid(across, down);
      return;
    }
    const flip = this.shape === "patch" ? 1 : -1; // y grows downward for pixels, upward otherwise
    const shift = this.shape === "patch" ? patch / 2 : 0;
    for (let i = 0; i < size; i++) {
      this.x[i] = this.corner[0] + (places[i * axes] + shift) * this.unit;
      this.y[i] = this.corner[1] + flip * (places[i * axes + 1] + shift) * this.unit;
    }
  }

  /** Rotate about the vertical axis, the last one, then tilt toward the viewer. */
  projectSolid(across, down) {
    const { places, size } = this.set;
    const [cos, sin, high, deep] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    for (let i = 0; i < size; i++) {
      const [x, y, z] = [places[3 * i], places[3 * i + 1], places[3 * i + 2]];
      const near = sin * x - cos * y;
      const toward = (near * high + z * deep) / this.radius;
      const grown = CAMERA_DISTANCE / (CAMERA_DISTANCE - toward);
      this.x[i] = across + (cos * x + sin * y) * this.unit * grown * 0.9;
      this.y[i] = down - (z * high - near * deep) * this.unit * grown * 0.9;
      this.depth[i] = (toward + 1) / 2;
      this.grown[i] = grown;
    }
    this.order.sort((a, b) => this.depth[a] - this.depth[b]);
  }

  /** Side of a square or diameter of a dot, in pixels. */
  side(i) {
    if (this.shape === "patch") return this.set.patch * this.unit;
    if (this.shape === "picture") return clamp(this.room * this.unit * this.grown[i], 10, 160 * this.zoom);
    const even = Math.sqrt((this.width * this.height) / Math.max(this.set.size, 1));
    return clamp(0.26 * even, 5, 20) * Math.sqrt(this.zoom) * (this.solid ? this.grown[i] * 0.8 : 1);
  }

  /** Left, top, width and height of an element; images keep their aspect ratio. */
  box(i) {
    const side = this.side(i);
    const { width, height } = this.shape === "picture" ? this.set.sheet : { width: 1, height: 1 };
    const [wide, tall] = [width, height].map((length) => (side * length) / Math.max(width, height));
    return [this.x[i] - wide / 2, this.y[i] - tall / 2, wide, tall];
  }

  border(side) {
    return this.shape === "picture" ? clamp(side / 14, 1, 4) : 0;
  }

  drawBase() {
    const pen = this.pen;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const { slide, fills } = this.set;
    if (slide) {
      const [wide, tall] = [slide.width * this.unit, slide.height * this.unit];
      pen.drawImage(fills ? slide.grey : slide.image, ...this.corner, wide, tall);
    }
    this.drawn = drawEdges(pen, this);
    for (const i of this.order) this.drawElement(pen, i, this.solid ? 0.3 + 0.7 * clamp(this.depth[i], 0, 1) : 1);
    pen.globalAlpha = 1;
    if (this.solid) this.drawAxes(pen);
  }

  drawElement(pen, i, opacity) {
    const { slide, sheet, strengths, fills } = this.set;
    const [left, top, wide, tall] = this.box(i);
    pen.globalAlpha = opacity;
    pen.fillStyle = fills?.[i] ?? palette.element;
    if (this.shape === "dot") {
      pen.beginPath();
      pen.arc(this.x[i], this.y[i], wide / 2, 0, 2 * Math.PI);
      pen.fill();
      return;
    }
    if (this.shape === "picture") {
      const border = this.border(wide);
      pen.fillRect(left - border, top - border, wide + 2 * border, tall + 2 * border);
    }
    if (sheet && (this.shape === "picture" || !slide)) this.drawPicture(pen, i, left, top, wide, tall);
    if (this.shape === "patch" && fills) {
      pen.globalAlpha = opacity * (0.12 + 0.5 * strengths[i]);
      pen.fillRect(left, top, wide, tall);
    }
  }

  /** Draw the image of an element, cut from the sheet or the slide. */
  drawPicture(pen, i, left, top, wide, tall) {
    const { slide, sheet, places, patch } = this.set;
    if (sheet) {
      const { image, columns, width, height } = sheet;
      pen.imageSmoothingEnabled = wide * this.ratio < 2 * width;
      const [across, down] = [(i % columns) * width, Math.floor(i / columns) * height];
      pen.drawImage(image, across, down, width, height, left, top, wide, tall);
      pen.imageSmoothingEnabled = true;
    } else if (slide && patch) {
      const shrink = slide.image.naturalWidth / slide.width;
      const cut = [places[2 * i], places[2 * i + 1], patch, patch].map((value) => value * shrink);
      pen.drawImage(slide.image, ...cut, left, top, wide, tall);
    }
  }

  /** Draw three short axes in the corner, which show the orientation. */
  drawAxes(pen) {
    const [cos, sin, high, deep] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    const ends = { x: [cos, -sin * deep], y: [sin, cos * deep], z: [0, high] };
    const [left, top] = [34, this.height - 34];
    pen.strokeStyle = pen.fillStyle = palette.soft;
    pen.lineWidth = 1.2;
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (const [name, [x, up]] of Object.entries(ends)) {
      pen.beginPath();
      pen.moveTo(left, top);
      pen.lineTo(left + 18 * x, top - 18 * up);
      pen.stroke();
      pen.fillText(name, left + 26 * x, top - 26 * up);
    }
  }

  /** Draw the focused element, its strongest neighbours, and the element under the pointer. */
  drawOverlay() {
    const pen = this.top;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const { focus, neighbours, hover, graph, dims } = this.set;
    this.base.classList.toggle("dim", focus !== null && dims);
    if (focus !== null) {
      const most = neighbours.length ? graph.weight(focus, neighbours[0]) : 1;
      pen.strokeStyle = palette.accent;
      for (const j of neighbours) {
        const share = graph.weight(focus, j) / most;
        pen.globalAlpha = 0.35 + 0.65 * share;
        pen.lineWidth = 1 + 2 * share;
        pen.beginPath();
        pen.moveTo(this.x[focus], this.y[focus]);
        pen.lineTo(this.x[j], this.y[j]);
        pen.stroke();
      }
      for (const j of [...neighbours].reverse()) this.drawHighlighted(pen, j, palette.accent, 1.5);
      this.drawHighlighted(pen, focus, palette.ink, 3);
    }
    if (hover !== null && hover !== focus) this.drawHighlighted(pen, hover, palette.ink, 1.5);
    pen.globalAlpha = 1;
  }

  drawHighlighted(pen, i, colour, width) {
    const [left, top, wide, tall] = this.box(i);
    if (this.shape === "patch" && this.set.slide) this.drawPicture(pen, i, left, top, wide, tall);
    else this.drawElement(pen, i, 1);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.beginPath();
    if (this.shape === "dot") pen.arc(this.x[i], this.y[i], wide / 2 + width / 2 + 1, 0, 2 * Math.PI);
    else {
      const gap = this.border(wide) + width / 2 + (this.shape === "picture" ? 1.5 : 0);
      pen.rect(left - gap, top - gap, wide + 2 * gap, tall + 2 * gap);
    }
    pen.stroke();
  }

  /** The element at a point of the canvas, or null. */
  hit(x, y) {
    let nearest = null;
    let best = Infinity;
    for (const i of this.set ? this.order : []) {
      const [across, down] = [Math.abs(this.x[i] - x), Math.abs(this.y[i] - y)];
      const far = this.shape === "dot" ? Math.hypot(across, down) : Math.max(across, down);
      if (far <= Math.max(this.side(i) / 2 + 3, 8) && far <= best) [nearest, best] = [i, far];
    }
    return nearest;
  }

  /** The nearest element in a direction of the screen; deviation from the direction costs extra. */
  toward(from, across, down) {
    let next = from;
    let best = Infinity;
    for (let i = 0; i < this.set.size; i++) {
      const [x, y] = [this.x[i] - this.x[from], this.y[i] - this.y[from]];
      const ahead = x * across + y * down;
      const cost = ahead + 2.5 * Math.abs(x * down - y * across);
      if (i !== from && ahead > 0.5 && cost < best) [next, best] = [i, cost];
    }
    return next;
  }
}

/** The lower quartile of the distances to the nearest neighbour. */
function spacing(places, size) {
  const nearest = new Float32Array(size).fill(Infinity);
  for (let i = 0; i < size; i++) {
    for (let j = 0; j < i; j++) {
      const far = Math.hypot(places[2 * i] - places[2 * j], places[2 * i + 1] - places[2 * j + 1]);
      if (far < nearest[i]) nearest[i] = far;
      if (far < nearest[j]) nearest[j] = far;
    }
  }
  return size > 1 ? nearest.sort()[Math.floor(size / 4)] : 0;
}
