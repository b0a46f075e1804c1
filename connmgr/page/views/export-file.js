// A file as `connmgr export` writes it, read back: its YAML, which has blocks and texts alone, and its connections.

import { fold } from "../core/names.js";
import { store } from "../core/store.js";
import { text } from "../core/ui.js";

/** Another connection, by the name that a list gives it. */
export class To {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
  }
}

/** @typedef {import("./hub-import.js").Entry} Entry */

export const isExport = (/** @type {string} */ given) => /^connmgr:|^\s*\{\s*"connmgr"/m.test(given);

/** @param {string} given @returns {import("./hub-import.js").Found} */
export function readExport(given) {
  /** @type {Entry[]} */
  const entries = [];
  /** @type {string[]} */
  const problems = [];
  /** @type {string[][]} */
  let categories = [];
  try {
    const {
      connmgr,
      categories: paths,
      connections,
    } = given.trimStart().startsWith("{") ? JSON.parse(given) : parse(given);
    if (connmgr !== 1) throw new SyntaxError("This is a file of another version of connmgr.");
    categories = (paths ?? []).map((/** @type {string} */ path) => path.split("/"));
    for (const one of connections ?? []) {
      const path = String(one.name).split("/");
      const schema = store.types.get(one.type)?.schema;
      if (!schema) problems.push(`${text(one.name)}: no installed plugin offers the type ${text(one.type)}.`);
      /** @type {string[]} */
      const lacks = [];
      const category = String(one.category ?? "default").split("/");
      entries.push({
        name: path[path.length - 1],
        path,
        category,
        called: [one.name, [...category, one.name].join("/"), one.uuid],
        data: { type: one.type, ...read(schema ?? {}, one.data ?? {}, lacks) },
        labels: one.labels,
        lacks,
        id: one.uuid,
      });
    }
  } catch (error) {
    if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error;
    problems.push(error instanceof SyntaxError ? error.message : "This is not what connmgr export writes.");
  }
  return { entries: problems.length ? [] : entries, problems, categories };
}

/** Data with names in place of references; secrets, which no file has, are left out and noted. @param {any} schema @param {any} value @param {string[]} lacks @param {string} [name] @returns {any} */
function read(schema, value, lacks, name = "") {
  if (schema["x-connmgr-secret"]) return void lacks.push(name);
  if (schema["x-connmgr-reference"]) return new To(String(value));
  if (Array.isArray(value)) return value.map((one) => read(schema.items ?? {}, one, lacks, name));
  if (value === null || typeof value !== "object") return value;
  const all = Object.entries(value).map(([key, one]) => [key, read(schema.properties?.[key] ?? {}, one, lacks, key)]);
  return Object.fromEntries(all.filter(([, one]) => one !== undefined));
}

/** The names by which a stored connection may be meant. @param {import("../core/store.js").Connection} one */
export const callsOf = (one) => [fold(one.name.join("/")), one.folded, one.connection];

const KEY = /^([\w.+-]+|'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"):(?:\s+(\S.*))?\s*$/s;
const CONSTANTS = /** @type {Record<string, any>} */ ({ "": null, "~": null, null: null, "{}": {}, "[]": [] });
const ESCAPES = /** @type {Record<string, string>} */ ({
  0: "\0",
  a: "\x07",
  b: "\b",
  t: "\t",
  n: "\n",
  v: "\v",
  f: "\f",
  r: "\r",
  e: "\x1b",
  N: "\x85",
  _: "\xa0",
  L: "\u2028",
  P: "\u2029",
});

/** The value of a YAML text. @param {string} given @returns {any} @throws {SyntaxError} it has more than an export has. */
export function parse(given) {
  const lines = given.replaceAll("\r", "").split("\n");
  let at = 0;
  const wrong = () =>
    new SyntaxError(`Line ${at + 1} is not written as connmgr export does; connmgr apply -f reads all of YAML.`);
  /** The indentation of the next line with content, or -1 at the end. */
  const next = () => {
    while (at < lines.length && /^\s*(#.*)?$|^---\s*$/.test(lines[at])) at += 1;
    return at < lines.length ? lines[at].search(/\S/) : -1;
  };
  const isItem = () => /^\s*-( |$)/.test(lines[at]);
  /** @param {number} indent @returns {any[]} */
  const sequence = (indent) => {
    const all = [];
    while (next() === indent && isItem()) {
      // What stands behind the dash has its own place as its indentation.
      lines[at] = lines[at].replace("-", " ");
      if (!lines[at].trim()) all.push(block(indent + 1));
      else if (isItem() || KEY.test(lines[at].trimStart())) all.push(block(indent + 1));
      else all.push(scalar(lines[at].trimStart(), indent));
    }
    return all;
  };
  /** @param {number} indent @returns {Record<string, any>} */
  const mapping = (indent) => {
    const all = [];
    while (next() === indent && !isItem()) {
      const [, key, value] = KEY.exec(lines[at].slice(indent)) ?? [];
      if (key === undefined) throw wrong();
      if (value !== undefined && !value.startsWith("#")) all.push([unquoted(key), scalar(value, indent)]);
      else {
        at += 1;
        all.push([unquoted(key), next() === indent && isItem() ? sequence(indent) : block(indent + 1)]);
      }
    }
    return Object.fromEntries(all);
  };
  /** @param {number} least @returns {any} */
  const block = (least) => {
    const indent = next();
    if (indent < least) return null;
    return isItem() ? sequence(indent) : mapping(indent);
  };
  /** A text, a number or a constant, which may go on in deeper lines. @param {string} first @param {number} indent */
  const scalar = (first, indent) => {
    const quote = /^['"]/.exec(first)?.[0];
    const whole = quote === "'" ? /^('(?:[^']|'')*')\s*(?:#.*)?$/s : /^("(?:[^"\\]|\\.)*")\s*(?:#.*)?$/s;
    let said = quote ? first : first.replace(/\s#.*/, "");
    let breaks = "";
    for (at += 1; at < lines.length && !(quote && whole.test(said)); at += 1) {
      const line = lines[at].trim();
      if (line && !quote && lines[at].search(/\S/) <= indent) break;
      if (!line) breaks += "\n";
      else {
        // A line ends in a blank, unless a backslash stands before it or empty lines follow.
        said =
          quote === '"' && said.endsWith("\\") && !breaks
            ? said.slice(0, -1) + line
            : said.trimEnd() + (breaks || " ") + line;
        breaks = "";
      }
    }
    if (quote) {
      const found = whole.exec(said);
      if (!found) throw wrong();
      return unquoted(found[1]);
    }
    said = said.trim();
    const short = /^\{\s*(\w+):\s+([\w-]+)\s*\}$/.exec(said);
    if (short) return { [short[1]]: short[2] };
    if (Object.hasOwn(CONSTANTS, said)) return CONSTANTS[said];
    if (/^[[{&*!|>%@`]|:(\s|$)/.test(said)) throw wrong();
    if (/^[-+]?(\d+|(\d+\.\d*|\.\d+)(e[-+]\d+)?)$/i.test(said)) return Number(said);
    return /^(true|yes|on)$/i.test(said) || (/^(false|no|off)$/i.test(said) ? false : said);
  };
  const value = block(0);
  if (next() >= 0) throw wrong();
  return value;
}

/** @param {string} said */
function unquoted(said) {
  // PyYAML indents what follows the line separators of Unicode, too.
  if (said.startsWith("'"))
    return said
      .slice(1, -1)
      .replaceAll("''", "'")
      .replace(/([\x85\u2028\u2029]) +/g, "$1");
  if (!said.startsWith('"')) return said;
  return said
    .slice(1, -1)
    .replace(/\\(?:x(..)|u(.{4})|U(.{8})|(.))/gs, (_, x, u, U, one) =>
      one === undefined ? String.fromCodePoint(Number.parseInt(x ?? u ?? U, 16)) : (ESCAPES[one] ?? one),
    );
}
