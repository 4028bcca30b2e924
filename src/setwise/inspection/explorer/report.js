// The sections above the sets: title and facts, results, learning curves, confusion matrix. Empty ones are hidden.

function showHeader() {
  byId("title").textContent = content.title;
  byId("lead").textContent = content.lead;
  byId("lead").hidden = !content.lead;
  byId("facts").hidden = !content.facts.length;
  byId("facts").append(...content.facts.map(descriptionItem));
}

function showTable() {
  if (!content.table) return;
  const { headings, rows, caption } = content.table;
  const numeric = headings.map((_, c) => c > 0 && rows.some((row) => /^[−+±<>≈-]?\s*\d/.test(row[c] ?? "")));
  const side = (c) => (numeric[c] ? "figure" : null);
  const head = make("tr", {}, ...headings.map((text, c) => make("th", { scope: "col", class: side(c) }, text)));
  const body = rows.map((row) =>
    make("tr", {}, ...row.map((text, c) => make(c ? "td" : "th", { scope: c ? null : "row", class: side(c) }, text))),
  );
  const width = headings.length > 10 ? "wide" : null;
  const table = make("table", { class: width }, make("thead", {}, head), make("tbody", {}, ...body));
  if (caption) table.prepend(make("caption", {}, caption));
  byId("table").append(table);
  byId("results").hidden = false;
}

function showCurves() {
  const panels = new Map();
  const nonempty = content.curves.filter(({ points }) => points.some(([x, y]) => x !== null && y !== null));
  for (const curve of nonempty) panels.set(curve.panel, [...(panels.get(curve.panel) ?? []), curve]);
  for (const [title, curves] of panels) byId("curves").append(new Chart({ title, axis: "step", curves }).node);
  byId("learning").hidden = !panels.size;
}

/** The confusion matrix; `select(label, prediction)` is called when a cell is selected. */
function showConfusion(select) {
  if (!content.confusion?.classes.length) return;
  const { classes, counts } = content.confusion;
  const shown = (label, prediction) =>
    content.sets.filter((set) => set.label === label && set.prediction === prediction).length;
  const columns = classes.map((name) => make("th", { scope: "col" }, make("span", {}, name)));
  const head = make("tr", {}, make("td", { class: "corner" }, "true ╲ predicted"), ...columns);
  const body = classes.map((label, row) => {
    const total = counts[row].reduce((sum, value) => sum + value, 0);
    const cells = classes.map((prediction, column) => {
      const value = counts[row][column];
      const share = total ? value / total : 0;
      const onPage = shown(label, prediction);
      const frequency = `${count(value)} of ${count(total)}`;
      const text = `${label}, predicted as ${prediction}: ${frequency}; ${plural(onPage, "set")} on this page`;
      const description = { "aria-label": text, title: text };
      const button = make("button", { type: "button", tabindex: "-1", ...description }, count(value));
      button.addEventListener("click", () => select(label, prediction));
      const kind = [row === column ? "right" : "wrong", share > 0.5 && "deep", onPage && "seen", !value && "none"];
      const cell = make("td", { class: kind.filter(Boolean).join(" ") }, button);
      cell.style.setProperty("--share", `${Math.round(100 * Math.sqrt(share))}%`);
      return cell;
    });
    return make("tr", {}, make("th", { scope: "row" }, label), ...cells);
  });
  const grid = { class: "matrix", role: "grid", "aria-label": "Confusion matrix: true classes by predicted classes" };
  const table = make("table", grid, make("thead", {}, head), make("tbody", {}, ...body));
  table.classList.toggle("many", classes.length > 12);
  addCellNavigation(table, classes.length);
  byId("matrix").append(table);
  byId("confusion").hidden = false;
}

/** Make a square table one stop of the Tab key, with arrow keys to move between its cells. */
function addCellNavigation(table, size) {
  const cells = [...table.querySelectorAll("button")];
  cells[0].tabIndex = 0;
  table.addEventListener("focusin", (event) => {
    cells.forEach((cell) => (cell.tabIndex = cell === event.target ? 0 : -1));
  });
  table.addEventListener("keydown", (event) => {
    const at = cells.indexOf(event.target);
    const [row, column] = [Math.floor(at / size), at % size];
    const to = {
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      Home: [row, 0],
      End: [row, size - 1],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    cells[clamp(to[0], 0, size - 1) * size + clamp(to[1], 0, size - 1)].focus();
  });
}

/** Links to the visible sections. */
function showContents() {
  const parts = [...document.querySelectorAll("main > section")].filter((part) => !part.hidden);
  if (parts.length < 2) return;
  const name = (part) => (part.id === "sets" ? "Sets" : part.querySelector("h2").textContent);
  byId("contents").append(...parts.map((part) => make("a", { href: `#${part.id}` }, name(part))));
}

/** Follow the system theme until the button selects another. */
function initTheme(changed) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const button = byId("theme");
  const updateButton = () => (button.textContent = isDark() ? "Light" : "Dark");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    updateButton();
    changed();
  });
  dark.addEventListener("change", () => {
    updateButton();
    changed();
  });
  updateButton();
}
