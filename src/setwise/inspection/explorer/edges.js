// Drawing the edges of a graph. Their colour is --edge in page.css; weak edges are thin and transparent.

const MAX_EDGES = 3000; // drawn at most
const MAX_WIDE_EDGES = 300; // with a line width by weight; all others are thin lines,
const WEIGHT_GROUPS = 6; // drawn in one stroke per group of similar weight
const DEPTH_GROUPS = 4; // and similar depth, which is much faster

/** Draw the strongest edges of the graph of a view; returns the number of edges drawn. */
function drawEdges(pen, view) {
  const { graph, edges, size } = view.set;
  const { order } = graph.sorted;
  const drawn = Math.min(edges, MAX_EDGES);
  if (!drawn) return 0;
  const high = graph.table[graph.strengthAt(0)];
  const low = graph.table[graph.strengthAt(drawn - 1)];
  const crowd = clamp(30 / Math.sqrt(drawn), 0.5, 1);
  const opacity = (share, near) => (0.3 + 0.6 * share) * crowd * (0.35 + 0.65 * near);
  let share = 0; // of the edge added last: where its weight lies between low and high,
  let near = 0; // and how near it is to the viewer
  const add = (k, path) => {
    const i = Math.floor(order[k] / size);
    const j = order[k] % size;
    share = high > low ? (graph.table[graph.strength(i, j)] - low) / (high - low) : 0.5;
    near = clamp((view.depth[i] + view.depth[j]) / 2, 0, 1);
    const target = path();
    target.moveTo(view.x[i], view.y[i]);
    target.lineTo(view.x[j], view.y[j]);
  };
  pen.strokeStyle = palette.edge;
  const groups = Array.from({ length: WEIGHT_GROUPS * DEPTH_GROUPS }, () => new Path2D());
  const groupOfEdge = () =>
    groups[Math.round(share * (WEIGHT_GROUPS - 1)) * DEPTH_GROUPS + Math.round(near * (DEPTH_GROUPS - 1))];
  for (let k = drawn - 1; k >= MAX_WIDE_EDGES; k--) add(k, groupOfEdge);
  pen.lineWidth = 1 / view.ratio;
  groups.forEach((path, g) => {
    pen.globalAlpha = opacity(
      Math.floor(g / DEPTH_GROUPS) / (WEIGHT_GROUPS - 1),
      (g % DEPTH_GROUPS) / (DEPTH_GROUPS - 1),
    );
    pen.stroke(path);
  });
  for (let k = Math.min(drawn, MAX_WIDE_EDGES) - 1; k >= 0; k--) {
    pen.beginPath();
    add(k, () => pen);
    pen.lineWidth = 1 + share * 3.2 * crowd;
    pen.globalAlpha = opacity(share, near);
    pen.stroke();
  }
  pen.globalAlpha = 1;
  return drawn;
}
