/* The parts of the report that are words and small tables: dials, needless requests, groups that
 * come together, thresholds, settings, settles, slow calls, and what the recording is.
 *
 * Promise: a part whose figures are absent or empty is not there.
 */

const code = (value) => el("code", {}, value);

function dials(report) {
  const rows = list(report.dials);
  if (rows.length === 0) return undefined;
  const most = rows.reduce((m, d) => Math.max(m, d.saved_s || 0), 0);
  const table = plainTable("What each dial would save",
    ["Dial", ["Saves at most", "number"], ["Puts at stake", "long"]],
    rows.map((d) => [el("span", { class: "nowrap" }, code(`--until ${shown(d.until)}`)),
      [seconds(d.saved_s), bar(most > 0 ? d.saved_s / most : 0)],
      [labelled(d.at_stake), remark(d)]]));
  return section("dials", "What could be later",
    "From this recording alone: what it would save to put requests off, and what a power cut " +
    "could then take.", table);
}

/* What a dial's sentence says beyond figures: what is in brackets, or why there is no figure. */
function remark(dial) {
  const left = unsaid(dial.sentence, dial.at_stake);
  if (!left || !isNumber(dial.saved_s)) return left;
  const found = /\(([^()]+)\)/.exec(left.textContent);
  return found && el("small", {}, found[1]);
}

/* What a sentence says beyond what stands beside it. */
function unsaid(sentence, ...said) {
  if (!has(sentence)) return undefined;
  const without = (text, part) => text.replace(shown(part), "");
  const left = said.filter(has).reduce(without, shown(sentence));
  const rest = left.replace(/^[\s:;,]+|\s+$/g, "");
  return rest !== "" && el("small", {}, rest);
}

/* `When: ... Order: ...`, each on a line of its own. */
function labelled(text) {
  if (!has(text)) return undefined;
  return shown(text).split(/\s+(?=(?:When|Order): )/).map((line) => {
    const found = /^(When|Order):(.*)$/s.exec(line);
    return el("span", { class: "block" }, found ? [el("b", {}, `${found[1]}:`), found[2]] : line);
  });
}

function needless(report) {
  if (!isNumber(report.needless)) return undefined;
  const of = report.needless_known_of;
  const known = isNumber(of) && of > 0;
  const part = known
    ? ` of ${count(of)} of which it is known (${percent(report.needless / of)})` : "";
  const where = list(report.by_file).filter((f) => f.needless > 0)
    .sort((a, b) => b.needless - a.needless).slice(0, 5);
  const rows = where.map((f) => [pathName(f.name), count(f.needless), count(f.requests)]);
  const said = `${counted(report.needless, "request")}${part} came when nothing had changed ` +
    "since the last sync of the file.";
  return section("needless", "Needless requests", undefined, el("p", {}, said),
    rows.length > 0 && plainTable("Files with needless requests",
      ["File", ["Needless", "number"], ["Requests", "number"]], rows));
}

function together(report) {
  const groups = list(report.together);
  if (groups.length === 0) return undefined;
  const item = (g) => el("li", {}, whatCame(has(g.what) ? g.what : g.sentence),
    el("small", {}, [isNumber(g.times) && `${counted(g.times, "time")}`,
      isNumber(g.requests_each) && `${counted(g.requests_each, "request")} each`,
      isNumber(g.saves_s) && `one instead would save ${seconds(g.saves_s)}`]
      .filter(Boolean).join(" · ")));
  const most = 3;
  const rest = groups.slice(most);
  return section("together", "Always together",
    "Requests that follow each other each time: one sync could do for all of them.",
    el("ul", { class: "cards" }, groups.slice(0, most).map(item)),
    rest.length > 0 && el("details", {}, el("summary", {}, `${count(rest.length)} more`),
      el("ul", { class: "cards" }, rest.map(item))));
}

/* `program: kind file + kind file`, each request on a line of its own. */
function whatCame(what) {
  const found = /^([^:]*): (.* \+ .*)$/s.exec(shown(what));
  if (!found) return el("p", { class: "what" }, what);
  const request = (text) => {
    const cut = text.indexOf(" /");
    return el("li", {}, cut < 0 ? text : [text.slice(0, cut + 1), pathName(text.slice(cut + 1))]);
  };
  return [el("p", { class: "what" }, found[1]), el("ol", {}, found[2].split(" + ").map(request))];
}

function thresholds(report) {
  const rows = list(report.thresholds);
  if (rows.length === 0) return undefined;
  const verdict = (ok) => (ok
    ? el("span", { class: "good" }, "✓ within") : el("span", { class: "bad" }, "✗ over"));
  const table = plainTable("Thresholds people know",
    [["What", "long"], "Verdict", ["Measured", "number"], ["Limit", "number"]],
    rows.map((t) => [
      [el("span", { class: "block" }, t.name), unsaid(t.sentence, t.name),
        has(t.source) && el("small", {}, source(t.source))],
      typeof t.ok === "boolean" ? verdict(t.ok) : UNKNOWN,
      [nanoseconds(t.measured_ns), has(t.quantile) && el("small", {}, quantileName(t.quantile))],
      nanoseconds(t.limit_ns)]));
  return section("thresholds", "Thresholds people know", undefined, table);
}

function quantileName(quantile) {
  return isNumber(quantile) ? `p${Number((quantile * 100).toFixed(3))}` : quantile;
}

function settings(report) {
  const rows = list(report.settings);
  if (rows.length === 0) return undefined;
  const table = plainTable("The programs' own settings",
    ["Program", "Setting", ["Values", "long"], ["Risk", "long"]],
    rows.map((s) => [s.program, code(s.setting),
      list(s.values).length > 0 ? s.values.map((v, i) => [i > 0 && ", ", code(v)]) : s.values,
      [has(s.risk) && el("span", { class: "block" }, s.risk),
        has(s.source) && el("small", {}, source(s.source))]]));
  return section("settings", "The programs' own settings",
    "What these programs offer themselves, each with its risk.", table);
}

/* Only an address on the web is a link, and nothing is sent along when it is followed. */
function source(text) {
  const found = /^(https:\/\/[\w.-]+(?:\/[\w./#?=&%~+:@,;-]*)?)(\s.*)?$/s.exec(shown(text));
  if (!found) return el("span", {}, text);
  const [, address, rest] = found;
  const link = el("a", { href: address, rel: "noreferrer noopener" }, address.slice(8));
  return el("span", {}, link, rest);
}

function settles(report) {
  const rows = list(report.settles);
  if (rows.length === 0) return undefined;
  const failed = (s) => s.failed > 0 && el("small", { class: "bad" }, `${count(s.failed)} failed`);
  const table = plainTable("Settles", ["File system", ["Settles", "number"],
    ["Time", "number"], ["Longest", "number"]],
  rows.map((s) => [pathName(s.mount), [count(s.n), failed(s)], seconds(s.sync_s),
    nanoseconds(s.max_ns)]));
  return section("settles", "Settles", "When what was owed was made durable.", table);
}

function slowCalls(report) {
  if (list(report.io).length === 0) return undefined;
  const from = (report.recording || {}).slower_ns;
  const slow = from ? ` Slow: ${nanoseconds(from)} or more.` : "";
  return section("io", "Other calls", `Reads, writes and the like that were recorded.${slow}`,
    callTable("Other calls", list(report.io)));
}

function hints(report) {
  if (list(report.by_hint).length === 0) return undefined;
  return section("hints", "Hints", "Requests that only start to write: they keep nothing.",
    callTable("Hints", list(report.by_hint)));
}

/* Calls by kind, with whichever figures they come with. */
function callTable(caption, rows) {
  const names = [["name", "Call", shown], ["kind", "Call", shown], ["requests", "Calls", count],
    ["n", "Calls", count], ["sync_s", "Time", seconds], ["p50_ns", "p50", nanoseconds],
    ["p99_ns", "p99", nanoseconds], ["max_ns", "Longest", nanoseconds]];
  const used = names.filter(([key]) => rows.some((r) => has(r[key])));
  return plainTable(caption,
    used.map(([, head], i) => (i === 0 ? head : [head, "number"])),
    rows.map((r) => used.map(([key, , write]) => (has(r[key]) ? write(r[key]) : UNKNOWN))));
}

function about(report) {
  const r = report.recording || {};
  const engines = { library: "seen by the preload library", kernel: "seen by trace points" };
  const pairs = [["Recording", r.file], ["Host", r.host], ["Kernel", r.kernel],
    ["Began", r.started], ["Command", list(r.command).length ? commandLine(r.command) : undefined],
    ["Dial", r.until], ["Requests", engines[r.engine] || r.engine],
    ["Lasted", isNumber(report.wall_s) ? seconds(report.wall_s) : undefined],
    ["Not timed", report.untimed > 0
      ? `${counted(report.untimed, "request")}, whose end was not seen: in no sum of times`
      : undefined]];
  const known = pairs.filter(([, value]) => has(value));
  if (known.length === 0) return undefined;
  return section("about", "This recording", undefined, el("dl", { class: "pairs" },
    known.map(([name, value]) => el("div", {}, el("dt", {}, name),
      el("dd", {}, el("bdi", {}, value))))));
}
