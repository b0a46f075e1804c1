// What a name means: the same rule as that of the command line (`connmgr/client/names.py`). A name is the end of category
// and path, in whole segments; a pattern has `*`, `?`, `[…]` or `{a,b}`. What is neither yet, because it is being typed,
// finds the names that contain its words.

const PATTERN = /[*?[]|\{[^}]*,/;
const MAX_ALTERNATIVES = 64;

/** In lower case by character, as the vault folds names. @param {string} text */
export const fold = (text) => [...text].map((character) => character.toLowerCase()).join("");

/** @param {string} text */
export const isPattern = (text) => PATTERN.test(text);

/**
 * The tests for a path that `pattern` stands for: one of them must hold.
 * @param {string} pattern
 * @throws {SyntaxError} it is malformed
 */
export function compile(pattern) {
  return expanded(fold(pattern)).map((one) => new RegExp(`^${source(one)}$`, "su"));
}

/** `pattern` without braces. @param {string} pattern @returns {string[]} */
function expanded(pattern) {
  const from = opening(pattern);
  if (from < 0) return [pattern];
  let depth = 0;
  let start = from + 1;
  const parts = [];
  for (let at = from; at < pattern.length; at += 1) {
    if (pattern[at] === "[") at = Math.max(at, pattern.indexOf("]", at + 2));
    if (pattern[at] === "{") depth += 1;
    if (pattern[at] === "," && depth === 1) {
      parts.push(pattern.slice(start, at));
      start = at + 1;
    }
    if (pattern[at] === "}" && --depth === 0) {
      parts.push(pattern.slice(start, at));
      const all = parts.flatMap((part) => expanded(pattern.slice(0, from) + part + pattern.slice(at + 1)));
      if (all.length > MAX_ALTERNATIVES) throw new SyntaxError("The pattern stands for too many.");
      return all;
    }
  }
  throw new SyntaxError("A brace is not closed.");
}

/** Where the first brace is that is not within brackets. @param {string} pattern */
function opening(pattern) {
  for (let at = 0; at < pattern.length; at += 1) {
    if (pattern[at] === "[") at = Math.max(at, pattern.indexOf("]", at + 2));
    else if (pattern[at] === "{") return at;
  }
  return -1;
}

const TOKEN = /\*+|\?|\[!?.[^\]]*\]|\[|[^*?[]/gsu;
const ANY = "[^/]";

/** The regular expression of a pattern without braces. @param {string} pattern */
function source(pattern) {
  const tokens = pattern.match(TOKEN) ?? [];
  const isEdge = (/** @type {string | undefined} */ token) => token === undefined || token === "/";
  let made = "";
  for (let at = 0; at < tokens.length; at += 1) {
    const token = tokens[at];
    const [before, after] = [tokens[at - 1], tokens[at + 1]];
    const isAcross = token.startsWith("**");
    if (isAcross && after === "/" && isEdge(before)) {
      // Between separators it may match no segment at all.
      made += "(?:.*/)?";
      at += 1;
    } else if (token === "/" && after?.startsWith("**") && tokens[at + 2] === undefined) {
      made += "(?:/.*)?";
      at += 1;
    } else if (isAcross) made += ".*";
    else if (token === "*") made += `${ANY}*`;
    else if (token === "?") made += ANY;
    else if (token === "[") throw new SyntaxError("A bracket is not closed.");
    else made += token.startsWith("[") ? setOf(token.slice(1, -1)) : escaped(token);
  }
  return made;
}

/** One character in or, after `!`, not in a set; a range that runs backwards has no characters. @param {string} members */
function setOf(members) {
  const isNot = members.startsWith("!");
  const all = [...(isNot ? members.slice(1) : members)];
  let made = "";
  for (let at = 0; at < all.length; at += 1) {
    const isRange = all[at + 1] === "-" && at + 2 < all.length;
    const [low, high] = [all[at], all[isRange ? at + 2 : at]];
    if (isRange) at += 2;
    if (low <= high) made += `${escaped(low)}-${escaped(high)}`;
  }
  return isNot ? `[^/${made}]` : `(?!/)[${made}]`;
}

/** @param {string} text */
const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|/]/gu, "\\$&").replaceAll("-", "\\x2d");

/** Category and path, folded: what names are the end of. @param {Named} one */
export const folded = (one) => fold([...one.category, ...one.name].map((part) => part.replaceAll("/", "_")).join("/"));

/**
 * The connections that `query` means, in their order: `exact` by the rule, and with `rest` those whose names contain its
 * words. `problem` says why a pattern is not one yet.
 * @template {Named & {folded: string}} T
 * @param {string} query @param {readonly T[]} all
 * @returns {{exact: T[], rest: T[], problem?: string}}
 */
export function search(query, all) {
  const wanted = query.trim();
  if (!wanted) return { exact: [...all], rest: [] };
  if (isPattern(wanted)) {
    try {
      const tests = compile(wanted);
      const isPath = wanted.includes("/");
      const isMeant = (/** @type {T} */ one) => {
        const segments = one.folded.split("/");
        const path = segments.slice(one.category.length).join("/");
        const held = isPath ? [path, one.folded, `all connections/${one.folded}`] : [segments[segments.length - 1]];
        return tests.some((test) => held.some((text) => test.test(text)));
      };
      return { exact: all.filter(isMeant), rest: [] };
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      return { exact: [], rest: [], problem: error.message };
    }
  }
  const name = fold(wanted);
  const words = name.split(/\s+/u);
  const exact = [];
  const rest = [];
  for (const one of all) {
    if (one.folded === name || one.folded.endsWith(`/${name}`)) exact.push(one);
    else if (words.every((word) => one.folded.includes(word) || one.type.toLowerCase() === word)) rest.push(one);
  }
  return { exact, rest };
}
