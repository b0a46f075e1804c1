// Connections from a list: an ssh configuration, lines of hosts, or what `connmgr export` writes. What would be added is
// shown first; it is then stored in one step, or nothing is.

import { call } from "../core/api.js";
import { fold } from "../core/names.js";
import { can, refresh, store } from "../core/store.js";
import { counted, Form, hooks, html, Labeled, openDialog, text, toast } from "../core/ui.js";
import { callsOf, isExport, readExport, To } from "./export-file.js";

const { useMemo, useState } = hooks;

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

/** @param {string} given @returns {Found} */
function readConfig(given) {
  /** @type {Found} */
  const found = { entries: [], problems: [] };
  /** @type {Entry[]} */
  let open = [];
  given.split("\n").forEach((line, index) => {
    const parts = /^\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*$/.exec(line.replace(/^\s*#.*/, ""));
    if (!parts) return;
    const [, keyword, quoted] = parts;
    const value = quoted.replace(/^"(.*)"$/, "$1");
    const key = keyword.toLowerCase();
    if (key === "host") {
      const names = value.split(/\s+/).filter((name) => !/[*?!]/.test(name));
      open = names.map((name) => ({ name, data: { type: "ssh", host: name } }));
      found.entries.push(...open);
    } else if (key === "match") open = [];
    else {
      for (const { data } of open) {
        if (key === "hostname") data.host = value;
        else if (key === "user") data.user ??= value;
        else if (key === "port" && /^\d+$/.test(value)) data.port ??= Number(value);
        else if (key === "identityfile") data.identity ??= { file: value };
        else if (key === "forwardagent") data.forwardAgent ??= value.toLowerCase() === "yes";
      }
      if (key === "proxyjump" && value.toLowerCase() !== "none") {
        if (/^[^,@:]+$/.test(value)) for (const one of open) one.data.gateway = new To(value);
        else
          found.problems.push(
            `Line ${index + 1}: ProxyJump ${text(value)}: only a single name of this list is taken; set the gateway afterwards.`,
          );
      } else if (key === "proxycommand")
        found.problems.push(`Line ${index + 1}: ProxyCommand is not taken; ssh reads it from its own file.`);
    }
  });
  return found;
}

/** The connections that data refers to by their names. @param {any} data @returns {To[]} */
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

/** Entries by all their names. @param {Entry[]} entries */
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

/** Opens the dialog. */
export function openImport() {
  return openDialog({ title: "Import connections", kind: "wide" }, (close) => html`<${Import} close=${close} />`);
}

/** @param {{close: () => void}} props */
function Import({ close }) {
  const [given, give] = useState("");
  const [category, setCategory] = useState("");
  const { entries, problems, categories = [] } = useMemo(() => read(given), [given]);
  const path = store.categories.get(category)?.name;
  const hasPlaces = entries.some((one) => one.category);
  const there = useMemo(() => {
    const stored = [...store.connections.values()].filter((one) => !path || one.category.join("/") === path.join("/"));
    const names = new Set(stored.flatMap(callsOf));
    return new Set(
      entries.filter((one) =>
        one.category
          ? names.has(fold([...one.category, ...(one.path ?? [])].join("/"))) || names.has(one.id ?? "")
          : names.has(fold(one.name)),
      ),
    );
  }, [entries, category]);
  const fresh = ordered(entries.filter((one) => !there.has(one)));
  const submit = async () => {
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
  /** @param {any} event */
  const chosen = async (event) => give(await event.target.files[0].text());
  return html`
    <${Form} yes=${fresh.length ? `Add ${counted(fresh.length, "connection")}` : "Add"} cancel=${() => close()} submit=${submit} busy="Storing them">
      <${Labeled} label="A list of machines" hint=${html`Lines of <code>user@host:port name</code>, an ssh configuration, or what <code>connmgr export</code> prints.`}>${(
        /** @type {any} */ tied,
      ) => html`<textarea ...${tied} rows="7" class="mono" autofocus required spellcheck=${false} placeholder=${"deploy@web1.example.com web1\nroot@192.0.2.7:2222\n\nor the text of ~/.ssh/config"}
          value=${given} onInput=${(/** @type {any} */ event) => give(event.target.value)}></textarea>`}<//>
      <${Labeled} label="Or from a file">${(/** @type {any} */ tied) => html`<input ...${tied} type="file" onChange=${chosen} />`}<//>
      ${
        !hasPlaces &&
        html`<${Labeled} label="Into the category">${(
          /** @type {any} */ tied,
        ) => html`<select ...${tied} value=${category} onChange=${(/** @type {any} */ event) => setCategory(event.target.value)}><option value="">The default one</option>
          ${[...store.categories.values()].map((one) => html`<option key=${one.category} value=${one.category}>${text(one.name.join(" / "))}</option>`)}</select>`}<//>`
      }
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
