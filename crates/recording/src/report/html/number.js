/* Numbers and names for people, written as the terminal's report writes them.
 *
 * Promise: the unit is always there; a rounded value is never shown as zero unless it is; what is
 * not known is a dash; a name cannot hold a character that steers the text around it.
 */

const UNKNOWN = "–";
const isNumber = (v) => typeof v === "number" && Number.isFinite(v);

function count(number) {
  if (!isNumber(number)) return UNKNOWN;
  return String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, ",");
}

function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/* At least two digits that matter, and no fraction from ten up. */
function twoDigits(number) {
  if (Math.round(number * 100) < 100) return (Math.round(number * 100) / 100).toFixed(2);
  if (Math.round(number * 10) < 100) return (Math.round(number * 10) / 10).toFixed(1);
  return Math.round(number).toFixed(0);
}

function parts(total, large, small) {
  const whole = `${count(Math.floor(total / 60))} ${large}`;
  return total % 60 === 0 ? whole : `${whole} ${total % 60} ${small}`;
}

function seconds(time) {
  if (!isNumber(time) || time < 0) return UNKNOWN;
  if (time === 0) return "0 s";
  if (time < 1e-9) return "less than 1 ns";
  if (time < 0.999e-6) return `${twoDigits(time * 1e9)} ns`;
  if (time < 0.999e-3) return `${twoDigits(time * 1e6)} µs`;
  if (time < 0.099) return `${twoDigits(time * 1e3)} ms`;
  if (time < 119) return `${twoDigits(time)} s`;
  if (time < 3540) return parts(Math.round(time), "min", "s");
  return parts(Math.round(time / 60), "h", "min");
}

const nanoseconds = (ns) => (isNumber(ns) ? seconds(ns / 1e9) : UNKNOWN);

function bytes(number) {
  if (!isNumber(number)) return UNKNOWN;
  if (number < 1024) return `${Math.round(number)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let size = number / 1024;
  let unit = 0;
  while (size >= 1023.5 && unit + 1 < units.length) {
    size /= 1024;
    unit += 1;
  }
  return `${twoDigits(size)} ${units[unit]}`;
}

function percent(share) {
  if (!isNumber(share)) return UNKNOWN;
  const value = share * 100;
  if (value > 0 && value < 0.05) return "under 0.1 %";
  if (value < 100 && value > 99.5) return "over 99 %";
  const whole = value >= 9.95 || value === 0;
  return `${whole ? Math.round(value) : value.toFixed(1)} %`;
}

/* Two times of one kind, to be compared: `31.2 of 36.0 s`. */
function secondsOf(part, whole) {
  if (whole >= 1 && whole < 119 && (part === 0 || part >= 0.05)) {
    return `${part.toFixed(1)} of ${whole.toFixed(1)} s`;
  }
  return `${seconds(part)} of ${seconds(whole)}`;
}

/* A time on an axis, as short as it can be: `200 µs`, `1.5 s`, `2 min`. */
function tick(time) {
  const units = [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  if (time === 0) return "0 s";
  const [size, unit] = units.find(([s]) => time >= s * 0.9999) || units[units.length - 1];
  return `${Number((time / size).toPrecision(3))} ${unit}`;
}

/* What someone else chose, made harmless: control characters, and those that turn the direction
 * of text, become their escapes. */
function shown(value) {
  if (value === undefined || value === null) return UNKNOWN;
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (typeof value === "object") {
    return Object.entries(value).map(([k, v]) => `${shown(k)}: ${shown(v)}`).join(", ");
  }
  const steering = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
  const escape = (c) => `\\u{${c.codePointAt(0).toString(16)}}`;
  return String(value).replace(steering, escape);
}

/* A command as one would type it. */
function commandLine(words) {
  if (!Array.isArray(words)) return shown(words);
  const plain = /^[\p{L}\p{N}\-_./=:,+@%]+$/u;
  const quoted = (w) => (plain.test(w) ? w : `'${w.replace(/'/g, "'\\''")}'`);
  return words.map((w) => quoted(shown(w))).join(" ");
}
