/* What the machine did meanwhile: one thin chart for each figure, on the heat map's time axis.
 *
 * What it relies on: samples{seconds[], devices[{device, ...}], machine{...}}; a list that is
 * absent, or shorter than `seconds`, leaves a gap.
 */

const share = (v) => percent(v);
const rate = (v) => (isNumber(v) ? `${v < 10 ? twoDigits(v) : count(v)}/s` : UNKNOWN);
const milliseconds = (v) => (isNumber(v) ? seconds(v / 1e3) : UNKNOWN);

const OF_DEVICE = [
  ["utilisation", "busy", share, 1],
  ["flushes_per_s", "flushes", rate],
  ["flush_wait_ms", "a flush waits", milliseconds],
  ["write_wait_ms", "a write waits", milliseconds],
];
const OF_MACHINE = [
  ["psi_io_some", "tasks wait for I/O (PSI)", share, 1],
  ["iowait", "processors wait (iowait)", share, 1],
  ["dirty_bytes", "not yet written", bytes],
];

function meanOf(values) {
  const known = list(values).filter(isNumber);
  return known.reduce((sum, v) => sum + v, 0) / Math.max(1, known.length);
}

function strips(samples, span, cursor) {
  const times = list(samples && samples.seconds);
  const devices = list(samples && samples.devices);
  const machine = (samples && samples.machine) || {};
  if (times.length === 0 || !(span > 0)) return undefined;
  const known = (of, figures) => figures.filter(([key]) => list(of[key]).some(isNumber));
  const draw = (of, figures) => known(of, figures).map(([key, name, unit, full]) =>
    strip({ name, unit, full, times, values: of[key], span, cursor }));
  // Those that the recording's requests went to come first; without any, the busiest one.
  const busiest = devices.length > 0 && devices[0].requests > 0 ? 0 : devices.reduce((best, d, i) =>
    (meanOf(d.utilisation) > meanOf(devices[best].utilisation) ? i : best), 0);
  const ofDevice = el("div", { class: "strips", id: "device-strips" });
  const choose = (i) => ofDevice.replaceChildren(...draw(devices[i], OF_DEVICE));
  const rest = draw(machine, OF_MACHINE);
  if (devices.length > 0) choose(busiest);
  if (rest.length + ofDevice.childElementCount === 0) return undefined;
  return el("div", { id: "samples" },
    devices.length > 0 && deviceHead(devices, busiest, choose), ofDevice,
    rest.length > 0 && el("h3", {}, "The machine meanwhile"),
    el("div", { class: "strips" }, rest));
}

function deviceHead(devices, busiest, choose) {
  if (devices.length === 1) return el("h3", {}, "The disk meanwhile: ", devices[0].device);
  const options = devices.map((d, i) =>
    el("option", { value: i, selected: i === busiest }, d.device));
  const select = el("select", { id: "device" }, options);
  select.addEventListener("change", () => choose(Number(select.value)));
  return el("h3", {}, el("label", { for: "device" }, "The disk meanwhile: "), select);
}

function strip({ name, unit, full, times, values, span, cursor }) {
  const known = values.filter(isNumber);
  const most = known.reduce((m, v) => Math.max(m, v), 0);
  const top = full || most || 1;
  const mostText = `at most ${unit(most)}`;
  const said = el("span", { class: "said" }, mostText);
  const plot = el("div", { class: "plot", role: "img",
    "aria-label": `${name}: ${mostText}, ${unit(meanOf(values))} on average` });
  drawnToWidth(plot, (width) => {
    plot.replaceChildren(drawStrip({ times, values, span, top, width }));
  });
  cursor.on((time) => {
    const line = plot.querySelector(".moment");
    const wide = plot.clientWidth - MARGIN.left - MARGIN.right;
    const x = time === undefined ? -9 : MARGIN.left + (time / span) * wide;
    if (line) fill(line, { x1: x, x2: x }, []);
    const at = time === undefined ? undefined : values[nearest(times, time)];
    said.textContent = isNumber(at) ? `then ${unit(at)}` : mostText;
  });
  return el("div", { class: "strip" }, el("p", {}, el("span", {}, name), said), plot);
}

function nearest(times, time) {
  let best = 0;
  times.forEach((t, i) => {
    if (Math.abs(t - time) < Math.abs(times[best] - time)) best = i;
  });
  return best;
}

function drawStrip({ times, values, span, top, width }) {
  const height = 34;
  const wide = width - MARGIN.left - MARGIN.right;
  const x = (time) => (MARGIN.left + Math.min(1, Math.max(0, time / span)) * wide).toFixed(1);
  const y = (value) => (2 + (height - 2) * (1 - Math.min(1, value / top))).toFixed(1);
  let line = "";
  let area = "";
  let from;
  const close = (to) => { if (from !== undefined) area += `L${x(to)} ${height}z`; };
  times.forEach((time, i) => {
    if (!isNumber(values[i])) {
      if (i > 0) close(times[i - 1]);
      from = undefined;
      return;
    }
    if (from === undefined) area += `M${x(time)} ${height}`;
    line += `${from === undefined ? "M" : "L"}${x(time)} ${y(values[i])}`;
    area += `L${x(time)} ${y(values[i])}`;
    from = time;
  });
  close(times[times.length - 1]);
  return svg("svg", { width, height: height + 2, "aria-hidden": "true" },
    svg("path", { d: area, class: "area" }), svg("path", { d: line, class: "line" }),
    svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: height, y2: height,
      class: "grid" }),
    svg("line", { class: "moment", x1: -9, x2: -9, y1: 0, y2: height }));
}
