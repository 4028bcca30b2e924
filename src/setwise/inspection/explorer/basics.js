// What all parts of the page use: the story, elements, numbers in words, colours, packed arrays.

const story = JSON.parse(document.getElementById("story").textContent);
const SVG = document.getElementById("svg").namespaceURI; // so that no address has to stand in this page

const byId = (id) => document.getElementById(id);

/** An HTML element. Children that are no nodes become text, whatever they contain. */
function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** A name and a value, for a list of them. */
const named = ([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value));

function say(words) {
  byId("words").textContent = words;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const count = (value) => value.toLocaleString("en-GB");
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** A number in so many digits; what was no number is a dash. */
function number(value, digits = 3) {
  if (value === null || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return signed(count(value));
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return signed(value.toExponential(digits - 1).replace("e+", "e"));
  return signed(size >= 10 ** digits ? count(Math.round(value)) : value.toPrecision(digits));
}

const signed = (text) => text.replace(/-/g, "−");

/** A colour of the style sheet as the graph's stage has it now. */
function paint(name) {
  const probe = byId("svg");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

const SERIES = 8;
const STEPS = 64;
const palette = {}; // the colours of the canvases; reading them from the style sheet each time would be slow

function readPalette() {
  for (const name of ["edge", "element", "accent", "ink", "soft", "unknown"]) palette[name] = paint(name);
  palette.series = Array.from({ length: SERIES }, (_, i) => paint(`series-${i + 1}`));
  palette.oneSign = ramp(["faint", "middle", "strong"]);
  palette.bothSigns = ramp(["below", "neutral", "above"]);
}

/** A scale of colours through those of the given names. */
function ramp(names) {
  const stops = names.map((name) => paint(name).match(/[\d.]+/g).slice(0, 3).map(Number));
  return Array.from({ length: STEPS }, (_, i) => {
    const at = (i / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const channels = stops[low].map((value, c) => Math.round(value + (at - low) * (stops[low + 1][c] - value)));
    return `rgb(${channels.join(" ")})`;
  });
}

/** The array that was packed as compressed bytes in base64. */
async function unpacked(text, Type) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Type(await new Response(stream).arrayBuffer());
}

/** The same picture in pale grey, for colours to be drawn upon. */
function greyed(image) {
  const { naturalWidth: width, naturalHeight: height } = image;
  const canvas = make("canvas", { width, height });
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  pen.globalCompositeOperation = "saturation";
  pen.fillStyle = "#808080";
  pen.fillRect(0, 0, width, height);
  pen.globalCompositeOperation = "source-over";
  pen.fillStyle = "rgb(255 255 255 / 0.3)";
  pen.fillRect(0, 0, width, height);
  return canvas;
}

/** A picture from its data URI, ready to be drawn. */
async function picture(uri) {
  const image = new Image();
  image.src = uri;
  await image.decode();
  return image;
}
