// The state of the page: which set, graph, threshold, colours and element are selected, and their updates.

const view = new View(byId("stage"), byId("base"), byId("overlay"));
const state = {
  set: null, // the open set: its data and its current appearance
  index: null,
  opening: 0,
  listed: [],
  graph: "weights",
  colour: null, // selected colour scheme; a set without it uses its first one
  position: null, // of the slider, once it was moved
  delta: 0,
  selected: null, // element
};

// ---- List of sets

const FILTERS = { all: () => true, wrong: (set) => set.correct === false };

function fillFilter() {
  const number = (test) => count(content.sets.filter(test).length);
  const options = [make("option", { value: "all" }, `All (${number(FILTERS.all)})`)];
  if (content.sets.some((set) => set.correct !== null)) {
    options.push(make("option", { value: "wrong" }, `Wrong (${number(FILTERS.wrong)})`));
  }
  const labels = [...new Set(content.sets.map((set) => set.label).filter((label) => label !== null))];
  const classes = labels.map((label, l) =>
    make("option", { value: `class ${l}` }, `${label} (${number((set) => set.label === label)})`),
  );
  labels.forEach((label, l) => (FILTERS[`class ${l}`] = (set) => set.label === label));
  if (labels.length > 1) options.push(make("optgroup", { label: "Label" }, ...classes));
  byId("filter").replaceChildren(...options);
  byId("filter").addEventListener("change", () => listSets());
}

function selectCell(label, prediction) {
  FILTERS.cell = (set) => set.label === label && set.prediction === prediction;
  byId("filter").querySelector("[value=cell]")?.remove();
  const matches = content.sets.filter(FILTERS.cell).length;
  byId("filter").append(make("option", { value: "cell" }, `${label}, predicted as ${prediction} (${count(matches)})`));
  byId("filter").value = "cell";
  listSets();
  if (matches) byId("sets").scrollIntoView(); // smooth or not, as the style sheet sets it
}

function listSets() {
  const test = FILTERS[byId("filter").value];
  state.listed = content.sets.flatMap((set, i) => (test(set) ? [i] : []));
  byId("list").replaceChildren(...state.listed.map(listItem));
  byId("list").hidden = !state.listed.length;
  byId("no-sets").hidden = state.listed.length > 0;
  announce(`${plural(state.listed.length, "set")} listed`);
  if (state.listed.length && !state.listed.includes(state.index)) show(state.listed[0]);
  else markListed();
}

function listItem(i) {
  const { name, label, prediction, correct } = content.sets[i];
  const sign = correct === null ? "·" : correct ? "✓" : "✗";
  const kind = correct === null ? "mark" : correct ? "mark right" : "mark wrong";
  const classes = [label, prediction].filter((text) => text !== null).join(" → ");
  const spoken = { true: "correct", false: "wrong" }[correct] ?? "";
  const item = make(
    "li",
    { role: "option", id: `set-${i}`, "aria-selected": "false" },
    make("span", { class: kind, "aria-hidden": "true" }, sign),
    make("span", { class: "set-name" }, name),
    make("span", { class: "set-words" }, classes),
    make("span", { class: "unseen" }, spoken),
  );
  item.addEventListener("click", () => show(i));
  return item;
}

function markListed() {
  for (const item of byId("list").children) item.setAttribute("aria-selected", item.id === `set-${state.index}`);
  const current = byId(`set-${state.index}`);
  if (current) byId("list").setAttribute("aria-activedescendant", current.id);
  else byId("list").removeAttribute("aria-activedescendant");
  if (current) {
    const list = byId("list"); // scrollIntoView would scroll the page too
    const [top, bottom] = [current.offsetTop, current.offsetTop + current.offsetHeight];
    if (top < list.scrollTop) list.scrollTop = top;
    else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
  }
}

byId("list").addEventListener("keydown", (event) => {
  const last = state.listed.length - 1;
  const at = state.listed.indexOf(state.index);
  const to = { ArrowDown: Math.min(at + 1, last), ArrowUp: Math.max(at - 1, 0), Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  if (to !== at) show(state.listed[to]);
});

// ---- One set

/** Show a set, or an error message. */
function show(index) {
  open(index).catch((error) => {
    byId("empty").textContent = `This browser cannot show the set: ${error.message}`;
    byId("empty").hidden = false;
    throw error;
  });
}

/** Unpack a set and show it, unless another one was opened in the meantime. */
async function open(index) {
  const turn = ++state.opening;
  state.index = index;
  markListed();
  const raw = content.sets[index];
  const [places, weights, kernel, sheet, slide] = await Promise.all([
    unpacked(raw.places, Float32Array),
    raw.weights && Graph.unpack(raw.size, raw.weights, "W", "Strongest neighbours"),
    raw.kernel && Graph.unpack(raw.size, raw.kernel, "K", "Most similar elements"),
    raw.pictures && picture(raw.pictures.uri),
    raw.background && picture(raw.background.uri),
  ]);
  if (turn !== state.opening) return;
  state.selected = null;
  state.set = {
    ...raw,
    places,
    graphs: { weights, kernel },
    sheet: sheet && { ...raw.pictures, image: sheet },
    slide: slide && { ...raw.background, image: slide, grey: greyed(slide) },
    focus: null,
    hover: null,
    neighbours: [],
  };
  showSet(raw);
  fillMenus();
  byId("stage").classList.toggle("slide", slide !== null);
  readPalette();
  byId("empty").hidden = raw.size > 0;
  byId("overlay").setAttribute("aria-label", `Latent graph of ${raw.name}, ${plural(raw.size, "element")}`);
  const keys =
    raw.axes === 3
      ? "Drag or arrow keys: rotate. Shift + arrow keys: move between elements."
      : "Arrow keys: move between elements. Drag or Shift + arrow keys: pan.";
  byId("keys").textContent = `${keys} Wheel, + and −: zoom. 0: reset the view.`;
  selectGraph();
  view.show(state.set);
  refocus();
  const outcome = { true: ", correct", false: ", wrong" }[raw.correct] ?? "";
  announce(`${raw.name}, ${byId("outcome").firstChild.textContent}${outcome}. ${byId("count").textContent}`);
}

function fillMenus() {
  const schemes = Object.entries(colourSchemes(state.set)).filter(([, scheme]) => scheme);
  byId("colour").replaceChildren(...schemes.map(([value, { title }]) => make("option", { value }, title)));
  byId("colour").value = schemes.some(([value]) => value === state.colour) ? state.colour : schemes[0][0];
  const graphs = { weights: "Latent graph W", kernel: "Learned kernel K" };
  const available = Object.keys(graphs).filter((name) => state.set.graphs[name]);
  byId("graph").replaceChildren(...available.map((name) => make("option", { value: name }, graphs[name])));
  byId("graph").value = available.includes(state.graph) ? state.graph : available[0];
  byId("graph").parentElement.hidden = available.length < 2;
  byId("threshold").hidden = state.set.graphless;
}

function selectGraph() {
  const { set } = state;
  set.graph = set.graphs[byId("graph").value];
  showNotes(set);
  const wanted = set.kind === "patches" ? set.size / 4 : 2 * set.size; // few enough to see the patches
  const edges = Math.min(Math.ceil(wanted), set.graph.sorted.order.length);
  const delta = edges ? set.graph.table[set.graph.strengthAt(edges - 1)] : 0;
  setThreshold(state.position === null ? delta : set.graph.threshold(state.position));
}

/** Draw the pairs with weight ≥ δ, and show their number. */
function setThreshold(delta) {
  const { set } = state;
  const { graph } = set;
  state.delta = delta;
  set.edges = graph.pairsAbove(delta);
  const value = number(delta, graph.digits + 1);
  const drawn = Math.min(set.edges, MAX_EDGES);
  const pairs = `${count(set.edges)} of ${plural(graph.pairs, "pair")}`;
  const text = `${pairs} with weight ≥ δ in at least one direction`;
  const capped = set.edges > MAX_EDGES ? `; the ${count(MAX_EDGES)} strongest are drawn` : "";
  byId("count").textContent = graph.pairs ? `${text}${capped}.` : "";
  if (set.graphless) byId("count").textContent = "This model has no latent graph.";
  byId("slider").value = Math.round(1000 * graph.position(delta));
  byId("slider").setAttribute("aria-valuetext", `δ ${value}, ${pairs}`);
  byId("delta").value = value;
  byId("delta").removeAttribute("aria-invalid");
  for (const id of ["slider", "delta"]) byId(id).disabled = !graph.sorted.order.length;
  showEdgeLegend(set, drawn);
  recolour();
}

function recolour() {
  colourElements(state.set, byId("colour").value);
  view.refresh();
}

// ---- One element

/** Focus the selected element, else the one under the pointer; its card is updated if it changed, or if `force`. */
function focusElement(hover, x = 0, y = 0, force = false) {
  const { set } = state;
  if (!set) return;
  const focus = state.selected ?? hover;
  set.hover = hover;
  byId("overlay").classList.toggle("pointing", hover !== null);
  showTip(hover, x, y);
  if (focus !== set.focus || force) {
    set.focus = focus;
    set.neighbours = focus === null ? [] : set.graph.strongest(focus, NEIGHBOURS);
    showElement(set, view, state.selected !== null, (j) => {
      select(j);
      byId(j === null ? "overlay" : "element").focus(); // the button that had the focus was removed
    });
    if (byId("colour").value === "selected") recolour();
  }
  view.refresh("overlay");
}

const refocus = () => focusElement(null, 0, 0, true);

function showTip(hover, x, y) {
  const tip = byId("tip");
  tip.hidden = hover === null;
  if (hover === null) return;
  const { set, selected } = state;
  const text = set.elements[hover] ?? groupOf(set, hover);
  const weight = (i, j) => `${set.graph.symbol}(${i + 1}, ${j + 1}) = ${set.graph.format(set.graph.weight(i, j))}`;
  const pair = selected === null || selected === hover ? null
    : `${weight(selected, hover)}, ${weight(hover, selected)}`;
  tip.textContent = [nameOf(hover), text, pair].filter(Boolean).join(" · ");
  tip.style.left = `${clamp(x + 14, 4, Math.max(view.width - tip.offsetWidth - 4, 4))}px`;
  tip.style.top = `${y > view.height - 70 ? y - tip.offsetHeight - 10 : y + 16}px`;
}

function select(i) {
  if (!state.set || (i === null && state.selected === null)) return;
  state.selected = i;
  refocus();
  announce(i === null ? "No element selected" : describeElement(state.set));
}

function describeElement(set) {
  const { focus, graph, neighbours } = set;
  const details = [groupOf(set, focus), set.elements[focus]].filter(Boolean).join(", ");
  const strongest = neighbours.slice(0, 3).map((j) => `${j + 1} with ${graph.format(graph.weight(focus, j))}`);
  const element = `${nameOf(focus)}${details ? `, ${details}` : ""}.`;
  if (set.graphless) return element;
  return `${element} ${strongest.length ? `${graph.neighbourTitle}: ${strongest.join(", ")}` : "No neighbours"}.`;
}

/** Select the next element in a direction; the first element if none is selected. */
function step(across, down) {
  if (!state.set?.size) return;
  select(state.selected === null ? 0 : view.toward(state.selected, across, down));
}

// ---- Controls

handleInput(view, { hover: focusElement, select, step });
byId("slider").addEventListener("input", () => {
  const { value } = byId("slider");
  state.position = value / 1000;
  setThreshold(state.set.graph.threshold(state.position));
  byId("slider").value = value; // equal weights would move the slider
});
byId("delta").addEventListener("change", () => {
  const delta = Number.parseFloat(byId("delta").value.replaceAll("−", "-").replace(",", "."));
  if (Number.isFinite(delta) && delta >= 0) {
    setThreshold(delta);
    state.position = state.set.graph.position(delta);
  } else byId("delta").setAttribute("aria-invalid", "true");
});
byId("graph").addEventListener("change", () => {
  state.graph = byId("graph").value;
  selectGraph();
  refocus();
});
byId("colour").addEventListener("change", () => {
  state.colour = byId("colour").value;
  recolour();
});
byId("closer").addEventListener("click", () => view.zoomBy(ZOOM_STEP));
byId("farther").addEventListener("click", () => view.zoomBy(1 / ZOOM_STEP));
byId("reset").addEventListener("click", () => view.resetView());
addEventListener("keydown", (event) => {
  if (event.key === "Escape") select(null);
});

function repaint() {
  readPalette();
  if (state.set) recolour();
}

showHeader();
showTable();
showCurves();
showConfusion(selectCell);
initTheme(repaint);
byId("skip").hidden = !content.sets.length;
if (content.sets.length) {
  byId("sets").hidden = false;
  fillFilter();
  listSets();
}
showContents();

// The current state, for tests.
Object.defineProperty(window, "setwiseExplorer", {
  get: () => {
    const { index, delta, selected } = state;
    const { zoom, yaw, pitch, draws, milliseconds, drawn } = view;
    const { name, focus, neighbours, edges } = state.set ?? {};
    const set = state.set && { name, focus, neighbours: [...neighbours], edges };
    const at = (i) => [view.x[i], view.y[i]];
    return Object.freeze({ index, delta, selected, set, zoom, yaw, pitch, draws, milliseconds, drawn, at });
  },
});
