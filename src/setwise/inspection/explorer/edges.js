// The graph of one set. Weights are levels, of which `table` has the values; level 0 is no weight.
// A pair i–j is as strong as the larger of W_ij and W_ji: the edge stays while either direction does.

class Graph {
  static async unpack(size, packed, toWhom) {
    const Type = packed.steps < 256 ? Uint8Array : Uint16Array;
    const [levels, own] = await Promise.all([unpacked(packed.levels, Type), unpacked(packed.own, Float32Array)]);
    const graph = new Graph(size, packed, packed.symmetric ? square(levels, size) : levels, own);
    return Object.assign(graph, { toWhom });
  }

  constructor(size, packed, levels, own) {
    this.size = size;
    this.levels = levels;
    this.own = own;
    this.error = packed.error;
    this.strange = packed.strange;
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
    return i === j ? this.own[i] : this.table[this.levels[i * this.size + j]];
  }

  words(weight) {
    return number(weight, this.digits);
  }

  strength(i, j) {
    return Math.max(this.levels[i * this.size + j], this.levels[j * this.size + i]);
  }

  /** Pairs i·n + j with any weight, the strongest first, and how many are at least of each level: sorted once. */
  get sorted() {
    if (this.cached) return this.cached;
    const n = this.size;
    const atLeast = new Uint32Array(this.top + 2);
    for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) atLeast[this.strength(i, j)]++;
    for (let level = this.top - 1; level > 0; level--) atLeast[level] += atLeast[level + 1];
    const next = atLeast.slice(1); // where the next pair of a level goes
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

  /** How many pairs stay at a threshold. */
  kept(delta) {
    let low = 1;
    let high = this.top + 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.table[middle] >= delta) high = middle;
      else low = middle + 1;
    }
    return this.sorted.atLeast[low];
  }

  /** The threshold at a share of the slider, which runs over the logarithm of how many pairs stay. */
  threshold(share) {
    const pairs = this.sorted.order.length;
    if (!pairs) return 0;
    return this.table[this.strengthAt(Math.round(Math.pow(pairs, 1 - share)) - 1)];
  }

  share(delta) {
    const pairs = this.sorted.order.length;
    return pairs > 1 ? 1 - Math.log(Math.max(this.kept(delta), 1)) / Math.log(pairs) : 0;
  }

  /** Whom an element listens to most, in falling order; what has no weight is left out. */
  strongest(i, most) {
    const from = i * this.size;
    const found = [];
    for (let j = 0; j < this.size; j++) {
      const level = this.levels[from + j];
      if (!level || j === i || (found.length === most && level <= this.levels[from + found[most - 1]])) continue;
      let at = found.length;
      while (at > 0 && this.levels[from + found[at - 1]] < level) at--;
      found.splice(at, 0, j);
      if (found.length > most) found.pop();
    }
    return found;
  }

  /** How many edges each element has among the strongest. */
  degrees(edges) {
    const degrees = new Float64Array(this.size);
    for (let k = 0; k < edges; k++) {
      const pair = this.sorted.order[k];
      degrees[Math.floor(pair / this.size)]++;
      degrees[pair % this.size]++;
    }
    return degrees;
  }

  /** How much all others together listen to each element. */
  get heard() {
    if (this.sums) return this.sums;
    const sums = new Float64Array(this.size);
    for (let i = 0, at = 0; i < this.size; i++) {
      for (let j = 0; j < this.size; j++, at++) sums[j] += this.table[this.levels[at]];
    }
    return (this.sums = sums);
  }

  /** What all others weigh for one element; its own place is empty. */
  row(i) {
    const weights = new Float64Array(this.size);
    for (let j = 0; j < this.size; j++) weights[j] = j === i ? NaN : this.weight(i, j);
    return weights;
  }
}

/** A symmetric matrix with an empty diagonal, from the pairs above it. */
function square(pairs, size) {
  const full = new pairs.constructor(size * size);
  for (let i = 0, at = 0; i < size; i++) {
    for (let j = i + 1; j < size; j++, at++) full[i * size + j] = full[j * size + i] = pairs[at];
  }
  return full;
}
