// The page itself: what is chosen, and who is told when that changes.

const view = new View(byId("stage"), byId("base"), byId("overlay"));
const state = {
  set: null, // the open set: its data, and how it is drawn now
  index: null,
  opening: 0,
  listed: [],
  graph: "weights",
  colour: null, // as chosen; a set that cannot be coloured so has its own first way
  share: null, // of the slider, once it was moved
  delta: 0,
  pinned: null,
};

// ---- Which sets

const FILTERS = { all: () => true, wrong: (set) => set.correct === false };

function fillFilter() {
  const number = (test) => count(story.sets.filter(test).length);
  const options = [make("option", { value: "all" }, `All (${number(FILTERS.all)})`)];
  if (story.sets.some((set) => set.correct !== null)) {
    options.push(make("option", { value: "wrong" }, `Wrong (${number(FILTERS.wrong)})`));
  }
  const labels = [...new Set(story.sets.map((set) => set.label).filter((label) => label !== null))];
  const classes = labels.map((label, l) =>
    make("option", { value: `class ${l}` }, `${label} (${number((set) => set.label === label)})`),
  );
  labels.forEach((label, l) => (FILTERS[`class ${l}`] = (set) => set.label === label));
  if (labels.length > 1) options.push(make("optgroup", { label: "Truth" }, ...classes));
  byId("filter").replaceChildren(...options);
  byId("filter").addEventListener("change", () => listSets());
}

function chooseCell(label, prediction) {
  FILTERS.cell = (set) => set.label === label && set.prediction === prediction;
  byId("filter").querySelector("[value=cell]")?.remove();
  const found = story.sets.filter(FILTERS.cell).length;
  byId("filter").append(make("option", { value: "cell" }, `${label}, given as ${prediction} (${count(found)})`));
  byId("filter").value = "cell";
  listSets();
  if (found) byId("sets").scrollIntoView(); // smooth or at once, as the style sheet says
}

function listSets() {
  const test = FILTERS[byId("filter").value];
  state.listed = story.sets.flatMap((set, i) => (test(set) ? [i] : []));
  byId("list").replaceChildren(...state.listed.map(listed));
  byId("list").hidden = !state.listed.length;
  byId("nothing").hidden = state.listed.length > 0;
  say(`${plural(state.listed.length, "set")} listed`);
  if (state.listed.length && !state.listed.includes(state.index)) show(state.listed[0]);
  else markListed();
}

function listed(i) {
  const { name, label, prediction, correct } = story.sets[i];
  const sign = correct === null ? "·" : correct ? "✓" : "✗";
  const kind = correct === null ? "mark" : correct ? "mark right" : "mark wrong";
  const words = [label, prediction].filter((text) => text !== null).join(" → ");
  const spoken = { true: "right", false: "wrong" }[correct] ?? "";
  const item = make(
    "li",
    { role: "option", id: `set-${i}`, "aria-selected": "false" },
    make("span", { class: kind, "aria-hidden": "true" }, sign),
    make("span", { class: "set-name" }, name),
    make("span", { class: "set-words" }, words),
    make("span", { class: "unseen" }, spoken),
  );
  item.addEventListener("click", () => show(i));
  return item;
}

function markListed() {
  for (const item of byId("list").children) item.setAttribute("aria-selected", item.id === `set-${state.index}`);
  const chosen = byId(`set-${state.index}`);
  if (chosen) byId("list").setAttribute("aria-activedescendant", chosen.id);
  else byId("list").removeAttribute("aria-activedescendant");
  if (chosen) {
    const list = byId("list"); // scrolled by hand: scrollIntoView would move the page too
    const [top, bottom] = [chosen.offsetTop, chosen.offsetTop + chosen.offsetHeight];
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

/** Show a set; a browser that cannot says so. */
function show(index) {
  open(index).catch((error) => {
    byId("empty").textContent = `This browser cannot show the set: ${error.message}`;
    byId("empty").hidden = false;
    throw error;
  });
}

/** Unpack a set and show it, unless another one was asked for in the meantime. */
async function open(index) {
  const turn = ++state.opening;
  state.index = index;
  markListed();
  const raw = story.sets[index];
  const [places, weights, kernel, sheet, slide] = await Promise.all([
    unpacked(raw.places, Float32Array),
    raw.weights && Graph.unpack(raw.size, raw.weights, "Listens most to"),
    raw.kernel && Graph.unpack(raw.size, raw.kernel, "Most alike"),
    raw.pictures && picture(raw.pictures.uri),
    raw.background && picture(raw.background.uri),
  ]);
  if (turn !== state.opening) return;
  state.pinned = null;
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
  tellSet(raw);
  fillChoices();
  byId("stage").classList.toggle("slide", slide !== null);
  readPalette();
  byId("empty").hidden = raw.size > 0;
  byId("overlay").setAttribute("aria-label", `Latent graph of ${raw.name}, ${plural(raw.size, "element")}`);
  const keys =
    raw.axes === 3
      ? "Drag or arrow keys turn the cloud, Shift and arrow keys step between elements."
      : "Arrow keys step between elements, Shift and arrow keys or dragging move the picture.";
  byId("keys").textContent = `${keys} Wheel, + and − zoom, 0 resets.`;
  chooseGraph();
  view.show(state.set);
  lookAnew();
  const right = { true: ", right", false: ", wrong" }[raw.correct] ?? "";
  say(`${raw.name}, ${byId("verdict").firstChild.textContent}${right}. ${byId("count").textContent}`);
}

function fillChoices() {
  const ways = Object.entries(colourings(state.set)).filter(([, way]) => way);
  byId("colour").replaceChildren(...ways.map(([value, { title }]) => make("option", { value }, title)));
  byId("colour").value = ways.some(([value]) => value === state.colour) ? state.colour : ways[0][0];
  const graphs = { weights: "Latent graph W", kernel: "Learned kernel K" };
  const there = Object.keys(graphs).filter((name) => state.set.graphs[name]);
  byId("graph").replaceChildren(...there.map((name) => make("option", { value: name }, graphs[name])));
  byId("graph").value = there.includes(state.graph) ? state.graph : there[0];
  byId("graph").parentElement.hidden = there.length < 2;
  byId("threshold").hidden = state.set.graphless;
}

function chooseGraph() {
  const { set } = state;
  set.graph = set.graphs[byId("graph").value];
  tellNotes(set);
  const wanted = set.kind === "patches" ? set.size / 4 : 2 * set.size; // few enough to see through
  const edges = Math.min(Math.ceil(wanted), set.graph.sorted.order.length);
  const delta = edges ? set.graph.table[set.graph.strengthAt(edges - 1)] : 0;
  threshold(state.share === null ? delta : set.graph.threshold(state.share));
}

/** Draw the pairs that weigh at least δ, and say how many they are. */
function threshold(delta) {
  const { set } = state;
  const { graph } = set;
  state.delta = delta;
  set.edges = graph.kept(delta);
  const shown = number(delta, graph.digits + 1);
  const drawn = Math.min(set.edges, MOST);
  const kept = `${count(set.edges)} of ${plural(graph.pairs, "pair")}`;
  const words = `${kept} ${set.edges === 1 ? "weighs" : "weigh"} at least δ in one direction or the other`;
  const capped = set.edges > MOST ? `; the ${count(MOST)} strongest are drawn` : "";
  byId("count").textContent = graph.pairs ? `${words}${capped}.` : "";
  if (set.graphless) byId("count").textContent = "This model has no graph between elements.";
  byId("slider").value = Math.round(1000 * graph.share(delta));
  byId("slider").setAttribute("aria-valuetext", `δ ${shown}, ${kept}`);
  byId("delta").value = shown;
  byId("delta").removeAttribute("aria-invalid");
  for (const id of ["slider", "delta"]) byId(id).disabled = !graph.sorted.order.length;
  tellLines(set, drawn);
  recolour();
}

function recolour() {
  colourElements(state.set, byId("colour").value);
  view.refresh();
}

// ---- One element

/** Look at an element: the one under the pointer, unless one is pinned. It is told when it is another one, or anew. */
function look(hover, x = 0, y = 0, anew = false) {
  const { set } = state;
  if (!set) return;
  const focus = state.pinned ?? hover;
  set.hover = hover;
  byId("overlay").classList.toggle("pointing", hover !== null);
  tellTip(hover, x, y);
  if (focus !== set.focus || anew) {
    set.focus = focus;
    set.neighbours = focus === null ? [] : set.graph.strongest(focus, NEIGHBOURS);
    tellElement(set, view, state.pinned !== null, (j) => {
      pin(j);
      byId(j === null ? "overlay" : "element").focus(); // what had the focus is gone
    });
    if (byId("colour").value === "chosen") recolour();
  }
  view.refresh("overlay");
}

const lookAnew = () => look(null, 0, 0, true);

function tellTip(hover, x, y) {
  const tip = byId("tip");
  tip.hidden = hover === null;
  if (hover === null) return;
  const { set, pinned } = state;
  const text = set.elements[hover] ?? groupOf(set, hover);
  const weigh = (i, j) => set.graph.words(set.graph.weight(i, j));
  const between = pinned === null || pinned === hover ? null
    : `weighs ${weigh(pinned, hover)} for ${pinned + 1}, ${pinned + 1} weighs ${weigh(hover, pinned)} for it`;
  tip.textContent = [nameOf(hover), text, between].filter(Boolean).join(" · ");
  tip.style.left = `${clamp(x + 14, 4, Math.max(view.width - tip.offsetWidth - 4, 4))}px`;
  tip.style.top = `${y > view.height - 70 ? y - tip.offsetHeight - 10 : y + 16}px`;
}

function pin(i) {
  if (!state.set || (i === null && state.pinned === null)) return;
  state.pinned = i;
  lookAnew();
  say(i === null ? "No element chosen" : elementWords(state.set));
}

function elementWords(set) {
  const { focus, graph, neighbours } = set;
  const about = [groupOf(set, focus), set.elements[focus]].filter(Boolean).join(", ");
  const heard = neighbours.slice(0, 3).map((j) => `${j + 1} with ${graph.words(graph.weight(focus, j))}`);
  const who = `${nameOf(focus)}${about ? `, ${about}` : ""}.`;
  if (set.graphless) return who;
  return `${who} ${heard.length ? `${graph.toWhom} ${heard.join(", ")}` : "Listens to nobody else"}.`;
}

/** The next element in a direction; the first one where none is chosen yet. */
function step(across, down) {
  if (!state.set?.size) return;
  pin(state.pinned === null ? 0 : view.toward(state.pinned, across, down));
}

// ---- Hands

handleGraph(view, { hover: look, pin, step });
byId("slider").addEventListener("input", () => {
  state.share = byId("slider").value / 1000;
  const kept = byId("slider").value;
  threshold(state.set.graph.threshold(state.share));
  byId("slider").value = kept; // ties would move it on
});
byId("delta").addEventListener("change", () => {
  const delta = Number.parseFloat(byId("delta").value.replaceAll("−", "-").replace(",", "."));
  if (Number.isFinite(delta) && delta >= 0) {
    threshold(delta);
    state.share = state.set.graph.share(delta);
  } else byId("delta").setAttribute("aria-invalid", "true");
});
byId("graph").addEventListener("change", () => {
  state.graph = byId("graph").value;
  chooseGraph();
  lookAnew();
});
byId("colour").addEventListener("change", () => {
  state.colour = byId("colour").value;
  recolour();
});
byId("closer").addEventListener("click", () => view.zoomBy(FACTOR));
byId("farther").addEventListener("click", () => view.zoomBy(1 / FACTOR));
byId("reset").addEventListener("click", () => view.resetView());
addEventListener("keydown", (event) => {
  if (event.key === "Escape") pin(null);
});

function repaint() {
  readPalette();
  if (state.set) recolour();
}

tellHeader();
tellTable();
tellCurves();
tellConfusion(chooseCell);
tellTheme(repaint);
byId("skip").hidden = !story.sets.length;
if (story.sets.length) {
  byId("sets").hidden = false;
  fillFilter();
  listSets();
}
tellContents();

// What the page shows now, to look at from outside, e.g. in tests.
Object.defineProperty(window, "setwiseExplorer", {
  get: () => {
    const { index, delta, pinned } = state;
    const { zoom, yaw, pitch, draws, milliseconds, drawn } = view;
    const { name, focus, neighbours, edges } = state.set ?? {};
    const set = state.set && { name, focus, neighbours: [...neighbours], edges };
    const at = (i) => [view.x[i], view.y[i]];
    return Object.freeze({ index, delta, pinned, set, zoom, yaw, pitch, draws, milliseconds, drawn, at });
  },
});
