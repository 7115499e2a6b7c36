/* Elements, made without markup: every text becomes a text node, never HTML.
 *
 * Promise: `el` and `svg` are the only ways by which this page makes elements, and neither can run
 * what a name holds. Texts pass through `shown`.
 */

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(shown(child)));
  }
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const list = (value) => (Array.isArray(value) ? value : []);
const has = (value) => value !== undefined && value !== null && value !== "";

/* A path whose last part stands out; a long one breaks where a reader would. */
function pathName(name) {
  const text = shown(name);
  const cut = text.startsWith("/") ? text.lastIndexOf("/", text.length - 2) + 1 : 0;
  const folder = cut > 1 && el("span", { class: "folder" }, broken(text.slice(0, cut)));
  return el("bdi", {}, folder, broken(cut > 1 ? text.slice(cut) : text));
}

const broken = (text) => text.split(/(?<=[/.\-+])/).flatMap((part) => [el("wbr"), part]);

function section(id, title, lead, ...children) {
  const heading = el("h2", { id: `${id}-title` }, title);
  const said = has(lead) && el("p", { class: "lead" }, lead);
  return el("section", { id, "aria-labelledby": `${id}-title` }, heading, said, children);
}

/* A table that neither sorts nor filters: heads are texts, or [text, "number" or "long"]. With a
 * long column it is stacked where there is little room; roles keep it a table for those who hear
 * it then. */
function plainTable(caption, heads, rows) {
  const names = heads.map((h) => (Array.isArray(h) ? h[0] : h));
  const kinds = heads.map((h) => (Array.isArray(h) ? h[1] : undefined));
  const head = names.map((name, i) =>
    el("th", { scope: "col", role: "columnheader", class: kinds[i] }, name));
  const cell = (value, i) => (i === 0
    ? el("th", { scope: "row", role: "rowheader", class: kinds[i] }, value)
    : el("td", { role: "cell", class: kinds[i], "data-head": names[i] }, value));
  const line = (cells) => el("tr", { role: "row" }, cells);
  const stacked = kinds.includes("long") ? "stacked" : undefined;
  return scroller(caption, el("table", { role: "table", class: stacked },
    el("caption", { class: "unseen" }, caption),
    el("thead", { role: "rowgroup" }, line(head)),
    el("tbody", { role: "rowgroup" }, rows.map((row) => line(row.map(cell))))));
}

/* A table may be wider than the page; then it scrolls in itself, by keyboard too. */
function scroller(label, table) {
  return el("div", { class: "scroller", role: "region", "aria-label": label, tabindex: 0 }, table);
}

/* A line that fills with a share, for the eye only: the number stands beside it. */
function bar(share) {
  const inner = el("span", {});
  inner.style.width = `${Math.min(100, Math.max(0, (share || 0) * 100))}%`;
  return el("span", { class: "bar", "aria-hidden": "true" }, inner);
}

/* Where a mouse or a finger points at. A finger that is lifted has not left: what it asked for
 * stays until it asks for something else. */
function pointed(element, { at, leave }) {
  const tell = (event) => {
    const { left, top } = element.getBoundingClientRect();
    at(event.clientX - left, event.clientY - top);
  };
  element.addEventListener("pointermove", tell);
  element.addEventListener("pointerdown", tell);
  element.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") leave();
  });
  element.addEventListener("blur", leave);
}

/* Draws again when the width of the element changes. */
function drawnToWidth(element, draw) {
  let width = 0;
  const again = () => {
    const now = Math.floor(element.clientWidth);
    if (now > 0 && now !== width) {
      width = now;
      draw(width);
    }
  };
  new ResizeObserver(again).observe(element);
  return { again: () => { width = 0; again(); } };
}
