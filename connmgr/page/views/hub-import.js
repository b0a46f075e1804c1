// Connections from a list: an ssh configuration, lines of hosts, or what `connmgr export --json` writes. What would be
// added is shown first; it is then stored in one step, or nothing is.

import { call } from "../core/api.js";
import { fold } from "../core/names.js";
import { refresh, store } from "../core/store.js";
import { counted, Form, hooks, html, Labeled, openDialog, text, toast } from "../core/ui.js";

const { useMemo, useState } = hooks;

const MOST_SHOWN = 200;

/** @typedef {{name: string, data: Record<string, any>, category?: string[], gateway?: string}} Entry */

/** @typedef {{entries: Entry[], problems: string[]}} Found */

/** What a text holds: blocks of `Host` as in ssh_config, or lines such as `user@host:port name`. @param {string} given @returns {Found} */
export function read(given) {
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
        if (/^[^,@:]+$/.test(value)) for (const one of open) one.gateway = value;
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

/** The entries in an order in which each comes after its gateway, as the API wants them. @param {Entry[]} entries */
export function ordered(entries) {
  /** @type {Entry[]} */
  const sorted = [];
  const names = new Map(entries.map((one) => [one.name, one]));
  /** @type {Set<Entry>} */
  const under = new Set();
  const put = (/** @type {Entry} */ one) => {
    if (sorted.includes(one) || under.has(one)) return;
    under.add(one);
    const gateway = one.gateway !== undefined ? names.get(one.gateway) : undefined;
    if (gateway && gateway !== one) put(gateway);
    sorted.push(one);
  };
  for (const one of entries) put(one);
  return sorted;
}

/** Opens the dialog. */
export function openImport() {
  return openDialog({ title: "Import connections", kind: "wide" }, (close) => html`<${Import} close=${close} />`);
}

/** @param {{close: () => void}} props */
function Import({ close }) {
  const [given, give] = useState("");
  const [category, setCategory] = useState("");
  const { entries, problems } = useMemo(() => read(given), [given]);
  const path = store.categories.get(category)?.name;
  const there = useMemo(() => {
    const names = new Set(
      [...store.connections.values()]
        .filter((one) => !path || one.category.join("/") === path.join("/"))
        .map((one) => fold(one.name.join("/"))),
    );
    return new Set(entries.filter((one) => names.has(fold(one.name))));
  }, [entries, category]);
  const fresh = ordered(entries.filter((one) => !there.has(one)));
  const submit = async () => {
    const labels = new Map(fresh.map((one, index) => [one.name, `${index}`]));
    const known = new Map([...store.connections.values()].map((one) => [one.name.join("/"), one.connection]));
    /** @type {string[]} */
    const missing = [];
    const add = fresh.map((one) => {
      const label = labels.get(one.name);
      const gateway =
        one.gateway === undefined
          ? undefined
          : labels.has(one.gateway)
            ? { label: labels.get(one.gateway) }
            : known.get(one.gateway);
      if (one.gateway !== undefined && gateway === undefined)
        missing.push(`${text(one.name)} goes through ${text(one.gateway)}, which is neither stored nor in the list.`);
      return {
        label,
        name: one.name,
        data: { ...one.data, ...(gateway && { gateway }) },
        ...(path && { category: path }),
      };
    });
    if (missing.length) throw new Error(missing.join("\n"));
    const { added } = await call("/connection/apply", { add });
    await refresh("connections");
    close();
    const ids = added.filter((/** @type {any} */ one) => one.added).map((/** @type {any} */ one) => one.connection);
    toast(`${counted(ids.length, "connection is", "connections are")} added.`, {
      undo: async () => {
        await call("/connection/apply", { remove: ids });
        await refresh("connections");
      },
    });
  };
  /** @param {any} event */
  const chosen = async (event) => give(await event.target.files[0].text());
  return html`
    <${Form} yes=${fresh.length ? `Add ${counted(fresh.length, "connection")}` : "Add"} cancel=${() => close()} submit=${submit} busy="Storing them">
      <${Labeled} label="A list of machines" hint=${html`Lines of <code>user@host:port name</code>, or an ssh configuration.`}>${(
        /** @type {any} */ tied,
      ) => html`<textarea ...${tied} rows="7" class="mono" autofocus required spellcheck=${false} placeholder=${"deploy@web1.example.com web1\nroot@192.0.2.7:2222\n\nor the text of ~/.ssh/config"}
          value=${given} onInput=${(/** @type {any} */ event) => give(event.target.value)}></textarea>`}<//>
      <${Labeled} label="Or from a file">${(/** @type {any} */ tied) => html`<input ...${tied} type="file" onChange=${chosen} />`}<//>
      <${Labeled} label="Into the category">${(
        /** @type {any} */ tied,
      ) => html`<select ...${tied} value=${category} onChange=${(/** @type {any} */ event) => setCategory(event.target.value)}><option value="">The default one</option>
          ${[...store.categories.values()].map((one) => html`<option key=${one.category} value=${one.category}>${text(one.name.join(" / "))}</option>`)}</select>`}<//>
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
            ) => html`<tr key=${index} class=${there.has(one) ? "note" : ""}><td>${text(one.name)}</td><td class="mono">${text(one.data.host)}</td>
            <td>${text(one.data.user ?? "")}</td><td>${one.data.port ?? ""}</td><td>${text(one.gateway ?? "")}</td><td>${there.has(one) ? "there already" : "new"}</td></tr>`,
          )}</tbody></table>
        ${entries.length > MOST_SHOWN && html`<p class="note">and ${counted(entries.length - MOST_SHOWN, "more", "more")}</p>`}`
      }
    <//>
  `;
}
