// What stands above the sets: title and facts, results, curves, confusion matrix. What is not there is left out.

function tellHeader() {
  byId("title").textContent = story.title;
  byId("lead").textContent = story.lead;
  byId("lead").hidden = !story.lead;
  byId("facts").hidden = !story.facts.length;
  byId("facts").append(...story.facts.map(named));
}

function tellTable() {
  if (!story.table) return;
  const { headings, lines, caption } = story.table;
  const numeric = headings.map((_, c) => c > 0 && lines.some((line) => /^[−+±<>≈-]?\s*\d/.test(line[c] ?? "")));
  const side = (c) => (numeric[c] ? "figure" : null);
  const head = make("tr", {}, ...headings.map((text, c) => make("th", { scope: "col", class: side(c) }, text)));
  const body = lines.map((line) =>
    make("tr", {}, ...line.map((text, c) => make(c ? "td" : "th", { scope: c ? null : "row", class: side(c) }, text))),
  );
  const width = headings.length > 10 ? "wide" : null;
  const table = make("table", { class: width }, make("thead", {}, head), make("tbody", {}, ...body));
  if (caption) table.prepend(make("caption", {}, caption));
  byId("table").append(table);
  byId("results").hidden = false;
}

function tellCurves() {
  const panels = new Map();
  const there = story.curves.filter(({ points }) => points.some(([x, y]) => x !== null && y !== null));
  for (const curve of there) panels.set(curve.panel, [...(panels.get(curve.panel) ?? []), curve]);
  for (const [title, curves] of panels) byId("curves").append(new Chart({ title, axis: "step", curves }).node);
  byId("learning").hidden = !panels.size;
}

/** The confusion matrix; `choose(label, prediction)` is called with the cell that was chosen. */
function tellConfusion(choose) {
  if (!story.confusion?.classes.length) return;
  const { classes, counts } = story.confusion;
  const shown = (label, prediction) =>
    story.sets.filter((set) => set.label === label && set.prediction === prediction).length;
  const columns = classes.map((name) => make("th", { scope: "col" }, make("span", {}, name)));
  const head = make("tr", {}, make("td", { class: "corner" }, "true ╲ predicted"), ...columns);
  const body = classes.map((label, line) => {
    const total = counts[line].reduce((sum, value) => sum + value, 0);
    const cells = classes.map((prediction, column) => {
      const value = counts[line][column];
      const share = total ? value / total : 0;
      const here = shown(label, prediction);
      const often = `${count(value)} of ${count(total)}`;
      const words = `${label}, given as ${prediction}: ${often}; ${plural(here, "set")} to see`;
      const spoken = { "aria-label": words, title: words };
      const button = make("button", { type: "button", tabindex: "-1", ...spoken }, count(value));
      button.addEventListener("click", () => choose(label, prediction));
      const kind = [line === column ? "right" : "wrong", share > 0.5 && "deep", here && "seen", !value && "none"];
      const cell = make("td", { class: kind.filter(Boolean).join(" ") }, button);
      cell.style.setProperty("--share", `${Math.round(100 * Math.sqrt(share))}%`);
      return cell;
    });
    return make("tr", {}, make("th", { scope: "row" }, label), ...cells);
  });
  const grid = { class: "matrix", role: "grid", "aria-label": "True classes against predicted ones" };
  const table = make("table", grid, make("thead", {}, head), make("tbody", {}, ...body));
  table.classList.toggle("many", classes.length > 12);
  walkable(table, classes.length);
  byId("matrix").append(table);
  byId("confusion").hidden = false;
}

/** Cells of a square table are one stop of the Tab key; arrow keys go from one to the next. */
function walkable(table, size) {
  const cells = [...table.querySelectorAll("button")];
  cells[0].tabIndex = 0;
  table.addEventListener("focusin", (event) => {
    cells.forEach((cell) => (cell.tabIndex = cell === event.target ? 0 : -1));
  });
  table.addEventListener("keydown", (event) => {
    const at = cells.indexOf(event.target);
    const [line, column] = [Math.floor(at / size), at % size];
    const to = {
      ArrowLeft: [line, column - 1],
      ArrowRight: [line, column + 1],
      ArrowUp: [line - 1, column],
      ArrowDown: [line + 1, column],
      Home: [line, 0],
      End: [line, size - 1],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    cells[clamp(to[0], 0, size - 1) * size + clamp(to[1], 0, size - 1)].focus();
  });
}

/** Links to the parts that are there. */
function tellContents() {
  const parts = [...document.querySelectorAll("main > section")].filter((part) => !part.hidden);
  if (parts.length < 2) return;
  const name = (part) => (part.id === "sets" ? "Sets" : part.querySelector("h2").textContent);
  byId("contents").append(...parts.map((part) => make("a", { href: `#${part.id}` }, name(part))));
}

/** The theme is the system's until the button chooses another. */
function tellTheme(changed) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const button = byId("theme");
  const words = () => (button.textContent = isDark() ? "Light" : "Dark");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    words();
    changed();
  });
  dark.addEventListener("change", () => {
    words();
    changed();
  });
  words();
}
