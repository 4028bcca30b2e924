// The panels around the graph: colours and legends, the focused element, scores, energies.

const NEIGHBOURS = 8;
const nameOf = (i) => `Element ${count(i + 1)}`;
const groupOf = (set, i) => (set.groups.length ? set.groups[set.group[i]] : null);

/** The colour schemes of a set; `values` returns one number per element. */
function colourSchemes(set) {
  const graphless = {
    group: set.groups.length ? { title: "Group" } : null,
    importance: set.importance
      ? { title: "Importance", values: () => Float64Array.from(set.importance, (value) => value ?? NaN) }
      : null,
    plain: { title: "None" },
  };
  if (set.graphless) return graphless;
  return {
    ...graphless,
    received: { title: "Weight received from others", values: () => set.graph.received },
    degree: { title: "Number of edges", values: () => set.graph.degrees(set.edges) },
    selected: {
      title: "Weight for the selected element",
      values: () => (set.focus === null ? null : set.graph.row(set.focus)),
    },
  };
}

/** Colour the elements of a set by a scheme, and show the legend. */
function colourElements(set, scheme) {
  const { title, values } = colourSchemes(set)[scheme];
  set.fills = set.strengths = null;
  set.dims = scheme !== "selected";
  const legend = byId("colours");
  legend.replaceChildren();
  if (scheme === "group") {
    const colours = palette.series;
    const of = (group) => (group < SERIES - 1 || set.groups.length === SERIES ? colours[group] : colours[SERIES - 1]);
    set.fills = set.group.map(of);
    set.strengths = new Float64Array(set.size).fill(1);
    const names = set.groups.length > SERIES ? [...set.groups.slice(0, SERIES - 1), "others"] : set.groups;
    legend.append(make("span", { class: "legend-title" }, title), ...names.map((name, g) => chip(colours[g], name)));
    return;
  }
  const numbers = values?.();
  if (!numbers) {
    if (scheme === "selected") legend.append("Select an element to see the weights of the others for it.");
    return;
  }
  const { low, high, signs } = scaleRange(numbers);
  const colours = signs ? palette.bothSigns : palette.oneSign;
  const shares = numbers.map((value) => (high > low ? clamp((value - low) / (high - low), 0, 1) : 0.5));
  set.fills = Array.from(shares, (share) => colours[Math.round(share * (STEPS - 1))] ?? palette.unknown);
  set.strengths = shares.map((share) => (Number.isNaN(share) ? 0 : signs ? Math.abs(2 * share - 1) : share));
  const bar = make("span", { class: "bar" });
  bar.style.background = `linear-gradient(to right, ${colours.filter((_, i) => i % 9 === 0).join(", ")})`;
  legend.append(make("span", { class: "legend-title" }, title), number(low), bar, number(high));
}

/** The range of a colour scale: the 1st to the 99th percentile, symmetric about zero if both signs occur. */
function scaleRange(numbers) {
  const sorted = numbers.filter((value) => !Number.isNaN(value)).sort();
  if (!sorted.length) return { low: NaN, high: NaN, signs: false };
  const cut = Math.floor(sorted.length / 100);
  let [low, high] = [sorted[cut], sorted[sorted.length - 1 - cut]];
  if (low === high) [low, high] = [sorted[0], sorted[sorted.length - 1]]; // only a few values differ
  if (!(low < 0 && high > 0)) return { low, high, signs: false };
  const far = Math.max(-low, high);
  return { low: -far, high: far, signs: true };
}

function chip(colour, name) {
  const spot = make("span", { class: "spot" });
  spot.style.background = colour;
  return make("span", { class: "chip" }, spot, name);
}

/** The legend of the edges. */
function showEdgeLegend(set, drawn) {
  const legend = byId("lines");
  legend.replaceChildren();
  if (!drawn) return;
  const { graph } = set;
  const [low, high] = [drawn - 1, 0].map((position) => graph.format(graph.table[graph.strengthAt(position)]));
  const sample = (kind) => make("span", { class: `sample ${kind}` });
  legend.append(make("span", { class: "legend-title" }, "Edge"), sample("weak"), low);
  if (low !== high) legend.append(sample("strong"), high);
}

/** The card of the focused element; `select(j)` is called when a neighbour is selected, select(null) to deselect. */
function showElement(set, view, selected, select) {
  const card = byId("element");
  const i = set.focus;
  if (i === null) {
    showTopElements(card, set, view, select);
    return;
  }
  const facts = [
    ["Group", groupOf(set, i)],
    ["Importance", set.importance ? number(set.importance[i]) : null],
    ["Self-weight", set.graphless ? null : set.graph.format(set.graph.diagonal[i])],
  ].filter(([, value]) => value !== null);
  const deselect = make("button", { type: "button", class: "small" }, "Deselect (Esc)");
  deselect.addEventListener("click", () => select(null));
  const heading = make("h4", {}, nameOf(i), selected ? deselect : null);
  const text = make("div", {}, set.elements.length ? make("p", {}, set.elements[i]) : null);
  text.append(make("dl", {}, ...facts.map(descriptionItem)));
  const weights = set.neighbours.map((j) => set.graph.weight(i, j));
  const largest = Math.max(...weights, set.graph.diagonal[i]);
  const rows = set.neighbours.map((j, k) =>
    elementRow(set, view, j, weights[k] / largest, set.graph.format(weights[k]), select),
  );
  const none = set.graphless ? "" : "No neighbours";
  card.replaceChildren(
    heading,
    make("div", { class: "about" }, thumbnail(set, view, i, 88), text),
    make("p", { class: "small-title" }, rows.length ? set.graph.neighbourTitle : none),
    make("ol", { class: "neighbours" }, ...rows),
  );
}

/** The card without a focused element: the elements of largest importance, or of largest received weight. */
function showTopElements(card, set, view, select) {
  const values = set.importance ?? (set.graphless ? [] : set.graph.received);
  const order = Array.from(values.keys()).sort((a, b) => (values[b] ?? -Infinity) - (values[a] ?? -Infinity));
  const largest = Math.max(...values.map(Math.abs), 1e-300);
  const rows = order
    .slice(0, NEIGHBOURS)
    .map((i) => elementRow(set, view, i, values[i] / largest, number(values[i]), select));
  const title = set.importance ? "Most important" : "Most weight received";
  const details = set.graphless ? "its description" : "its strongest neighbours";
  const hint = `Point at an element to see ${details}; click to select it.`;
  card.replaceChildren(
    make("h4", {}, "Elements"),
    make("p", { class: "hint" }, set.size ? hint : "The set is empty."),
    make("p", { class: "small-title" }, rows.length ? title : ""),
    make("ol", { class: "neighbours" }, ...rows),
  );
}

/** One row of a list of elements: the element, a value, and a bar. */
function elementRow(set, view, j, share, value, select) {
  const text = set.elements[j] ?? groupOf(set, j);
  const button = make(
    "button",
    { type: "button" },
    thumbnail(set, view, j, 28),
    make("span", { class: "who" }, `${count(j + 1)} `, text ? make("span", { class: "text" }, text) : null),
    make("span", { class: "weight" }, value),
    shareBar(share),
  );
  button.addEventListener("click", () => select(j));
  return make("li", {}, button);
}

function shareBar(share) {
  const bar = make("span", { class: share < 0 ? "share below" : "share" });
  bar.style.setProperty("--share", `${100 * Math.abs(share)}%`);
  return bar;
}

/** A small image of an element, if it has one. */
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

/** The name, label, prediction, scores and energies of a set. */
function showSet(set) {
  byId("name").textContent = set.name;
  const parts = [`${plural(set.size, "element")}`];
  if (set.label !== null) parts.push(`label ${set.label}`);
  if (set.prediction !== null) parts.push(`prediction ${set.prediction}`);
  byId("outcome").replaceChildren(parts.join(" · "), ...(set.correct === null ? [] : [" ", mark(set.correct)]));
  byId("remark").textContent = set.remark ?? "";
  byId("remark").hidden = !set.remark;
  showScores(set);
  showEnergies(set);
}

/** Notes on the accuracy of the stored graph and on replaced values. */
function showNotes({ size, graph, graphless, unplaced }) {
  const notes = [];
  const percent = number(Math.max(100 * graph.error, 0.001), 1);
  if (size > 1 && !graphless) notes.push(`Weights are accurate to within ${percent} %.`);
  if (graph.nonfinite) notes.push(`Non-finite weights shown as 0: ${count(graph.nonfinite)}.`);
  if (unplaced) notes.push(`Elements without finite coordinates, drawn at the median: ${count(unplaced)}.`);
  byId("notes").textContent = notes.join(" ");
}

function mark(correct) {
  return make("span", { class: correct ? "mark right" : "mark wrong" }, correct ? "✓ correct" : "✗ wrong");
}

function showScores(set) {
  const largest = Math.max(...set.scores.map(([, value]) => Math.abs(value ?? 0)), 1e-300);
  const shown = [...set.scores].sort(([, a], [, b]) => (b ?? -Infinity) - (a ?? -Infinity)).slice(0, NEIGHBOURS);
  const rows = shown.map(([name, value]) => {
    const score = make("span", { class: "weight" }, number(value));
    return make("li", {}, make("span", { class: "who" }, name), score, shareBar(value / largest));
  });
  const more = set.scores.length - shown.length;
  byId("scores").replaceChildren(
    make("h4", {}, "Model output"),
    make("ul", { class: "neighbours" }, ...rows),
    more ? make("p", { class: "hint" }, `and ${count(more)} more`) : "",
  );
  byId("scores").hidden = !shown.length;
}

function showEnergies(set) {
  const curves = [{ name: "energy", points: set.energies.map((value, block) => [block, value]) }];
  byId("energies").hidden = set.energies.every((value) => value === null);
  byId("energies").replaceChildren(
    new Chart({ title: "Dirichlet energy", axis: "block", curves, height: 150, marks: set.energies.length < 30 }).node,
  );
}
