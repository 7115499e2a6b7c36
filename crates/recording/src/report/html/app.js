/* Puts the page together from the report that it holds.
 *
 * Promise: whatever the report lacks, the rest is shown; nothing is fetched, stored or sent.
 */

function headline(report) {
  if (report.requests === 0) return "No sync requests were recorded";
  const waited = isNumber(report.waiting_s) ? report.waiting_s : undefined;
  if (waited === undefined || !(report.wall_s > 0)) {
    return isNumber(report.requests) ? counted(report.requests, "sync request") : "Sync requests";
  }
  return `${secondsOf(waited, report.wall_s)} were spent in syncs`;
}

function lead(report) {
  const waited = isNumber(report.waiting_share) ? report.waiting_share
    : report.waiting_s / report.wall_s;
  const said = [];
  if (isNumber(waited) && report.requests > 0) {
    said.push(`${percent(waited)} of the time at least one thread waited for a sync`);
  }
  if (report.sync_s > report.waiting_s * 1.05) {
    said.push(`all threads together waited ${seconds(report.sync_s)}`);
  }
  const text = said.length > 0 ? `${said.join("; ")}.` : "";
  return { text, share: isNumber(waited) ? waited : undefined };
}

function keyFigures(report) {
  const q = report.quantiles || {};
  const needlessOf = report.needless_known_of > 0
    ? `${percent(report.needless / report.needless_known_of)} of those known` : undefined;
  const figures = [
    ["Requests", report.requests, count, report.real !== report.requests && isNumber(report.real)
      ? `${count(report.real)} carried out at once` : undefined],
    ["Half took up to", q.p50_ns, nanoseconds],
    ["99 % took up to", q.p99_ns, nanoseconds],
    ["Longest", q.max_ns, nanoseconds],
    ["Needless", report.needless, count, needlessOf],
    ["Hints", report.hints || undefined, count, "sync_file_range: no durability"],
  ].filter(([, value]) => isNumber(value));
  if (figures.length === 0) return undefined;
  return el("dl", { class: "figures" }, figures.map(([name, value, write, more]) =>
    el("div", {}, el("dt", {}, name),
      el("dd", {}, write(value), has(more) && el("small", {}, more)))));
}

function warnings(report) {
  const said = [];
  const r = report.recording || {};
  if (r.complete === false || has(r.missing)) {
    const what = has(r.missing) ? r.missing : "Its end is missing.";
    said.push(["This recording is not whole. ", what]);
  }
  if (report.lost > 0) {
    const one = (p, i) => [i > 0 && ", ", el("bdi", {}, has(p.exe) ? p.exe : "a process"),
      has(p.pid) && ` (pid ${shown(p.pid)})`, `: ${count(p.lost)}`];
    const by = list(report.lost_by_process).slice(0, 8).map(one);
    const what = report.lost === 1 ? "1 request was" : `${count(report.lost)} requests were`;
    said.push([`${what} not recorded, `, "because a ring was full. All figures here are without ",
      "them. ", by]);
  }
  const escaped = list(report.escaped);
  if (escaped.length > 0) {
    const one = (e, i) => [i > 0 && "; ", el("bdi", {}, shown(e.exe)), `, pid ${shown(e.pid)}: `,
      has(e.requests) ? counted(e.requests, "request") : "requests", ", ", shown(e.why)];
    said.push(["Some escaped, and are not in any figure here: ", escaped.slice(0, 8).map(one),
      escaped.length > 8 && ` and ${counted(escaped.length - 8, "program")} more`, "."]);
  }
  if (has(report.escapes_unknown)) {
    said.push(["What else escaped cannot be known: ", shown(report.escapes_unknown), "."]);
  }
  if (report.failed > 0) {
    said.push([`${counted(report.failed, "request")} failed. `,
      "What was to be made durable then may not be."]);
  }
  const settlesFailed = list(report.settles).reduce((sum, s) => sum + (s.failed || 0), 0);
  if (settlesFailed > 0) {
    said.push([`${counted(settlesFailed, "settle")} failed. `,
      "What was put off and owed there may be lost."]);
  }
  return said.map((words) => el("div", { class: "warning", role: "note" },
    el("b", {}, "Warning: "), words));
}

function when(report) {
  const map = report.heatmap;
  const cursor = makeCursor();
  const drawn = heatMap(map, cursor, isNumber(map && map.from_ns) ? map.from_ns / 1e6 : undefined);
  // Both count from the start of the recording.
  const last = list((report.samples || {}).seconds).slice(-1)[0];
  const below = strips(report.samples, drawn ? drawn.heat.span : last, cursor);
  if (!drawn && !below) return undefined;
  return section("when", "When they were slow",
    "Each cell: how many of the requests that began then took that long.",
    drawn && drawn.element, below);
}

/* Tables and distribution: the row that is chosen in the one is what the other shows. */
function whereAndHow(report) {
  const panel = distribution(report);
  let now;
  const mark = (row, name, pressed) => {
    row.classList.toggle("chosen", pressed);
    name.setAttribute("aria-pressed", String(pressed));
  };
  const chosen = (group, row, name) => {
    if (!panel) return;
    const again = now && now.row === row;
    if (now) mark(now.row, now.name, false);
    now = again ? undefined : { row, name };
    if (now) mark(row, name, true);
    panel.show(again ? undefined : group);
    const beside = window.matchMedia("(min-width: 1240px)").matches;
    if (now && !beside) panel.element.scrollIntoView({ block: "start" });
  };
  const tables = tablesOf(report, chosen);
  if (panel) {
    panel.element.addEventListener("everything", () => {
      if (now) {
        mark(now.row, now.name, false);
        now.name.focus();
      }
      now = undefined;
      panel.show();
    });
  }
  return el("div", { class: panel && tables ? "beside" : "" }, tables, panel && panel.element);
}

function themeSwitch() {
  const button = document.getElementById("theme");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  dark.addEventListener("change", name);
  button.hidden = false;
  name();
}

/* A time without the fractions of its second: `2026-03-14 02:11:09 UTC`. */
function moment(text) {
  const found = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?Z$/.exec(text || "");
  return found ? `${found[1]} ${found[2]} UTC` : text;
}

function contents(sections) {
  const links = sections.map((s) => [s.id, s.querySelector("h2").textContent]);
  return el("nav", { "aria-label": "Parts of the report" },
    el("ul", {}, links.map(([id, text]) => el("li", {}, el("a", { href: `#${id}` }, text)))));
}

function read() {
  try {
    return JSON.parse(document.getElementById("report").textContent);
  } catch {
    return undefined;
  }
}

function assemble() {
  themeSwitch();
  const main = document.getElementById("main");
  const report = read();
  if (report === null || typeof report !== "object" || Array.isArray(report)) {
    main.append(el("div", { class: "warning", role: "note" }, el("b", {}, "Warning: "),
      "the report in this file cannot be read; make it again with ",
      code("synclater report FILE --html OUT"), "."));
    return;
  }
  const recording = report.recording || {};
  const file = shown(recording.file);
  if (has(recording.file)) {
    document.title = `${file}: synclater report`;
    add(document.getElementById("file"), [" of ", el("bdi", {}, file)]);
  }
  const { text, share: waited } = lead(report);
  const typed = list(recording.command).length > 0 && commandLine(recording.command);
  const of = [recording.host, has(recording.kernel) && `Linux ${shown(recording.kernel)}`,
    moment(recording.started), typed];
  const known = of.filter((v) => v && has(v));
  main.append(el("div", { class: "hero" }, el("h1", {}, headline(report)),
    isNumber(waited) && bar(waited), text !== "" && el("p", {}, text),
    has(report.modes_sentence) && el("p", { class: "modes" }, report.modes_sentence),
    known.length > 0 && el("p", { class: "of" }, known.map((v, i) =>
      [i > 0 && " · ", el("bdi", {}, v)]))), ...warnings(report));
  add(main, [keyFigures(report)]);
  const small = [needless, thresholds, together, hints, settles, slowCalls]
    .map((part) => part(report));
  const parts = [when(report), whereAndHow(report), dials(report),
    el("div", { class: "pair" }, small.filter(Boolean)), settings(report), about(report)];
  const whole = el("div", {}, parts);
  const sections = [...whole.querySelectorAll("section")];
  if (sections.length > 3) main.append(contents(sections));
  main.append(whole);
  add(document.getElementById("foot"), ["Made by synclater. This file holds all that it shows, ",
    "and asks nothing of any network."]);
}

assemble();
