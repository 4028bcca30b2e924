// Helpers for all scripts: the page content, DOM elements, number formats, colours, packed arrays.

const content = JSON.parse(document.getElementById("content").textContent);
const SVG = document.getElementById("svg").namespaceURI; // the page contains no URL, not even a namespace

const byId = (id) => document.getElementById(id);

/** Create an HTML element. Strings become text nodes, so their content is never parsed as HTML. */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** One entry of a description list. */
const descriptionItem = ([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value));

/** Announce a text to screen readers. */
function announce(text) {
  byId("announcement").textContent = text;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const count = (value) => value.toLocaleString("en-GB");
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** Format a number with the given digits; null and NaN become a dash. */
function number(value, digits = 3) {
  if (value === null || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return signed(count(value));
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return signed(value.toExponential(digits - 1).replace("e+", "e"));
  return signed(size >= 10 ** digits ? count(Math.round(value)) : value.toPrecision(digits));
}

const signed = (text) => text.replace(/-/g, "−");

/** The current value of a colour of the style sheet. */
function cssColour(name) {
  const probe = byId("svg");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

const SERIES = 8;
const STEPS = 64;
const palette = {}; // colours of the canvases, cached because reading the style sheet is slow

function readPalette() {
  for (const name of ["edge", "element", "accent", "ink", "soft", "unknown"]) palette[name] = cssColour(name);
  palette.series = Array.from({ length: SERIES }, (_, i) => cssColour(`series-${i + 1}`));
  palette.oneSign = ramp(["faint", "middle", "strong"]);
  palette.bothSigns = ramp(["below", "neutral", "above"]);
}

/** A colour scale that interpolates between the named colours. */
function ramp(names) {
  const stops = names.map((name) => cssColour(name).match(/[\d.]+/g).slice(0, 3).map(Number));
  return Array.from({ length: STEPS }, (_, i) => {
    const at = (i / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const channels = stops[low].map((value, c) => Math.round(value + (at - low) * (stops[low + 1][c] - value)));
    return `rgb(${channels.join(" ")})`;
  });
}

/** Unpack an array from compressed bytes in base64. */
async function unpacked(text, Type) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Type(await new Response(stream).arrayBuffer());
}

/** The same image in pale grey, as a background for colours. */
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

/** Decode an image from its data URI. */
async function picture(uri) {
  const image = new Image();
  image.src = uri;
  await image.decode();
  return image;
}
