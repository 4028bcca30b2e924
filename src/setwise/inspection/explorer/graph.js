// The weights of one graph. They are stored as levels, whose values are in `table`; level 0 is no weight.
// The strength of a pair is the larger of W_ij and W_ji: an edge is drawn if either direction is ≥ δ.

class Graph {
  static async unpack(size, packed, symbol, neighbourTitle) {
    const Type = packed.steps < 256 ? Uint8Array : Uint16Array;
    const [levels, diagonal] = await Promise.all([
      unpacked(packed.levels, Type),
      unpacked(packed.diagonal, Float32Array),
    ]);
    const graph = new Graph(size, packed, packed.symmetric ? square(levels, size) : levels, diagonal);
    return Object.assign(graph, { symbol, neighbourTitle });
  }

  constructor(size, packed, levels, diagonal) {
    this.size = size;
    this.levels = levels;
    this.diagonal = diagonal;
    this.error = packed.error;
    this.nonfinite = packed.nonfinite;
    this.pairs = (size * (size - 1)) / 2;
    this.top = packed.steps + 1;
    this.table = new Float64Array(this.top + 1);
    for (let level = 1; level <= this.top; level++) {
      this.table[level] = packed.low * Math.pow(packed.high / packed.low, (level - 1) / packed.steps);
    }
    const spread = packed.high / (packed.high - packed.low);
    this.digits = Number.isFinite(spread) ? clamp(2 + Math.ceil(Math.log10(spread)), 3, 8) : 3;
  }

  weight(i, j) {
    return i === j ? this.diagonal[i] : this.table[this.levels[i * this.size + j]];
  }

  format(weight) {
    return number(weight, this.digits);
  }

  strength(i, j) {
    return Math.max(this.levels[i * this.size + j], this.levels[j * this.size + i]);
  }

  /** Pairs i·n + j with a weight, in decreasing order, and the number of pairs at or above each level; cached. */
  get sorted() {
    if (this.cached) return this.cached;
    const n = this.size;
    const atLeast = new Uint32Array(this.top + 2);
    for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) atLeast[this.strength(i, j)]++;
    for (let level = this.top - 1; level > 0; level--) atLeast[level] += atLeast[level + 1];
    const next = atLeast.slice(1); // position of the next pair of each level
    const order = new Uint32Array(atLeast[1]);
    for (let i = 0; i < n; i++) {
      for (let j = i + 1; j < n; j++) {
        const level = this.strength(i, j);
        if (level > 0) order[next[level]++] = i * n + j;
      }
    }
    return (this.cached = { order, atLeast });
  }

  strengthAt(position) {
    const pair = this.sorted.order[position];
    return this.strength(Math.floor(pair / this.size), pair % this.size);
  }

  /** The number of pairs with weight ≥ δ. */
  pairsAbove(delta) {
    let low = 1;
    let high = this.top + 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.table[middle] >= delta) high = middle;
      else low = middle + 1;
    }
    return this.sorted.atLeast[low];
  }

  /** The threshold at a position of the slider, which is logarithmic in the number of pairs. */
  threshold(position) {
    const pairs = this.sorted.order.length;
    if (!pairs) return 0;
    return this.table[this.strengthAt(Math.round(Math.pow(pairs, 1 - position)) - 1)];
  }

  /** The position of the slider for a threshold. */
  position(delta) {
    const pairs = this.sorted.order.length;
    return pairs > 1 ? 1 - Math.log(Math.max(this.pairsAbove(delta), 1)) / Math.log(pairs) : 0;
  }

  /** The strongest neighbours of an element in decreasing order; those without weight are left out. */
  strongest(i, most) {
    const from = i * this.size;
    const best = [];
    for (let j = 0; j < this.size; j++) {
      const level = this.levels[from + j];
      if (!level || j === i || (best.length === most && level <= this.levels[from + best[most - 1]])) continue;
      let at = best.length;
      while (at > 0 && this.levels[from + best[at - 1]] < level) at--;
      best.splice(at, 0, j);
      if (best.length > most) best.pop();
    }
    return best;
  }

  /** The number of edges of each element, among the given number of strongest edges. */
  degrees(edges) {
    const degrees = new Float64Array(this.size);
    for (let k = 0; k < edges; k++) {
      const pair = this.sorted.order[k];
      degrees[Math.floor(pair / this.size)]++;
      degrees[pair % this.size]++;
    }
    return degrees;
  }

  /** The weight that each element receives from all others: the column sums without the diagonal. */
  get received() {
    if (this.sums) return this.sums;
    const sums = new Float64Array(this.size);
    for (let i = 0, at = 0; i < this.size; i++) {
      for (let j = 0; j < this.size; j++, at++) sums[j] += this.table[this.levels[at]];
    }
    return (this.sums = sums);
  }

  /** The weights of all others for one element; NaN for itself. */
  row(i) {
    const weights = new Float64Array(this.size);
    for (let j = 0; j < this.size; j++) weights[j] = j === i ? NaN : this.weight(i, j);
    return weights;
  }
}

/** A symmetric matrix with a zero diagonal from the pairs above the diagonal. */
function square(pairs, size) {
  const full = new pairs.constructor(size * size);
  for (let i = 0, at = 0; i < size; i++) {
    for (let j = i + 1; j < size; j++, at++) full[i * size + j] = full[j * size + i] = pairs[at];
  }
  return full;
}
