// Pointer, wheel and keyboard input on the graph; calls the functions hover, select and step of `actions`.

function handleInput(view, actions) {
  const canvas = view.overlay;
  const pointers = new Map();
  let moved = 0;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    if (pointers.size === 1) moved = 0;
  });

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    const before = pointers.get(event.pointerId);
    if (!before) {
      actions.hover(view.hit(x, y), x, y);
      return;
    }
    const [across, down] = [x - before[0], y - before[1]];
    moved += Math.hypot(across, down);
    if (pointers.size === 2) pinch(event, before, [x, y]);
    else if (moved > 4) drag(event, across, down);
    pointers.set(event.pointerId, [x, y]);
  });

  function drag(event, across, down) {
    actions.hover(null);
    if (view.solid && !event.shiftKey) view.rotate(-across * 0.01, down * 0.01);
    else view.pan(across, down);
  }

  function pinch(event, before, now) {
    const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    const far = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]);
    view.zoomBy(far(now) / Math.max(far(before), 1), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    view.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
  }

  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, (event) => {
      const [x, y] = place(event);
      if (end === "pointerup" && pointers.size === 1 && moved <= 4) actions.select(view.hit(x, y));
      pointers.delete(event.pointerId);
    });
  }
  canvas.addEventListener("pointerleave", () => actions.hover(null));
  handleWheel(view, actions, canvas, place);
  canvas.addEventListener("keydown", (event) => {
    if (handleKey(view, actions, event)) event.preventDefault();
  });
}

/** The wheel zooms, unless the page is already being scrolled or cannot be zoomed out further. */
function handleWheel(view, actions, canvas, place) {
  let last = -Infinity;
  let captured = false;
  addEventListener(
    "wheel",
    (event) => {
      if (event.timeStamp - last > 250) captured = event.target === canvas;
      last = event.timeStamp;
      if (!captured || event.target !== canvas) return;
      const step = event.deltaY * (event.deltaMode === 1 ? 30 : 1);
      const zoomed = view.zoomBy(Math.exp(-clamp(step, -200, 200) * 0.0025), ...place(event));
      if (zoomed) actions.hover(null); // the element under the pointer has moved
      if (zoomed || step < 0 || event.ctrlKey) event.preventDefault();
      else captured = false;
    },
    { passive: false },
  );
}

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Arrow keys rotate a point cloud and move between elements otherwise; with Shift the two are swapped. */
function handleKey(view, actions, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const direction = DIRECTIONS[event.key];
  if (direction) {
    const [across, down] = direction;
    if (view.solid !== event.shiftKey) {
      if (view.solid) view.rotate(-across * 0.15, down * 0.15);
      else view.pan(-across * 40, -down * 40);
    } else actions.step(across, down);
    return true;
  }
  if (event.key === "+" || event.key === "=") view.zoomBy(ZOOM_STEP);
  else if (event.key === "-") view.zoomBy(1 / ZOOM_STEP);
  else if (event.key === "0") view.resetView();
  else return false;
  return true;
}
