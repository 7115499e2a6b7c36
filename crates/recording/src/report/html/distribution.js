/* How long requests took: a histogram over a logarithmic axis, of all of them or of one group, with
 * the percentiles; and the small shapes of it in the tables.
 *
 * What it relies on: histogram[{from_ns, to_ns, n}] in order; empty cells may be left out.
 */

const HEIGHTS = [["number", "requests"], ["time", "time"], ["log", "requests (log)"]];

/* Cells that can be drawn, with the time that their requests took together, as well as that is
 * known: each counts with the middle of its cell. */
function cellsOf(histogram) {
  const sound = (c) => c && isNumber(c.from_ns) && isNumber(c.to_ns) && c.to_ns > c.from_ns &&
    c.n > 0;
  return list(histogram).filter(sound).map((c) => {
    const from = Math.max(c.from_ns, c.to_ns / 2, 0.5);
    return { from, to: c.to_ns, low: c.from_ns, n: c.n, time: c.n * Math.sqrt(from * c.to_ns) };
  });
}

function rangeOf(cells) {
  const from = cells.reduce((m, c) => Math.min(m, c.from), Infinity);
  const to = cells.reduce((m, c) => Math.max(m, c.to), 0);
  return { from: Math.log(from) - 0.25, to: Math.log(to) + 0.25 };
}

const total = (cells, key) => cells.reduce((sum, c) => sum + c[key], 0) || 1;

function heightsOf(cells, by) {
  if (by === "log") return cells.map((c) => Math.log10(c.n) + 0.3);
  const whole = total(cells, by === "time" ? "time" : "n");
  return cells.map((c) => (by === "time" ? c.time : c.n) / whole);
}

const MARKS = [["p50_ns", "p50"], ["p90_ns", "p90"], ["p99_ns", "p99"], ["p999_ns", "p99.9"]];

/* The panel: `show(subject)` draws another group; without one, all requests. */
function distribution(report) {
  const all = cellsOf(report.histogram);
  const everything = { name: undefined, histogram: report.histogram, ...report.quantiles };
  const range = rangeOf(all);
  if (all.length === 0) return undefined;
  const state = { subject: everything, by: "number" };
  const title = el("h2", { id: "distribution-title" });
  const back = el("button", { type: "button", class: "quiet", hidden: true }, "Show all requests");
  const tip = el("output", { class: "tip", "aria-live": "polite", hidden: true });
  const plot = el("div", { class: "plot", tabindex: 0, role: "group", "aria-label": "" });
  const figures = el("p", { class: "figures-line" });
  const modes = el("p", { class: "modes" }, has(report.modes_sentence) && report.modes_sentence);
  const key = el("p", { class: "figures-line" }, svg("svg", { width: 22, height: 10,
    "aria-hidden": "true" }, svg("path", { d: "M0 9V3H10V6H22", class: "outline" })),
  " the same share of all requests");
  const drawn = drawnToWidth(plot, (width) => {
    const what = { ...state, width, all, range, report, everything };
    plot.replaceChildren(drawDistribution(what), tip);
    tip.hidden = true;
  });
  const show = (subject) => {
    state.subject = subject || everything;
    const own = state.subject !== everything;
    title.replaceChildren(...(own ? ["How long they took: ", pathName(state.subject.name)]
      : ["How long requests took"]));
    back.hidden = !own;
    modes.hidden = own;
    key.hidden = !own || state.by === "log";
    figures.textContent = figuresOf(state.subject);
    plot.setAttribute("aria-label", `Histogram. ${figures.textContent} Arrow keys read bars.`);
    drawn.again();
  };
  back.addEventListener("click", () => panel.dispatchEvent(new CustomEvent("everything")));
  readBars(plot, tip, state);
  const panel = el("section", { id: "distribution", "aria-labelledby": "distribution-title" },
    el("div", { class: "row" }, title, back),
    chooseHeight((by) => { state.by = by; show(state.subject); }), plot, figures,
    modes, key);
  show();
  return { element: panel, show };
}

function figuresOf(subject) {
  const known = [["p50_ns", "half took up to"], ["p90_ns", "90 % up to"], ["p99_ns", "99 % up to"],
    ["max_ns", "the longest"]].filter(([key]) => isNumber(subject[key]));
  const said = known.map(([key, words]) => `${words} ${nanoseconds(subject[key])}`).join(", ");
  return said && `${said[0].toUpperCase()}${said.slice(1)}.`;
}

function chooseHeight(chosen) {
  const radio = ([by, text]) => el("label", {},
    el("input", { type: "radio", name: "by", value: by, checked: by === "number",
      onchange: () => chosen(by) }), el("span", {}, text));
  return el("fieldset", { class: "segments" }, el("legend", {}, "Bars:"),
    HEIGHTS.map(radio));
}

function drawDistribution({ subject, by, width, all, range, report, everything }) {
  const own = subject !== everything;
  const cells = own ? cellsOf(subject.histogram) : all;
  const [top, height, below] = [46, 170, own || soundModes(report).length === 0 ? 24 : 44];
  const base = top + height;
  const left = 12;
  const wide = width - left - 12;
  const x = (ns) =>
    left + ((Math.log(Math.max(ns, 0.5)) - range.from) / (range.to - range.from)) * wide;
  const heights = heightsOf(cells, by);
  const outline = own ? heightsOf(all, by) : [];
  const ownMost = heights.reduce((m, h) => Math.max(m, h), 0);
  const most = by === "log" ? ownMost : outline.reduce((m, h) => Math.max(m, h), ownMost);
  const y = (h) => base - (h / (most || 1)) * height;
  const image = svg("svg", { width, height: base + below, "aria-hidden": "true" });
  for (const ns of decades(Math.exp(range.from), Math.exp(range.to))) {
    image.append(svg("line", { x1: x(ns), x2: x(ns), y1: top, y2: base + 4, class: "grid" }));
    image.append(label(x(ns), base + 18, tick(ns / 1e9), { "text-anchor": "middle" }));
  }
  const bars = cells.map((c, i) => {
    const wideBar = Math.max(1.5, x(c.to) - x(c.from) - 1);
    const tall = Math.max(1, base - y(heights[i]));
    return svg("rect", { class: "column", x: x(c.from).toFixed(1), width: wideBar.toFixed(1),
      y: (base - tall).toFixed(1), height: tall.toFixed(1), "data-i": i });
  });
  image.append(svg("g", {}, bars));
  if (own && by !== "log") image.append(outlineOf(all, outline, x, y, base));
  image.append(svg("line", { x1: left, x2: width - 12, y1: base, y2: base, class: "base" }));
  percentileMarks(subject, x, top, base, width).forEach((m) => image.append(m));
  if (!own) modeMarks(report, x, base).forEach((m) => image.append(m));
  return image;
}

/* All requests, as a line around where their bars would be. */
function outlineOf(cells, heights, x, y, base) {
  let d = "";
  cells.forEach((c, i) => {
    const touches = i > 0 && Math.abs(cells[i - 1].to - c.from) < c.from * 0.01;
    if (!touches) d += `M${x(c.from)} ${base}`;
    d += `L${x(c.from)} ${y(heights[i])}H${x(c.to)}`;
    const next = cells[i + 1];
    if (!next || Math.abs(c.to - next.from) >= next.from * 0.01) d += `V${base}`;
  });
  return svg("path", { d, class: "outline" });
}

/* Labels stand in three lines, so that percentiles close to each other can all be read. */
function percentileMarks(subject, x, top, base, width) {
  const ends = [-99, -99, -99];
  return MARKS.filter(([key]) => isNumber(subject[key])).flatMap(([key, name]) => {
    const at = x(subject[key]);
    const text = `${name} ${nanoseconds(subject[key])}`;
    const room = text.length * 6.9;
    const flip = at + room > width - 4;
    const start = flip ? at - room - 4 : at;
    const free = ends.findIndex((end) => end < start - 4);
    const line = free < 0 ? 2 : free;
    ends[line] = Math.max(ends[line], start + room);
    const y = 10 + line * 14;
    return [svg("line", { x1: at, x2: at, y1: y - 8, y2: base, class: "percentile" }),
      label(flip ? at - 4 : at + 4, y, text, { "text-anchor": flip ? "end" : "start",
        class: "axis strong" })];
  });
}

/* One speed alone is nothing to point at. */
function soundModes(report) {
  const sound = list(report.modes).filter((m) => isNumber(m.from_ns) && isNumber(m.to_ns));
  return sound.length > 1 ? sound : [];
}

function modeMarks(report, x, base) {
  return soundModes(report).flatMap((m) => {
    const [from, to] = [x(m.from_ns), x(m.to_ns)];
    const y = base + 28;
    return [svg("path", { class: "mode", d: `M${from} ${y - 4}V${y}H${to}V${y - 4}` }),
      label((from + to) / 2, y + 13, percent(m.share), { "text-anchor": "middle",
        class: "axis strong" })];
  });
}

function readBars(plot, tip, state) {
  let at = -1;
  const read = (i) => {
    const bars = plot.querySelectorAll(".column");
    const cells = cellsOf(state.subject.histogram);
    at = Math.min(bars.length - 1, Math.max(0, i));
    bars.forEach((b, k) => b.classList.toggle("marked", k === at));
    const c = cells[at];
    if (!c) return;
    const part = c.n / total(cells, "n");
    tip.replaceChildren(
      el("b", {}, `${counted(c.n, "request")}, ${percent(part)}`),
      el("span", {}, `took ${nanoseconds(c.low)} to ${nanoseconds(c.to)}`),
      el("span", {}, `together about ${nanoseconds(c.time)}`));
    tip.hidden = false;
    const x = Number(bars[at].getAttribute("x"));
    const onLeft = x > plot.clientWidth / 2;
    tip.style.top = "60px";
    tip.style.left = onLeft ? "" : `${x + 16}px`;
    tip.style.right = onLeft ? `${plot.clientWidth - x + 8}px` : "";
  };
  const leave = () => {
    tip.hidden = true;
    plot.querySelectorAll(".marked").forEach((b) => b.classList.remove("marked"));
  };
  pointed(plot, { leave, at: (x) => {
    const bars = [...plot.querySelectorAll(".column")];
    const i = bars.findIndex((b) => {
      const from = Number(b.getAttribute("x"));
      return x >= from - 1 && x <= from + Number(b.getAttribute("width")) + 1;
    });
    if (i < 0) leave(); else read(i);
  } });
  plot.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") leave();
    if (!by) return;
    event.preventDefault();
    read(at + by);
  });
}

/* A group's shape for a table's row, on the axis of all. */
function shape(histogram, range) {
  const [width, height] = [80, 20];
  const cells = cellsOf(histogram);
  if (cells.length === 0 || !(range.to > range.from)) return UNKNOWN;
  const most = cells.reduce((m, c) => Math.max(m, c.n), 1);
  const x = (ns) => ((Math.log(ns) - range.from) / (range.to - range.from)) * width;
  // A square root keeps a small second hump in sight.
  const d = cells.map((c) => {
    const tall = Math.max(1, Math.sqrt(c.n / most) * height);
    return `M${x(c.from).toFixed(1)} ${height}V${(height - tall).toFixed(1)}` +
      `H${Math.max(x(c.to), x(c.from) + 1).toFixed(1)}V${height}z`;
  }).join("");
  return svg("svg", { width, height, class: "shape", "aria-hidden": "true" },
    svg("path", { d: `M0 ${height - 0.5}H${width}`, class: "grid" }), svg("path", { d }));
}
