// What stands around the graph: colours and their legends, the element that is looked at, scores, energies.

const NEIGHBOURS = 8;
const nameOf = (i) => `Element ${count(i + 1)}`;
const groupOf = (set, i) => (set.groups.length ? set.groups[set.group[i]] : null);

/** The ways in which the elements of a set can be coloured; `values` gives one number each. */
function colourings(set) {
  const whole = {
    group: set.groups.length ? { title: "Group" } : null,
    importance: set.importance
      ? { title: "Importance", values: () => Float64Array.from(set.importance, (value) => value ?? NaN) }
      : null,
    plain: { title: "None" },
  };
  if (set.graphless) return whole;
  return {
    ...whole,
    heard: { title: "How much it is heard", values: () => set.graph.heard },
    degree: { title: "Number of edges", values: () => set.graph.degrees(set.edges) },
    chosen: {
      title: "Weight for the chosen element",
      values: () => (set.focus === null ? null : set.graph.row(set.focus)),
    },
  };
}

/** Colour the elements of a set in one of its ways, and say in the legend what the colours mean. */
function colourElements(set, way) {
  const { title, values } = colourings(set)[way];
  set.fills = set.strengths = null;
  set.dims = way !== "chosen";
  const legend = byId("colours");
  legend.replaceChildren();
  if (way === "group") {
    const colours = palette.series;
    const of = (group) => (group < SERIES - 1 || set.groups.length === SERIES ? colours[group] : colours[SERIES - 1]);
    set.fills = set.group.map(of);
    set.strengths = new Float64Array(set.size).fill(1);
    const named = set.groups.length > SERIES ? [...set.groups.slice(0, SERIES - 1), "others"] : set.groups;
    legend.append(make("span", { class: "legend-title" }, title), ...named.map((name, g) => chip(colours[g], name)));
    return;
  }
  const numbers = values?.();
  if (!numbers) {
    if (way === "chosen") legend.append("Choose an element to see what the others weigh for it.");
    return;
  }
  const { low, high, signs } = reach(numbers);
  const colours = signs ? palette.bothSigns : palette.oneSign;
  const shares = numbers.map((value) => (high > low ? clamp((value - low) / (high - low), 0, 1) : 0.5));
  set.fills = Array.from(shares, (share) => colours[Math.round(share * (STEPS - 1))] ?? palette.unknown);
  set.strengths = shares.map((share) => (Number.isNaN(share) ? 0 : signs ? Math.abs(2 * share - 1) : share));
  const bar = make("span", { class: "bar" });
  bar.style.background = `linear-gradient(to right, ${colours.filter((_, i) => i % 9 === 0).join(", ")})`;
  legend.append(make("span", { class: "legend-title" }, title), number(low), bar, number(high));
}

/** Where a scale begins and ends; the outermost hundredth does not stretch it. Both signs have zero in the middle. */
function reach(numbers) {
  const sorted = numbers.filter((value) => !Number.isNaN(value)).sort();
  if (!sorted.length) return { low: NaN, high: NaN, signs: false };
  const cut = Math.floor(sorted.length / 100);
  let [low, high] = [sorted[cut], sorted[sorted.length - 1 - cut]];
  if (low === high) [low, high] = [sorted[0], sorted[sorted.length - 1]]; // only a few differ
  if (!(low < 0 && high > 0)) return { low, high, signs: false };
  const far = Math.max(-low, high);
  return { low: -far, high: far, signs: true };
}

function chip(colour, name) {
  const spot = make("span", { class: "spot" });
  spot.style.background = colour;
  return make("span", { class: "chip" }, spot, name);
}

/** What the widths of the edges mean. */
function tellLines(set, drawn) {
  const legend = byId("lines");
  legend.replaceChildren();
  if (!drawn) return;
  const { graph } = set;
  const [low, high] = [drawn - 1, 0].map((position) => graph.words(graph.table[graph.strengthAt(position)]));
  const sample = (kind) => make("span", { class: `sample ${kind}` });
  legend.append(make("span", { class: "legend-title" }, "Edge"), sample("weak"), low);
  if (low !== high) legend.append(sample("strong"), high);
}

/** The card of an element; `choose(j)` is called when one of its neighbours is chosen. */
function tellElement(set, view, pinned, choose) {
  const card = byId("element");
  const i = set.focus;
  if (i === null) {
    tellElements(card, set, view, choose);
    return;
  }
  const facts = [
    ["Group", groupOf(set, i)],
    ["Importance", set.importance ? number(set.importance[i]) : null],
    ["Own weight", set.graphless ? null : set.graph.words(set.graph.own[i])],
  ].filter(([, value]) => value !== null);
  const free = make("button", { type: "button", class: "small" }, "Let go (Esc)");
  free.addEventListener("click", () => choose(null));
  const heading = make("h4", {}, nameOf(i), pinned ? free : null);
  const words = make("div", {}, set.elements.length ? make("p", {}, set.elements[i]) : null);
  words.append(make("dl", {}, ...facts.map(named)));
  const weights = set.neighbours.map((j) => set.graph.weight(i, j));
  const most = Math.max(...weights, set.graph.own[i]);
  const rows = set.neighbours.map((j, k) => row(set, view, j, weights[k] / most, set.graph.words(weights[k]), choose));
  const nobody = set.graphless ? "" : "Listens to nobody else.";
  card.replaceChildren(
    heading,
    make("div", { class: "about" }, thumbnail(set, view, i, 88), words),
    make("p", { class: "small-title" }, rows.length ? set.graph.toWhom : nobody),
    make("ol", { class: "neighbours" }, ...rows),
  );
}

/** While none is looked at: which elements count most, or are heard most where that is not known. */
function tellElements(card, set, view, choose) {
  const values = set.importance ?? (set.graphless ? [] : set.graph.heard);
  const order = Array.from(values.keys()).sort((a, b) => (values[b] ?? -Infinity) - (values[a] ?? -Infinity));
  const most = Math.max(...values.map(Math.abs), 1e-300);
  const rows = order.slice(0, NEIGHBOURS).map((i) => row(set, view, i, values[i] / most, number(values[i]), choose));
  const hint = `Point at an element to see ${set.graphless ? "what it is" : "whom it listens to"}. A click keeps it.`;
  card.replaceChildren(
    make("h4", {}, "Elements"),
    make("p", { class: "hint" }, set.size ? hint : "There are none."),
    make("p", { class: "small-title" }, rows.length ? (set.importance ? "Count most" : "Heard most") : ""),
    make("ol", { class: "neighbours" }, ...rows),
  );
}

/** One line of a list of elements: who, a number, and a bar as long as its share. */
function row(set, view, j, share, words, choose) {
  const text = set.elements[j] ?? groupOf(set, j);
  const button = make(
    "button",
    { type: "button" },
    thumbnail(set, view, j, 28),
    make("span", { class: "who" }, `${count(j + 1)} `, text ? make("span", { class: "text" }, text) : null),
    make("span", { class: "weight" }, words),
    shareBar(share),
  );
  button.addEventListener("click", () => choose(j));
  return make("li", {}, button);
}

function shareBar(share) {
  const bar = make("span", { class: share < 0 ? "share below" : "share" });
  bar.style.setProperty("--share", `${100 * Math.abs(share)}%`);
  return bar;
}

/** A small picture of an element, where it has one. */
function thumbnail(set, view, i, side) {
  if (!set.sheet && !(set.slide && set.patch)) return null;
  const { width, height } = set.sheet ?? { width: 1, height: 1 };
  const [wide, tall] = [width, height].map((length) => Math.max((side * length) / Math.max(width, height), 1));
  const canvas = make("canvas", { class: "thumbnail", "aria-hidden": "true" });
  [canvas.width, canvas.height] = [wide * view.ratio, tall * view.ratio];
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${tall}px`;
  view.drawPicture(canvas.getContext("2d"), i, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** What the model made of a set. */
function tellSet(set) {
  byId("name").textContent = set.name;
  const parts = [`${plural(set.size, "element")}`];
  if (set.label !== null) parts.push(`truth ${set.label}`);
  if (set.prediction !== null) parts.push(`model ${set.prediction}`);
  byId("verdict").replaceChildren(parts.join(" · "), ...(set.correct === null ? [] : [" ", mark(set.correct)]));
  byId("remark").textContent = set.remark ?? "";
  byId("remark").hidden = !set.remark;
  tellScores(set);
  tellEnergies(set);
}

/** What is not quite as it was in the graph that is shown. */
function tellNotes({ size, graph, graphless, unplaced }) {
  const notes = [];
  const percent = number(Math.max(100 * graph.error, 0.001), 1);
  if (size > 1 && !graphless) notes.push(`Weights are shown to within ${percent} %.`);
  if (graph.strange) notes.push(`Not finite, and taken as none: ${plural(graph.strange, "weight")}.`);
  if (unplaced) notes.push(`Without a place, and put in the middle: ${plural(unplaced, "element")}.`);
  byId("stored").textContent = notes.join(" ");
}

function mark(correct) {
  return make("span", { class: correct ? "mark right" : "mark wrong" }, correct ? "✓ right" : "✗ wrong");
}

function tellScores(set) {
  const most = Math.max(...set.scores.map(([, value]) => Math.abs(value ?? 0)), 1e-300);
  const shown = [...set.scores].sort(([, a], [, b]) => (b ?? -Infinity) - (a ?? -Infinity)).slice(0, NEIGHBOURS);
  const rows = shown.map(([name, value]) => {
    const words = make("span", { class: "weight" }, number(value));
    return make("li", {}, make("span", { class: "who" }, name), words, shareBar(value / most));
  });
  const more = set.scores.length - shown.length;
  byId("scores").replaceChildren(
    make("h4", {}, "What the model says"),
    make("ul", { class: "neighbours" }, ...rows),
    more ? make("p", { class: "hint" }, `and ${count(more)} below`) : "",
  );
  byId("scores").hidden = !shown.length;
}

function tellEnergies(set) {
  const curves = [{ name: "energy", points: set.energies.map((value, block) => [block, value]) }];
  byId("energies").hidden = set.energies.every((value) => value === null);
  byId("energies").replaceChildren(
    new Chart({ title: "Dirichlet energy", axis: "block", curves, height: 150, marks: set.energies.length < 30 }).node,
  );
}
