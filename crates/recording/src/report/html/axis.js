/* Scales and axes that the charts share. Times are in seconds, durations in nanoseconds. */

const MARGIN = { left: 58, right: 10 };

/* Steps on a time axis that people count in; about one for each 90 pixels. */
function timeTicks(span, width) {
  const steps = [1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120,
    300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  const most = Math.max(2, Math.floor(width / 90));
  const step = steps.find((s) => span / s <= most) || span || 1;
  const ticks = [];
  for (let i = 0; i * step <= span * 1.0001 && i <= most; i += 1) ticks.push(i * step);
  return ticks;
}

/* Powers of ten of nanoseconds between two, both included where they fit. */
function decades(fromNs, toNs) {
  const first = Math.ceil(Math.log10(fromNs) - 1e-9);
  const last = Math.floor(Math.log10(toNs) + 1e-9);
  const powers = [];
  for (let p = first; p <= last && powers.length < 24; p += 1) powers.push(10 ** p);
  return powers;
}

/* Where a duration lies among edges, 0 at the first, 1 for each cell: logarithmic between them. */
function placeAmong(edges, ns) {
  if (ns <= edges[0]) return 0;
  for (let i = 0; i + 1 < edges.length; i += 1) {
    if (ns <= edges[i + 1]) {
      const low = Math.max(edges[i], edges[i + 1] / 4, 1e-3);
      const part = Math.log(Math.max(ns, low) / low) / Math.log(edges[i + 1] / low);
      return i + (Number.isFinite(part) ? part : 0);
    }
  }
  return edges.length - 1;
}

const label = (x, y, text, attributes) =>
  svg("text", { x, y, class: "axis", ...attributes }, text);

/* One moment that all charts with the same time axis point at. */
function makeCursor() {
  const listeners = [];
  return {
    on: (listener) => listeners.push(listener),
    set: (time) => listeners.forEach((listener) => listener(time)),
  };
}
