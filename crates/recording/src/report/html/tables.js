/* Groups in tables: one tab for each dimension, sorted by a click on a head, filtered by text; a
 * row can be chosen to see its distribution.
 *
 * What it relies on: by_file[] and its like, each row with `name` and figures; a figure that is
 * absent is not known and stands last in every order.
 */

/* A role is often the name itself. */
const roleOf = (r) => r.role !== r.name && r.role;

const DIMENSIONS = [
  ["by_file", "Files", "file", (r) => [r.fstype, has(r.mount) && `on ${shown(r.mount)}`, r.device]],
  ["by_process", "Processes", "process", (r) => [has(r.pid) && `pid ${shown(r.pid)}`, roleOf(r),
    r.exe, has(r.uid) && `uid ${shown(r.uid)}`]],
  ["by_program", "Programs", "program", (r) => [roleOf(r), r.exe]],
  ["by_kind", "Kinds", "kind of sync", () => []],
  ["by_filesystem", "File systems", "file system", (r) => [r.fstype, r.device]],
  ["by_device", "Devices", "device", (r) => [has(r.parents) && `on ${shown(r.parents)}`]],
  ["by_caller", "Code", "code that asked", () => []],
];

/* Key, head, what it means, how it is written, whether it is left out where it says nothing. */
const FIGURES = [
  ["sync_s", "Time", "spent in these requests, all threads together", seconds],
  ["requests", "Requests", "sync requests", count],
  ["real", "Real", "carried out at that moment", count,
    (rows) => rows.every((r) => !isNumber(r.real) || r.real === r.requests)],
  ["p50_ns", "p50", "half of the requests took up to", nanoseconds],
  ["p90_ns", "p90", "90 % of the requests took up to", nanoseconds],
  ["p99_ns", "p99", "99 % of the requests took up to", nanoseconds],
  ["max_ns", "Longest", "the longest request", nanoseconds],
  ["needless", "Needless", "nothing had changed since the last sync of the file", count,
    (rows) => rows.every((r) => !r.needless)],
  ["bytes", "Written", "bytes written before, since the last sync of the file", bytes,
    (rows) => rows.every((r) => !isNumber(r.bytes))],
];

const FIRST_ROWS = window.matchMedia("(max-width: 600px)").matches ? 10 : 25;

function tablesOf(report, chosen) {
  const dimensions = DIMENSIONS.filter(([key]) => list(report[key]).length > 0);
  if (dimensions.length === 0) return undefined;
  const range = rangeOf(cellsOf(report.histogram));
  const makers = dimensions.map((dimension) => () => groupTable(report, dimension, range, chosen));
  const panels = dimensions.map(([key, title]) => el("div", { role: "tabpanel", id: `panel-${key}`,
    "aria-labelledby": `tab-${key}`, class: "panel", "data-title": title, hidden: true }));
  const made = new Set();
  const make = (i) => {
    if (!made.has(i)) panels[i].append(...makers[i]());
    made.add(i);
  };
  // On paper there is nothing to click: all tables are there.
  window.addEventListener("beforeprint", () => panels.forEach((_, i) => make(i)));
  const tabs = dimensions.map(([key, title]) => {
    const all = report[`${key}_total`] || report[key].length;
    return el("button", { type: "button", role: "tab", id: `tab-${key}`,
      "aria-controls": `panel-${key}` }, title, " ", el("span", { class: "n" }, count(all)));
  });
  const show = (i) => {
    make(i);
    tabs.forEach((tab, k) => {
      tab.setAttribute("aria-selected", String(k === i));
      tab.tabIndex = k === i ? 0 : -1;
      panels[k].hidden = k !== i;
    });
  };
  tabs.forEach((tab, i) => tab.addEventListener("click", () => show(i)));
  const tabBar = el("div", { role: "tablist", "aria-label": "Requests by", class: "tabs" },
    tabs);
  tabBar.addEventListener("keydown", (event) => {
    const now = tabs.indexOf(document.activeElement);
    const last = tabs.length - 1;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (to === undefined || now < 0) return;
    event.preventDefault();
    const i = (to + tabs.length) % tabs.length;
    show(i);
    tabs[i].focus();
  });
  show(0);
  return section("where", "Where the time went",
    "Choose a row to see its distribution; choose a head to sort by it.", tabBar, panels);
}

function groupTable(report, [key, title, noun, about], range, chosen) {
  const groups = report[key].map((group) => ({ group, words: about(group).filter(Boolean) }));
  const rows = report[key];
  const figures = FIGURES.filter(([, , , , empty]) => !empty || !empty(rows))
    .filter(([figure]) => rows.some((r) => isNumber(r[figure])));
  const state = { by: "sync_s", down: true, filter: "", all: false };
  if (!figures.some(([figure]) => figure === "sync_s")) state.by = figures[0] && figures[0][0];
  const body = el("tbody", {});
  const said = el("p", { class: "said", role: "status" });
  const more = el("button", { type: "button", class: "quiet" });
  const heads = [["name", title], ...figures, ["shape", "Shape"]].map(([by, head, meaning]) =>
    headOf(by, head, meaning, () => sortBy(by)));
  const most = rows.reduce((m, r) => Math.max(m, r.sync_s || 0), 0) || 1;
  const elements = groups.map((g) => rowOf(g, figures, { range, most }, chosen));
  const render = () => {
    heads.forEach((th) => {
      const order = state.down ? "descending" : "ascending";
      const by = th.dataset.by === state.by;
      if (by) th.setAttribute("aria-sort", order); else th.removeAttribute("aria-sort");
    });
    const found = sorted(groups, state).filter(({ i }) => elements[i].text.includes(state.filter));
    const visible = state.all ? found : found.slice(0, FIRST_ROWS);
    body.replaceChildren(...visible.map(({ i }) => elements[i].row));
    said.textContent = rowsSaid({ visible: visible.length, found: found.length,
      given: rows.length, all: report[`${key}_total`], filtered: state.filter !== "" });
    more.hidden = found.length <= FIRST_ROWS;
    more.textContent = state.all ? `Show the first ${FIRST_ROWS}`
      : `Show all ${count(found.length)}`;
  };
  const sortBy = (by) => {
    state.down = by === state.by ? !state.down : by !== "name";
    state.by = by;
    render();
  };
  more.addEventListener("click", () => { state.all = !state.all; render(); });
  const search = el("input", { type: "search", autocomplete: "off", spellcheck: "false",
    "aria-label": `Filter by name: ${title}`, placeholder: `Filter by ${noun}` });
  search.addEventListener("input", () => { state.filter = search.value.toLowerCase(); render(); });
  render();
  const table = el("table", { class: "groups" }, el("caption", { class: "unseen" },
    `Requests by ${noun}`), el("thead", {}, el("tr", {}, heads)), body);
  return [el("div", { class: "row" }, search, said), scroller(`Requests by ${noun}`, table), more];
}

function rowsSaid({ visible, found, given, all, filtered }) {
  const whole = isNumber(all) && all > given
    ? ` The report holds the ${count(given)} with the most time, of ${count(all)}.` : "";
  if (found === 0) return `None of ${count(given)} has this in its name.${whole}`;
  if (visible < found) return `${count(visible)} of ${count(found)} shown.${whole}`;
  return filtered ? `${count(found)} of ${count(given)}.${whole}` : whole.trim();
}

function headOf(by, head, meaning, clicked) {
  const kind = by === "name" ? "name" : "number";
  if (by === "shape") return el("th", { scope: "col" }, head);
  return el("th", { scope: "col", class: `${kind} ${by}`, "data-by": by },
    el("button", { type: "button", title: meaning, onclick: clicked }, head));
}

/* The order of the rows; what is not known stands last, both ways. */
function sorted(groups, { by, down }) {
  const known = (v) => (by === "name" ? has(v) : isNumber(v));
  const order = groups.map((g, i) => ({ i, v: g.group[by] }));
  const compare = by === "name"
    ? (a, b) => String(a).localeCompare(String(b), "en", { numeric: true })
    : (a, b) => a - b;
  return order.sort((a, b) => {
    if (!known(a.v) || !known(b.v)) return known(b.v) - known(a.v) || a.i - b.i;
    return (down ? -1 : 1) * compare(a.v, b.v) || a.i - b.i;
  });
}

function rowOf({ group, words }, figures, { range, most }, chosen) {
  const name = el("button", { type: "button", class: "choose", "aria-pressed": "false" },
    pathName(group.name));
  const about = words.map(shown).join(" · ");
  const cell = ([figure, , , write]) => el("td", { class: `number ${figure}` },
    write(group[figure]), figure === "sync_s" && bar(group.sync_s / most));
  const small = about !== "" && el("small", {}, el("bdi", {}, about));
  const row = el("tr", {}, el("th", { scope: "row", class: "name" }, name, small),
    figures.map(cell), el("td", {}, shape(group.histogram, range)));
  row.addEventListener("click", () => {
    // Text that is being marked, to be copied, is no choice.
    if (String(window.getSelection()) === "") chosen(group, row, name);
  });
  return { row, text: `${shown(group.name)} ${about}`.toLowerCase() };
}
