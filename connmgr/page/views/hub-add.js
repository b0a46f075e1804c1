// How connections come and change: one by one by a form, or from a list.

import { ApiError, call } from "../core/api.js";
import { Fields, Form, form } from "../core/forms.js";
import { fold } from "../core/names.js";
import { address, go } from "../core/navigate.js";
import { can, infoOf, isRead, refresh, store, useStore } from "../core/store.js";
import { counted, doing, html, openDialog, text, toast, useMemo, useState } from "../core/ui.js";

// Adding and changing a connection, by a form that its type's schema makes; and adding a category.

/** Types that most people look for, before the others. */
const FIRST = ["ssh", "local", "shellEnvironment", "docker", "podman"];

/** @param {string} [category] @param {string} [type] that is offered first */
export const addConnection = (category = "", type = store.types.has("ssh") ? "ssh" : [...store.types.keys()][0]) =>
  openDraft({
    title: "Add a connection",
    yes: "Add",
    isNew: true,
    before: { name: "", data: { type }, category },
    submit: async ({ name, data, ...more }) => {
      const request = { name: name || data.host || data.containerName || data.type, data, ...more };
      const { connection, added } = await call("/connection/add", request);
      await refresh("connections");
      go(address("hub", connection));
      toast(added ? `${text(request.name)} is added.` : "The same connection is stored already; here it is.");
    },
  });

/** @param {string} connection @returns {Promise<unknown>} */
export async function editConnection(connection) {
  const [info] = (await call("/connection/info", { connections: [connection] })).infos;
  const name = info.name[info.name.length - 1];
  const path = info.category.join("/");
  const category = [...store.categories.values()].find((one) => one.name.join("/") === path)?.category ?? "";
  const before = { name, data: info.rawData, category, labels: info.labels ?? {} };
  // What somebody else has saved meanwhile is not overwritten, also not by taking this back.
  let { lastModified } = info;
  const stored = async (/** @type {any} */ { category, labels = {}, ...values }) => {
    await call("/connection/update", { connection, labels, lastModified, ...values, ...(category && { category }) });
    store.infos.delete(connection);
    infoOf(connection);
    await refresh("connections");
  };
  return openDraft({
    title: `Edit ${name}`,
    yes: "Save",
    before,
    anew: () => editConnection(connection),
    submit: async (values) => {
      await stored(values);
      [{ lastModified }] = (await call("/connection/info", { connections: [connection] })).infos;
      toast(`${text(values.name)} is saved.`, { undo: () => stored(before) });
    },
  });
}

const openDraft = (/** @type {Draft} */ draft) =>
  openDialog({ title: draft.title }, (close) => html`<${Draft} ...${draft} close=${close} />`);

/** @param {Draft & {close: () => void}} props */
function Draft({ yes, isNew = false, before, submit, anew, close }) {
  const [{ data, ...rest }, change] = useState(before);
  const [isOverrun, setOverrun] = useState(false);
  const { host, type } = data;
  const schema = store.types.get(type)?.schema;
  const types = [...store.types.values()]
    .sort((one, other) => rank(one.type) - rank(other.type))
    .map((one) => [one.type, `${text(one.type)} – ${text(one.description)}`]);
  const setData = (/** @type {any} */ data) => change({ ...rest, data });
  const own = {
    required: isNew ? [] : ["name"],
    properties: {
      name: {
        maxLength: 255,
        examples: [
          isNew ? (typeof host === "string" && !store.connections.has(host) && host) || "As it shall be called" : "",
        ],
      },
      category: {
        choices: [
          ["", isNew ? "The default one, or that of the connection it is in" : "As it is"],
          ...[...store.categories.values()].map((one) => [one.category, text(one.name.join(" / "))]),
        ],
      },
      labels: {
        format: "pairs",
        description: "One a line, as name=value; commands choose machines by them.",
        examples: ["env=prod"],
      },
      validate: {
        title: "Test it first",
        type: "boolean",
        default: false,
        description: `Connect, and ${isNew ? "add" : "change"} nothing if that fails.`,
      },
    },
  };
  const asked = async () => {
    const { category, ...others } = rest;
    try {
      await submit({ data, ...others, ...(category && { category }) });
    } catch (error) {
      setOverrun(error instanceof ApiError && error.code === "connection_changed");
      throw error;
    }
    close();
  };
  const openAnew = doing(async () => {
    close();
    await anew?.();
  });
  return html`
    <${Form} yes=${yes} cancel=${close} submit=${asked} busy=${rest.validate && "Connecting, to see whether it works"}>
      ${isNew && html`<${Fields} schema=${{ required: ["type"], properties: { type: { choices: types } } }} value=${data} change=${({ type }) => setData({ type })} />`}
      ${
        schema
          ? html`<${Fields} key=${type} schema=${schema} value=${data} change=${setData} />`
          : html`<p class="fault">No installed plugin offers the type ${text(type)}; its data stays as it is.</p>`
      }
      <${Fields} schema=${own} value=${rest} change=${(given) => change({ data, ...given })} isWhole />
      ${
        isOverrun &&
        html`<p class="note">Somebody else has saved this connection since the form was opened, and what they saved stays.
          What you wrote is still here; opening the form anew discards it. <button type="button" onClick=${openAnew}>Open it anew</button></p>`
      }
    <//>
  `;
}

const rank = (/** @type {string} */ type) => FIRST.indexOf(type) + 1 || FIRST.length + 1;

/** @param {string} [parent] */
export function addCategory(parent = store.root) {
  const above = store.categories.get(parent);
  return form({
    title: `New category${above ? ` in ${above.name.join("/")}` : ""}`,
    properties: { name: {} },
    yes: "Create",
    work: async ({ name }) => {
      await call("/category/add", { name, parent });
      await refresh("categories");
    },
  });
}

// Connections from a list: an ssh configuration, lines of hosts, or what `connmgr export` writes. What would be added is
// shown first; it is then stored in one step, or nothing is.

const MOST_SHOWN = 200;

/**
 * One of the list: `called` are the names by which others of it may refer to it, `lacks` its secrets, which are to be
 * given afterwards.
 * @typedef {{name: string, data: Record<string, any>, path?: string[], category?: string[], called?: string[], labels?: Record<string, string>, lacks?: string[], id?: string}} Entry
 */

/** @typedef {{entries: Entry[], problems: string[], categories?: string[][]}} Found */

/** What a text holds: an export, blocks of `Host` as in ssh_config, or lines such as `user@host:port name`. @param {string} given @returns {Found} */
function read(given) {
  if (isExport(given)) return readExport(given);
  return /^\s*host\s/im.test(given) ? readConfig(given) : readLines(given);
}

/** @param {string} given @returns {Found} */
function readLines(given) {
  /** @type {Found} */
  const found = { entries: [], problems: [] };
  given.split("\n").forEach((line, index) => {
    const said = line.replace(/#.*/, "").trim();
    if (!said) return;
    const [where, name, ...rest] = said.split(/[\s,;]+/);
    const parts = /^(?:([^@\s]+)@)?(\[[0-9a-f:.]+\]|[^:@/\s]+)(?::(\d{1,5}))?$/i.exec(where.replace(/^ssh:\/\//, ""));
    if (!parts || rest.length) {
      found.problems.push(`Line ${index + 1}: ${text(said)}: write user@host:port, and a name if it has another.`);
      return;
    }
    const [, user, host, port] = parts;
    const bare = host.replace(/^\[|\]$/g, "");
    found.entries.push({
      name: name ?? bare,
      data: { type: "ssh", host: bare, ...(user && { user }), ...(port && { port: Number(port) }) },
    });
  });
  return found;
}

/** As ssh reads it: each block is about the names that its patterns match, and the first that says something counts. @param {string} given @returns {Found} */
function readConfig(given) {
  /** @type {Found} */
  const found = { entries: [], problems: [] };
  let open = { patterns: ["*"], settings: /** @type {[key: string, value: string][]} */ ([]) };
  const blocks = [open];
  given.split("\n").forEach((line, index) => {
    const parts = /^\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*$/.exec(line.replace(/^\s*#.*/, ""));
    if (!parts) return;
    const [, keyword, quoted] = parts;
    const value = quoted.replace(/^"(.*)"$/, "$1");
    const key = keyword.toLowerCase();
    const refuse = (/** @type {string} */ why) => found.problems.push(`Line ${index + 1}: ${keyword} ${why}`);
    if (key === "host" || key === "match") {
      const patterns = key === "host" ? value.split(/\s+/) : [];
      open = { patterns, settings: [] };
      blocks.push(open);
      for (const name of patterns)
        if (!/[*?!]/.test(name) && !found.entries.some((one) => one.name === name))
          found.entries.push({ name, data: { type: "ssh" } });
      if (key === "match") refuse("is not taken, nor what stands below it.");
    } else if (key === "include") refuse("is not taken: paste that file, too.");
    else if (key === "proxycommand") refuse("is not taken; ssh reads it from its own file.");
    else if (key === "proxyjump" && !/^[^,@:]+$/.test(value))
      refuse(`${text(value)}: only a single name of this list is taken; set the gateway afterwards.`);
    else open.settings.push([key, value]);
  });
  for (const { name, data } of found.entries) {
    const isIn = (/** @type {string} */ pattern) =>
      new RegExp(
        `^${pattern
          .replace(/[.+^${}()|[\]\\]/g, "\\$&")
          .replaceAll("*", ".*")
          .replaceAll("?", ".")}$`,
      ).test(name);
    for (const { patterns, settings } of blocks) {
      if (!patterns.some(isIn) || patterns.some((one) => one[0] === "!" && isIn(one.slice(1)))) continue;
      for (const [key, value] of settings) {
        if (key === "hostname") data.host ??= value.replaceAll("%h", name);
        else if (key === "user") data.user ??= value;
        else if (key === "port" && /^\d+$/.test(value)) data.port ??= Number(value);
        else if (key === "identityfile") data.identity ??= { file: value };
        else if (key === "forwardagent") data.forwardAgent ??= value.toLowerCase() === "yes";
        else if (key === "proxyjump") data.gateway ??= value.toLowerCase() === "none" ? "" : new To(value);
      }
    }
    data.host ??= name;
    if (data.gateway === "") delete data.gateway;
  }
  return found;
}

/** @param {any} data @returns {To[]} */
const referred = (data) =>
  data instanceof To ? [data] : data !== null && typeof data === "object" ? Object.values(data).flatMap(referred) : [];

/** A copy of data in which `found` stands in place of each name. @param {any} data @param {(to: To) => any} found @returns {any} */
const settled = (data, found) =>
  data instanceof To
    ? found(data)
    : Array.isArray(data)
      ? data.map((one) => settled(one, found))
      : data !== null && typeof data === "object"
        ? Object.fromEntries(Object.entries(data).map(([name, one]) => [name, settled(one, found)]))
        : data;

/** @param {Entry[]} entries */
const byNames = (entries) =>
  new Map(entries.flatMap((one) => (one.called ?? [one.name]).filter(Boolean).map((name) => [fold(name), one])));

/** The entries in an order in which each comes after those that it refers to, as the API wants them. @param {Entry[]} entries */
function ordered(entries) {
  const names = byNames(entries);
  /** @type {Set<Entry>} */
  const sorted = new Set();
  /** @type {Set<Entry>} */
  const under = new Set();
  const put = (/** @type {Entry} */ one) => {
    if (under.has(one)) return;
    under.add(one);
    for (const { name } of referred(one.data)) {
      const other = names.get(fold(name));
      if (other) put(other);
    }
    sorted.add(one);
  };
  for (const one of entries) put(one);
  return [...sorted];
}

export function openImport() {
  return openDialog({ title: "Import connections", kind: "wide" }, (close) => html`<${Import} close=${close} />`);
}

/** @param {{close: () => void}} props */
function Import({ close }) {
  const [values, change] = useState(/** @type {{given?: string, category?: string}} */ ({}));
  const { given = "", category = "" } = values;
  const { connections, types } = useStore();
  const isReady = isRead();
  // Nothing before: all names would be new, and all types unknown.
  const { entries, problems, categories = [] } = useMemo(() => read(isReady ? given : ""), [given, isReady, types]);
  const path = store.categories.get(category)?.name;
  const hasPlaces = entries.some((one) => one.category);
  const there = useMemo(() => {
    const stored = [...connections.values()].filter((one) => !path || one.category.join("/") === path.join("/"));
    const names = new Set(stored.flatMap(callsOf));
    return new Set(
      entries.filter((one) =>
        one.category
          ? names.has(fold([...one.category, ...(one.path ?? [])].join("/"))) || names.has(one.id ?? "")
          : names.has(fold(one.name)),
      ),
    );
  }, [entries, category, connections, connections.size]);
  const fresh = ordered(entries.filter((one) => !there.has(one)));
  const submit = async () => {
    if (!isReady) throw new Error("The connections are still being read; try again in a moment.");
    const own = byNames(fresh);
    const known = new Map(
      [...store.connections.values()].flatMap((one) => callsOf(one).map((name) => [name, one.connection])),
    );
    /** @type {string[]} */
    const missing = [];
    const add = fresh.map((one, index) => {
      const found = ({ name: wanted } = new To("")) => {
        const other = own.get(fold(wanted));
        const id = other ? { label: `${fresh.indexOf(other)}` } : known.get(fold(wanted));
        if (!id)
          missing.push(`${text(one.name)} goes through ${text(wanted)}, which is neither stored nor in the list.`);
        return id;
      };
      const into = one.category ?? path;
      return {
        label: `${index}`,
        name: one.name,
        data: settled(one.data, found),
        ...(into && { category: into }),
        ...(one.labels && { labels: one.labels }),
      };
    });
    if (missing.length) throw new Error(missing.join("\n"));
    const { added } = await call("/connection/apply", { add, categories });
    await Promise.all([refresh("connections"), categories.length && can("category.query") && refresh("categories")]);
    close();
    const ids = added.filter((/** @type {any} */ one) => one.added).map((/** @type {any} */ one) => one.connection);
    const lacking = fresh.filter((one) => one.lacks?.length).length;
    toast(
      `${counted(ids.length, "connection is", "connections are")} added.${lacking ? ` ${counted(lacking, "lacks", "lack")} secrets, which no file has: edit them.` : ""}`,
      {
        undo: async () => {
          await call("/connection/apply", { remove: ids });
          await refresh("connections");
        },
      },
    );
  };
  const schema = {
    required: ["given"],
    properties: {
      given: {
        title: "A list of machines",
        description: html`Lines of <code>user@host:port name</code>, an ssh configuration, or what <code>connmgr export</code> prints.`,
        maxLength: Number.POSITIVE_INFINITY,
        rows: 7,
        examples: ["deploy@web1.example.com web1\nroot@192.0.2.7:2222\n\nor the text of ~/.ssh/config"],
      },
      ...(!hasPlaces && {
        category: {
          title: "Into the category",
          choices: [
            ["", "The default one"],
            ...[...store.categories.values()].map((one) => [one.category, text(one.name.join(" / "))]),
          ],
        },
      }),
    },
  };
  return html`
    <${Form} yes=${fresh.length ? `Add ${counted(fresh.length, "connection")}` : "Add"} cancel=${close} submit=${submit} busy="Storing them">
      <${Fields} schema=${schema} value=${values} change=${change} isWhole />
      <label class="field">Or from a file<input type="file" onChange=${async (event) => change({ ...values, given: await event.target.files[0].text() })} /></label>
      ${problems.length > 0 && html`<ul class="fault">${problems.slice(0, 20).map((one) => html`<li>${one}</li>`)}</ul>`}
      ${
        entries.length > 0 &&
        html`
        <table><caption>${counted(fresh.length, "connection")} to add${there.size > 0 ? `; ${counted(there.size, "name is", "names are")} there already, and not added again` : ""}</caption>
          <thead><tr><th scope="col">Name</th><th scope="col">Host</th><th scope="col">User</th><th scope="col">Port</th><th scope="col">Through</th><th scope="col"></th></tr></thead>
          <tbody>${entries.slice(0, MOST_SHOWN).map(
            (
              one,
              index,
            ) => html`<tr key=${index} class=${there.has(one) ? "note" : ""}><td>${text((hasPlaces ? [...(one.category ?? []), ...(one.path ?? [])] : [one.name]).join("/"))}</td><td class="mono">${typeof one.data.host === "string" ? text(one.data.host) : text(one.data.type)}</td>
            <td>${text(one.data.user ?? "")}</td><td>${one.data.port ?? ""}</td><td>${text(
              referred(one.data)
                .map((to) => to.name)
                .join(", "),
            )}</td><td>${there.has(one) ? "there already" : one.lacks?.length ? `new, without its ${text(one.lacks.join(", "))}` : "new"}</td></tr>`,
          )}</tbody></table>
        ${entries.length > MOST_SHOWN && html`<p class="note">and ${counted(entries.length - MOST_SHOWN, "more", "more")}</p>`}`
      }
    <//>
  `;
}

/** Another connection, by the name that a list gives it. */
class To {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
  }
}

const isExport = (/** @type {string} */ given) => /^connmgr:|^\s*\{\s*"connmgr"/m.test(given);

/** @param {string} given @returns {Found} */
function readExport(given) {
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
        data: { type: one.type, ...referring(schema ?? {}, one.data ?? {}, lacks) },
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
function referring(schema, value, lacks, name = "") {
  if (schema["x-connmgr-secret"]) return void lacks.push(name);
  if (schema["x-connmgr-reference"]) return new To(String(value));
  if (Array.isArray(value)) return value.map((one) => referring(schema.items ?? {}, one, lacks, name));
  if (value === null || typeof value !== "object") return value;
  const all = Object.entries(value).map(([key, one]) => [
    key,
    referring(schema.properties?.[key] ?? {}, one, lacks, key),
  ]);
  return Object.fromEntries(all.filter(([, one]) => one !== undefined));
}

/** The names by which a stored connection may be meant. @param {Connection} one */
const callsOf = (one) => [fold(one.name.join("/")), one.folded, one.connection];

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

// A file as `connmgr export` writes it: its YAML has blocks and texts alone.

/** @param {string} given @returns {any} @throws {SyntaxError} it has more than an export has. */
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
