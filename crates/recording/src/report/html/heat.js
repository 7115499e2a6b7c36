/* The heat map: when requests began, how long they took, how many; and the machine's samples below
 * it on the same time axis.
 *
 * What it relies on: heatmap{from_ns, step_ns, columns, edges_ns[], cells[[column, row, n]]}.
 */

const SHADES = 7;

function heatOf(map) {
  const edges = list(map && map.edges_ns).filter(isNumber);
  const cells = list(map && map.cells).filter((c) => Array.isArray(c) && c[2] > 0);
  const rows = edges.length - 1;
  if (!map || rows < 1 || !(map.columns > 0) || !(map.step_ns > 0) || cells.length === 0) {
    return undefined;
  }
  const most = cells.reduce((m, c) => Math.max(m, c[2]), 1);
  const begun = new Map();
  const byPlace = new Map();
  for (const [column, row, n] of cells) {
    begun.set(column, (begun.get(column) || 0) + n);
    byPlace.set(`${column},${row}`, n);
  }
  // Rows without any request at either end are left out.
  const used = cells.map((c) => c[1]);
  const low = Math.max(0, used.reduce((a, b) => Math.min(a, b), rows - 1) - 1);
  const high = Math.min(rows, used.reduce((a, b) => Math.max(a, b), 0) + 2);
  const step = map.step_ns / 1e9;
  const span = step * map.columns;
  return { edges, cells, rows, most, begun, byPlace, low, high, step, span, columns: map.columns };
}

/* Shades go by the logarithm: one request and a thousand must both be seen. */
function shadeOf(n, most) {
  if (most <= 1) return SHADES - 1;
  return Math.min(SHADES - 1, Math.floor((Math.log(n) / Math.log(most)) * SHADES));
}

function heatLegend(most) {
  const firsts = [];
  for (let n = 1, shade = 0; shade < SHADES; shade += 1) {
    n = Math.max(n, Math.ceil(most ** (shade / SHADES) - 1e-9));
    if (n <= most && shadeOf(n, most) === shade) firsts.push([shade, n]);
  }
  const items = firsts.map(([shade, n], i) => {
    const last = i + 1 < firsts.length ? firsts[i + 1][1] - 1 : most;
    const text = n === last ? count(n) : `${count(n)}–${count(last)}`;
    const swatch = svg("svg", { width: 14, height: 14, "aria-hidden": "true" },
      svg("rect", { width: 14, height: 14, class: `shade${shade}` }));
    return el("li", {}, swatch, text);
  });
  return el("div", { class: "legend" }, el("span", {}, "requests in a cell"), el("ul", {}, items));
}

function heatMap(map, cursor, clock) {
  const heat = heatOf(map);
  if (!heat) return undefined;
  const tip = el("output", { class: "tip", "aria-live": "polite", hidden: true });
  const what = `Heat map of ${heat.columns} moments by duration; arrow keys move from cell to cell`;
  const plot = el("div", { class: "plot", id: "heat", tabindex: 0, role: "group",
    "aria-roledescription": "heat map", "aria-label": what });
  const at = { column: 0, row: heat.low };
  const drawn = drawnToWidth(plot, (width) => {
    heat.frame = heatFrame(heat, width);
    plot.replaceChildren(drawHeat(heat), tip);
    tip.hidden = true;
  });
  const point = (column, row) => {
    at.column = Math.min(heat.columns - 1, Math.max(0, column));
    at.row = Math.min(heat.high - 1, Math.max(heat.low, row));
    showCell(plot, heat, at, tip, clock);
    cursor.set((at.column + 0.5) * heat.step);
  };
  const leave = () => { tip.hidden = true; unmark(plot); cursor.set(undefined); };
  pointed(plot, { leave, at: (px, py) => {
    const { x, y, inside } = cellAt(heat, px, py);
    if (inside) point(x, y); else leave();
  } });
  plot.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const by = move[event.key];
    if (event.key === "Escape") leave();
    if (!by) return;
    event.preventDefault();
    point(at.column + by[0], at.row + by[1]);
  });
  return { element: el("div", {}, heatLegend(heat.most), plot), heat, drawn };
}

function heatFrame(heat, width) {
  const [tall, most] = width < 560 ? [9, 230] : [14, 310];
  const rowsShown = heat.high - heat.low;
  const height = Math.round(Math.max(120, Math.min(most, rowsShown * tall)));
  const wide = width - MARGIN.left - MARGIN.right;
  const x = (column) => Math.round(MARGIN.left + (column / heat.columns) * wide);
  const y = (row) => Math.round(8 + height - ((row - heat.low) / rowsShown) * height);
  return { width, height, wide, x, y };
}

function cellAt(heat, px, py) {
  const { wide, height } = heat.frame;
  const x = Math.floor(((px - MARGIN.left) / wide) * heat.columns);
  const y = heat.low + Math.floor(((8 + height - py) / height) * (heat.high - heat.low));
  const inside = x >= 0 && x < heat.columns && y >= heat.low && y < heat.high;
  return { x, y, inside };
}

function drawHeat(heat) {
  const { width, height, x, y } = heat.frame;
  const top = y(heat.high);
  const bottom = y(heat.low);
  const image = svg("svg", { width, height: height + 30, "aria-hidden": "true" });
  for (const ns of decades(Math.max(heat.edges[heat.low], 1), heat.edges[heat.high])) {
    const at = y(placeAmong(heat.edges, ns));
    image.append(svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at,
      class: "grid" }));
    image.append(label(MARGIN.left - 8, at + 4, tick(ns / 1e9), { "text-anchor": "end" }));
  }
  // One path for each shade: fewer elements, and no seams between cells.
  const paths = Array.from({ length: SHADES }, () => []);
  for (const [column, row, n] of heat.cells) {
    const [left, right] = [x(column), x(column + 1)];
    const [low, high] = [y(row), y(row + 1)];
    paths[shadeOf(n, heat.most)].push(`M${left} ${high}H${right}V${low}H${left}z`);
  }
  paths.forEach((path, shade) => {
    if (path.length > 0) image.append(svg("path", { d: path.join(""), class: `shade${shade}` }));
  });
  image.append(svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom,
    class: "base" }));
  const ticks = timeTicks(heat.span, heat.frame.wide);
  for (const time of ticks) {
    const at = MARGIN.left + (time / heat.span) * heat.frame.wide;
    const anchor = at > width - 30 ? "end" : "middle";
    image.append(svg("line", { x1: at, x2: at, y1: bottom, y2: bottom + 4, class: "base" }));
    image.append(label(at, bottom + 18, tick(time), { "text-anchor": anchor }));
  }
  image.append(svg("rect", { class: "mark", width: 0, height: 0 }));
  image.append(svg("line", { class: "moment", y1: top, y2: bottom, x1: -9, x2: -9 }));
  return image;
}

function unmark(plot) {
  const mark = plot.querySelector(".mark");
  if (mark) fill(mark, { width: 0, height: 0 }, []);
}

function showCell(plot, heat, at, tip, clock) {
  const { x, y, width } = heat.frame;
  const [left, top] = [x(at.column), y(at.row + 1)];
  fill(plot.querySelector(".mark"), { x: left - 0.5, y: top - 0.5,
    width: x(at.column + 1) - left + 1, height: y(at.row) - top + 1 }, []);
  const n = heat.byPlace.get(`${at.column},${at.row}`) || 0;
  const all = heat.begun.get(at.column) || 0;
  const from = at.column * heat.step;
  const began = `${tick(from)} to ${tick(from + heat.step)}`;
  const took = `${nanoseconds(heat.edges[at.row])} to ${nanoseconds(heat.edges[at.row + 1])}`;
  tip.replaceChildren(
    el("b", {}, `${counted(n, "request")} took ${took}`),
    el("span", {}, `of ${count(all)} that began ${began} after the start`),
    has(clock) && el("span", {}, clockAt(clock, from)));
  tip.hidden = false;
  tip.style.top = `${Math.max(0, top - 12)}px`;
  const onLeft = left > width / 2;
  tip.style.left = onLeft ? "" : `${x(at.column + 1) + 12}px`;
  tip.style.right = onLeft ? `${width - left + 12}px` : "";
}

/* The wall clock at a time after the start, UTC. */
function clockAt(startMs, time) {
  const at = new Date(startMs + time * 1000);
  if (Number.isNaN(at.getTime())) return "";
  return `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}
