// Paths of machines. A path is bytes; here it is a string in which a byte that is not part of UTF-8 is a lone surrogate
// U+DC80 to U+DCFF, so that such a file too can be opened, renamed and removed.

const LOW = 0xdc00;
const FIRST = 0xdc80;
const LAST = 0xdcff;

/** @typedef {string | {base64: string}} Wire */

/** @param {Uint8Array} bytes @returns {string} */
export function fromBytes(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    // Byte by byte, with each longest valid sequence as its character.
    let text = "";
    for (let at = 0; at < bytes.length; ) {
      const size = [1, 2, 3, 4].find((count) => isCharacter(bytes.subarray(at, at + count), count));
      text += size ? new TextDecoder().decode(bytes.subarray(at, at + size)) : String.fromCharCode(LOW + bytes[at]);
      at += size ?? 1;
    }
    return text;
  }
}

/** @param {Uint8Array} bytes @param {number} count */
function isCharacter(bytes, count) {
  if (bytes.length < count) return false;
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return [...text].length === 1;
  } catch {
    return false;
  }
}

/** @param {string} text @returns {Uint8Array} */
export function toBytes(text) {
  /** @type {number[]} */
  const bytes = [];
  const encoder = new TextEncoder();
  for (const each of text) {
    const code = each.charCodeAt(0);
    if (each.length === 1 && code >= FIRST && code <= LAST) bytes.push(code - LOW);
    else bytes.push(...encoder.encode(each));
  }
  return Uint8Array.from(bytes);
}

/** A path as the API has it. @param {string} text @returns {Wire} */
export function toWire(text) {
  if (!/[\udc80-\udcff]/.test(text.replace(/[\ud800-\udbff][\udc00-\udfff]/g, ""))) return text;
  return { base64: btoa(String.fromCharCode(...toBytes(text))) };
}

/** @param {Wire} wire @returns {string} */
export function fromWire(wire) {
  if (typeof wire === "string") return wire;
  return fromBytes(Uint8Array.from(atob(wire.base64), (each) => each.charCodeAt(0)));
}

/** A path for an address or a query, by its bytes; slashes stay where `keep` has them. @param {string} text */
export function percent(text, keep = "") {
  return [...toBytes(text)]
    .map((byte) => {
      const each = String.fromCharCode(byte);
      return /[A-Za-z0-9._~-]/.test(each) || keep.includes(each)
        ? each
        : `%${byte.toString(16).padStart(2, "0").toUpperCase()}`;
    })
    .join("");
}

/** The reverse of `percent`. @param {string} text */
export function unpercent(text) {
  const bytes = [];
  const given = new TextEncoder().encode(text);
  for (let at = 0; at < given.length; at++) {
    const code =
      given[at] === 0x25 ? Number.parseInt(String.fromCharCode(given[at + 1], given[at + 2]), 16) : Number.NaN;
    if (Number.isNaN(code)) bytes.push(given[at]);
    else {
      bytes.push(code);
      at += 2;
    }
  }
  return fromBytes(Uint8Array.from(bytes));
}

/** @param {string} directory @param {string} name */
export function join(directory, name) {
  return directory.endsWith("/") ? directory + name : `${directory}/${name}`;
}

/** The directory above, `/` at the top. @param {string} path */
export function above(path) {
  const trimmed = path.length > 1 ? path.replace(/\/+$/, "") : path;
  if (trimmed === "~" || trimmed === "") return "~/..";
  if (trimmed.endsWith("/..")) return `${trimmed}/..`;
  const cut = trimmed.lastIndexOf("/");
  return cut <= 0 ? "/" : trimmed.slice(0, cut);
}

/** The steps of a path, each with the path that leads to it. @param {string} path */
export function crumbs(path) {
  const parts = path.split("/").filter((part) => part);
  const absolute = path.startsWith("/");
  const steps = parts.map((name, index) => ({
    name,
    path: (absolute ? "/" : "") + parts.slice(0, index + 1).join("/"),
  }));
  return absolute ? [{ name: "/", path: "/" }, ...steps] : steps;
}

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** @param {number} bytes */
export function size(bytes) {
  let [value, unit] = [bytes, 0];
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

const LETTERS = /** @type {Record<string, string>} */ ({
  file: "-",
  directory: "d",
  link: "l",
  fifo: "p",
  socket: "s",
  character: "c",
  block: "b",
});

/** The mode as ls shows it. @param {string} type @param {string} mode octal */
export function modeText(type, mode) {
  const bits = Number.parseInt(mode, 8);
  const special = [
    [0o4000, 2, "s"],
    [0o2000, 5, "s"],
    [0o1000, 8, "t"],
  ];
  const shown = [..."rwxrwxrwx"].map((letter, index) => (bits & (0o400 >> index) ? letter : "-"));
  for (const [bit, at, letter] of /** @type {[number, number, string][]} */ (special)) {
    if (bits & bit) shown[at] = shown[at] === "-" ? letter.toUpperCase() : letter;
  }
  return (LETTERS[type] ?? "?") + shown.join("");
}
