// The hub: all connections by their categories, what state they are in, and the way to everything that is done on them.

import { call } from "../core/api.js";
import { fold, search } from "../core/names.js";
import { commandsOn, openPalette, register, run } from "../core/palette.js";
import { address, go } from "../core/router.js";
import { described, placeOf } from "../core/schema-form.js";
import {
  byPath,
  can,
  infoOf,
  load,
  nameOf,
  qualified,
  readShells,
  refresh,
  stateOf,
  store,
  useChoice,
  useStore,
} from "../core/store.js";
import {
  ago,
  confirm,
  counted,
  doing,
  Empty,
  Fault,
  failed,
  form,
  hooks,
  html,
  Rows,
  State,
  text,
  toast,
  useNarrow,
  Waiting,
} from "../core/ui.js";
import { Activity } from "./activity.js";
import { addConnection, editConnection } from "./hub-edit.js";
import { Labels } from "./labels.js";

const { useEffect, useLayoutEffect, useMemo, useRef, useState } = hooks;

const CLOSED = "connmgr.hub.closed";
const MOST_NAMED = 12;
/** The daemon's own machine, which cannot be removed. */
const LOCAL = "f0ec68aa-63f5-405c-b178-9a4454556d6b";

/**
 * @typedef {import("../core/store.js").Connection} Connection
 * @typedef {{key: string, depth: number, category: string[], id?: string, count: number, isOpen: boolean}} Folder
 * @typedef {{key: string, depth: number, one: Connection, isLoose?: boolean}} Leaf
 * @typedef {Folder | Leaf} Item
 */

const pathKey = (/** @type {string[]} */ path) => fold(path.map((part) => part.replaceAll("/", "_")).join("/"));

/** The tree as it is drawn: folders with what is in them, unless they are closed. @param {Set<string>} closed @returns {Item[]} */
function treeOf(closed) {
  /** @type {Map<string, {category: string[], id?: string, own: Connection[], count: number}>} */
  const folders = new Map();
  const folder = (/** @type {string[]} */ category) => {
    const key = pathKey(category);
    let found = folders.get(key);
    if (!found) {
      found = { category, own: [], count: 0 };
      folders.set(key, found);
      if (category.length > 1) folder(category.slice(0, -1));
    }
    return found;
  };
  for (const one of store.categories.values()) folder(one.name).id = one.category;
  for (const one of store.connections.values()) folder(one.category).own.push(one);
  for (const { category, own } of folders.values()) {
    for (let size = category.length; size > 0; size -= 1) folder(category.slice(0, size)).count += own.length;
  }
  /** @type {Item[]} */
  const items = [];
  // "!" is before every character of a name that could follow a separator's place.
  const order = [...folders].sort(([one], [other]) =>
    one.replaceAll("/", "\u0000") < other.replaceAll("/", "\u0000") ? -1 : 1,
  );
  let hiddenBelow = "";
  for (const [key, { category, id, own, count }] of order) {
    if (hiddenBelow && key.startsWith(hiddenBelow)) continue;
    const isOpen = !closed.has(key);
    hiddenBelow = isOpen ? "" : `${key}/`;
    items.push({ key: `/${key}`, depth: category.length - 1, category, id, count, isOpen });
    if (isOpen) {
      own.sort(byPath);
      for (const one of own) items.push({ key: one.connection, depth: category.length + one.name.length - 1, one });
    }
  }
  return items;
}

/** What an address means: a connection, or a category. @param {string[]} path */
function meant(path) {
  const [id] = path;
  if (path.length === 1 && store.connections.has(id)) return { one: store.connections.get(id) };
  const key = pathKey(path);
  const found = [...store.connections.values()].filter((one) => one.folded === key);
  if (found.length) return { one: found[0] };
  return { category: path.length ? key : undefined };
}

/** The address of a connection: its names, or its id where these mean several. @param {Connection} one */
function addressOf(one) {
  const path = [...one.category, ...one.name];
  const isAlone =
    path.every((part) => part && !part.includes("/")) &&
    [...store.connections.values()].filter((other) => other.folded === one.folded).length === 1;
  return isAlone ? address("hub", ...path) : address("hub", one.connection);
}

/** @param {{path: string[]}} props */
function Hub({ path }) {
  const { connections, categories, loaded } = useStore();
  const [wanted, want] = useState("");
  const [closed, close] = useState(
    () => new Set(/** @type {string[]} */ (JSON.parse(localStorage.getItem(CLOSED) ?? "[]"))),
  );
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const isNarrow = useNarrow();
  const { one, category } = useMemo(() => meant(path), [path.join("/"), connections, connections.size]);
  const result = useMemo(
    () => (wanted.trim() ? search(wanted, [...connections.values()]) : null),
    [wanted, connections, connections.size],
  );
  const items = useMemo(
    () =>
      result
        ? [...result.exact, ...result.rest].map(
            (found) => /** @type {Leaf} */ ({ key: found.connection, depth: 0, one: found, isLoose: true }),
          )
        : treeOf(closed),
    [result, closed, connections, connections.size, categories],
  );
  const at = category === undefined ? -1 : items.findIndex((item) => item.key === `/${category}`);

  // A connection that is renamed or moved while it is looked at stays in sight, at its new address.
  const seen = useRef(/** @type {{at: string, id: string} | null} */ (null));
  useEffect(() => {
    const here = path.join("/");
    if (one) seen.current = { at: here, id: one.connection };
    else if (seen.current?.at === here) {
      const moved = connections.get(seen.current.id);
      if (moved) go(addressOf(moved), { replace: true });
    }
  });

  useLayoutEffect(() => register({ name: "Search connections", key: "/", run: () => field.current?.focus() }), []);

  /** @param {Item} item @param {boolean} [isOpen] */
  const toggle = (item, isOpen) => {
    if ("one" in item) return;
    const key = item.key.slice(1);
    const next = new Set(closed);
    if (isOpen ?? closed.has(key)) next.delete(key);
    else next.add(key);
    close(next);
    localStorage.setItem(CLOSED, JSON.stringify([...next]));
  };
  /** @param {Item} item */
  const open = (item) => ("one" in item ? go(item.one === one ? "#/hub" : addressOf(item.one)) : toggle(item));
  const choice = useChoice(() => items[0] && open(items[0]));
  /** @param {KeyboardEvent} event @param {Item} item */
  const keys = (event, item) => {
    if (event.key === "." && item && "one" in item) openPalette(item.one);
    else if (event.key === "ArrowRight") toggle(item, true);
    else if (event.key === "ArrowLeft") toggle(item, false);
    else return;
    event.preventDefault();
  };
  /** @param {KeyboardEvent} event */
  const typed = (event) => {
    if (event.key === "Enter") choice.make();
    else if (event.key === "Escape") {
      want("");
      choice.forget();
      field.current?.blur();
    } else if (event.key === "ArrowDown") document.getElementById("hub-rows")?.focus();
    else return;
    event.preventDefault();
  };
  const isEmpty = loaded && connections.size < 2 && categories.size < 2 && !result;
  return html`
    <div class=${one ? "view hub with-one" : "view hub"}>
      <header>
        <h1>Hub</h1>
        <input ref=${field} type="search" class="find" aria-label="Search connections" placeholder=${isNarrow ? "Search" : "Search: name, web/*, {db,web}1  ( / )"} value=${wanted}
          spellcheck=${false} onKeyDown=${typed} onInput=${(/** @type {any} */ event) => {
            want(event.target.value);
            choice.forget();
          }} />
        ${can("connection.add") && html`<button class="primary" onClick=${() => addConnection(category === undefined ? undefined : idOf(category))}>Add</button>`}
        ${can("connection.apply") && html`<button class="seldom" onClick=${doing(openImport)}>Import</button>`}
        ${can("category.add") && html`<button class="seldom" onClick=${() => addCategory(category)}>New category</button>`}
      </header>
      <div class="split">
        <section class="tree" aria-label="Connections">
          ${!isNarrow && html`<div class="columns" aria-hidden="true"><span class="name">Name</span><span>State</span><span>Leads to</span><span>Type</span><span class="time">Last used</span></div>`}
          ${store.fault && html`<${Fault} error=${store.fault} again=${load} />`}
          ${
            store.fault && !loaded
              ? ""
              : !loaded
                ? html`<${Waiting} reason="Reading the connections" />`
                : result && !items.length
                  ? html`<${Empty} title=${result.problem ?? "No connection is called so."}>
                  <p>A name is the end of category and path, such as <code>web/root</code>; a pattern
                  has <code>*</code>, <code>?</code>, <code>[a-c]</code> or <code>{a,b}</code>, as on the command line.</p><//>`
                  : html`<${Rows} id="hub-rows" items=${items} label="Connections" keyOf=${(/** @type {Item} */ item) => item.key} open=${open} toggle=${toggle} key_=${keys}
                  active=${at >= 0 ? at : undefined} row=${(/** @type {Item} */ item) => ("one" in item ? line(item, isNarrow) : folderLine(item, toggle))}
                  levelOf=${(/** @type {Item} */ item) => item.depth + 1} isExpanded=${(/** @type {Item} */ item) => ("one" in item ? undefined : item.isOpen)}
                  classOf=${(/** @type {Item} */ item) => ("one" in item ? (item.one === one ? "chosen" : "") : "folder")} />`
          }
          ${
            isEmpty &&
            html`<${Empty} title="Add your first machine">
            <p>Give its name or address and the user, as you would give them to ssh. The page asks about its host key, and opens a terminal on it.</p>
            ${
              can("connection.add") &&
              html`<p><button class="primary" onClick=${() => addConnection()}>Add a machine</button>
              ${can("connection.apply") && html` or <button class="link" onClick=${doing(openImport)}>import a list</button>.`}</p>`
            }<//>`
          }
          ${loaded && connections.size > 1 && html`<div class="foot note"><p role="status">${result ? `${counted(result.exact.length, "connection is", "connections are")} meant${result.rest.length ? `, ${result.rest.length.toLocaleString("en")} more contain it` : ""}` : counted(connections.size, "connection")}</p>${!isNarrow && html`<${Activity} />`}</div>`}
        </section>
        ${one && html`<${Details} key=${one.connection} one=${one} />`}
        ${!one && loaded && path.length > 0 && at < 0 && !result && html`<aside class="details"><${Empty} title="No connection or category is called so here."><p>${text(path.join("/"))}</p><//></aside>`}
      </div>
    </div>
  `;
}

/** @param {string} key */
const idOf = (key) => [...store.categories.values()].find((one) => pathKey(one.name) === key)?.category;

/** @param {number} depth */
const indent = (depth) => ({ paddingLeft: `${depth * 1.1}rem` });

/** @param {Leaf} item @param {boolean} isNarrow */
function line({ one, depth, isLoose }, isNarrow) {
  const state = stateOf(one.connection);
  const info = infoOf(one.connection);
  const last = one.name[one.name.length - 1];
  const name = html`<span class="name" style=${indent(depth)}>
    ${isLoose ? html`<span class="note">${text([...one.category, ...one.name.slice(0, -1)].join("/"))}/</span>` : ""}${text(last)}</span>`;
  if (isNarrow)
    return html`${name}<${State} ...${state} /><span class="place note" style=${indent(depth)}>${text(placeOf(one.connection)) || text(one.type)}</span>`;
  return html`
    ${name}<span><${State} ...${state} /></span><span class="note">${text(placeOf(one.connection))}</span><span class="note">${text(one.type)}</span>
    <span class="time note">${info && (store.types.get(one.type) ? ago(info.lastUsed) : "–")}</span>
  `;
}

/** @param {Folder} item @param {(item: Folder) => void} toggle */
function folderLine(item, toggle) {
  const name = item.category[item.category.length - 1];
  return html`
    <span class="name" style=${indent(item.depth)}><button class="twist" tabindex="-1" aria-label=${`${item.isOpen ? "Close" : "Open"} ${text(name)}`}
      aria-expanded=${item.isOpen} onClick=${() => toggle(item)}>${text(name)}</button> <span class="note">${item.count.toLocaleString("en")}</span></span>
    ${item.id && item.count === 0 && can("category.remove") ? html`<span class="act"><button class="quiet" tabindex="-1" onClick=${() => removeCategory(item)}>Remove</button></span>` : ""}
  `;
}

/** @param {Folder} item */
async function removeCategory(item) {
  try {
    const request = { categories: [item.id], removeChildrenCategories: false, removeContents: false };
    await call("/category/remove", request);
    await refresh("categories");
    const parent = idOf(pathKey(item.category.slice(0, -1))) ?? store.root;
    const name = item.category[item.category.length - 1];
    toast(`${text(name)} is removed.`, {
      undo: () => call("/category/add", { name, parent }).then(() => refresh("categories")),
    });
  } catch (error) {
    failed(error);
  }
}

/** Asks for a list, by a dialog that most pages never need. */
const openImport = async () => (await import("./hub-import.js")).openImport();

/** @param {string} [within] the key of the category above it */
async function addCategory(within) {
  const above =
    within === undefined ? undefined : [...store.categories.values()].find((one) => pathKey(one.name) === within);
  await form({
    title: above ? `New category in ${text(above.name.join("/"))}` : "New category",
    fields: [{ name: "name", label: "Name", required: true }],
    yes: "Create",
    work: async ({ name }) => {
      await call("/category/add", { name, parent: above?.category ?? store.root });
      await refresh("categories");
    },
  });
}

/** A connection, and all that can be done with it. @param {{one: Connection}} props */
function Details({ one }) {
  useStore();
  const info = infoOf(one.connection);
  const type = store.types.get(one.type);
  const state = stateOf(one.connection);
  const shells = store.shells.get(one.connection) ?? [];
  const tunnel = store.tunnels.get(one.connection);
  const isUntold = shells.some((shell) => shell.state === "busy" && !shell.running);
  useEffect(() => {
    if (isUntold && can("shell.list")) readShells(one.connection).catch(failed);
  }, [isUntold]);
  const commands = commandsOn(one).sort((a, b) => rankOf(a) - rankOf(b));
  const own = commands.filter((command) => !AT_END.has(command));
  const atEnd = commands.filter((command) => AT_END.has(command));
  const button = (/** @type {import("../core/palette.js").Command} */ command, /** @type {string} */ look) =>
    html`<button key=${command.name} class=${look} onClick=${() => run(command, one.connection)}>${command.name}</button>`;
  return html`
    <aside class="details" aria-label=${text(one.name.join("/"))}>
      <header>
        <div><h2>${text(one.name[one.name.length - 1])}</h2><p class="note">${text([...one.category, ...one.name.slice(0, -1)].join(" / "))}</p></div>
        <a class="button close" href="#/hub" aria-label="Close">×</a>
      </header>
      <p><${State} kind=${state.kind} word=${state.word || "not connected"} /></p>
      <div class="does">${own.map((command, index) => button(command, index === 0 ? "primary" : ""))}</div>
      <dl>
        <div><dt>Type</dt><dd>${text(one.type)} <small>${type?.description ?? "No installed plugin offers this type."}</small></dd></div>
        ${
          info &&
          described(info.rawData, type?.schema).map(
            (fact) => html`<div key=${fact.name}><dt>${fact.name}</dt>
          <dd class=${fact.isSecret ? "note" : "mono"}>${fact.connection && store.connections.has(fact.connection) ? html`<a href=${address("hub", fact.connection)}>${text(fact.said)}</a>` : text(fact.said)}</dd></div>`,
          )
        }
        ${info && html`<div><dt>Labels</dt><dd><${Labels} connection=${one.connection} /></dd></div>`}
        ${info && html`<div><dt>Last used</dt><dd>${ago(info.lastUsed)}</dd></div><div><dt>Changed</dt><dd>${ago(info.lastModified)}</dd></div>`}
        <div><dt>Id</dt><dd class="mono id">${one.connection}</dd></div>
      </dl>
      ${
        tunnel &&
        html`<h3>Tunnel</h3><dl><div><dt>Listens at</dt><dd class="mono">${text(tunnel.address ?? "–")}</dd></div>
        <div><dt>Streams</dt><dd>${tunnel.streams}</dd></div>${tunnel.lastError && html`<div><dt>Last error</dt><dd>${text(tunnel.lastError.message)}</dd></div>`}</dl>`
      }
      ${
        shells.length > 0 &&
        html`<h3>Shells</h3><ul class="shells">${shells.map(
          (
            shell,
          ) => html`<li key=${shell.connection + (shell.session ?? "")}><${State} kind=${shell.state === "idle" ? "up" : shell.state} word=${shell.running ? text(shell.running.command).slice(0, 80) : shell.state} />
          <span class="note">${text(shell.session ?? (shell.connection === one.connection ? "own shell" : nameOf(shell.connection)))} · ${ago(shell.since)}</span></li>`,
        )}</ul>`
      }
      <div class="does last">${atEnd.map((command) => button(command, "quiet"))}</div>
    </aside>
  `;
}

/** Starts the shell, which is what a test of a connection is. @param {string} connection */
async function connect(connection) {
  const began = performance.now();
  const shell = await call("/shell/start", { connection });
  await refresh("shells");
  toast(
    `${text(nameOf(connection))} answers: ${text(shell.osName)}, after ${Math.round(performance.now() - began)} ms.`,
  );
}

/** @param {string} connection */
async function disconnect(connection) {
  await call("/shell/stop", { connection, all: true });
  store.links.delete(connection);
  await refresh("shells");
}

/** @param {string} connection */
async function look(connection) {
  const { added, gone, skipped } = await call("/connection/refresh", { connection });
  if (added.length) await refresh("connections");
  const found = [
    added.length && `${counted(added.length, "system")} new`,
    gone.length && `${counted(gone.length, "system")} gone`,
    skipped.length && `${skipped.length} skipped`,
  ];
  toast(`${text(nameOf(connection))}: ${found.filter(Boolean).join(", ") || "nothing new inside"}.`);
}

/** @param {boolean} state */
const toggled = (state) => async (/** @type {string} */ connection) => {
  await call("/connection/toggle", { connection, state });
  await Promise.all([can("tunnel.query") && refresh("tunnels"), can("shell.list") && refresh("shells")]);
  toast(`${text(nameOf(connection))} is ${state ? "started" : "stopped"}.`, {
    undo: () => toggled(!state)(connection),
  });
};

/** @param {string} connection */
async function removeConnection(connection) {
  const one = /** @type {Connection} */ (store.connections.get(connection));
  const below = [...store.connections.values()].filter(
    (other) => other !== one && other.folded.startsWith(`${one.folded}/`),
  );
  const named = below.slice(0, MOST_NAMED).map((other) => html`<li class="mono">${text(qualified(other))}</li>`);
  const isMeant = await confirm({
    title: `Remove ${text(one.name.join("/"))}?`,
    text: html`
      <p>What is stored of it goes, with its secrets and its list of jobs. This cannot be undone.</p>
      ${below.length > 0 && html`<p>With it:</p><ul>${named}${below.length > MOST_NAMED && html`<li>and ${below.length - MOST_NAMED} more</li>`}</ul>`}
    `,
    yes: below.length ? `Remove ${below.length + 1}` : "Remove",
    danger: true,
  });
  if (!isMeant) return;
  await call("/connection/apply", { remove: [connection] });
  await refresh("connections");
  go("#/hub", { replace: true });
  toast(`${text(one.name.join("/"))} is removed.`);
}

/** @param {string} connection */
async function forgetKey(connection) {
  const { keys } = await call("/hostkey/forget", { connection });
  toast(
    keys.length
      ? keys
          .map((/** @type {any} */ one) =>
            one.kept ? `${text(one.key)} stays: ${text(one.kept)}` : `${text(one.key)} is forgotten.`,
          )
          .join("\n")
      : "No key of this host was known.",
  );
}

const isShell = (/** @type {Connection} */ one) => one.usageCategory === "shell";
const isTunnel = (/** @type {Connection} */ one) => one.usageCategory === "tunnel";
const isUp = (/** @type {Connection} */ one) => store.shells.has(one.connection);
const isOpenTunnel = (/** @type {Connection} */ one) =>
  isTunnel(one) && (store.tunnels.get(one.connection)?.wanted ?? false);
const isSwitched = (/** @type {Connection} */ one) => store.types.get(one.type)?.toggled ?? false;

const on = /** @type {const} */ ("connection");
/** @type {import("../core/palette.js").Command[]} */
const FIRST = [
  {
    name: "Connect",
    hint: "log in, and say how long that took",
    on,
    actions: ["shell.start"],
    fits: (one) => isShell(one) && !isUp(one),
    run: connect,
  },
  {
    name: "Disconnect",
    hint: "end its shells",
    on,
    actions: ["shell.stop"],
    fits: (one) => isShell(one) && isUp(one),
    run: disconnect,
  },
  {
    name: "Open the tunnel",
    on,
    actions: ["connection.toggle"],
    fits: (one) => isTunnel(one) && !isOpenTunnel(one),
    run: toggled(true),
  },
  { name: "Close the tunnel", on, actions: ["connection.toggle"], fits: isOpenTunnel, run: toggled(false) },
  {
    name: "Start",
    hint: "start the system itself",
    on,
    actions: ["connection.toggle"],
    fits: isSwitched,
    run: toggled(true),
  },
  {
    name: "Stop",
    hint: "stop the system itself",
    on,
    actions: ["connection.toggle"],
    fits: isSwitched,
    run: toggled(false),
  },
  {
    name: "Look inside",
    hint: "find containers and other systems",
    on,
    actions: ["connection.refresh"],
    fits: (one) => isShell(one) || one.usageCategory === "group",
    run: look,
  },
];
/** @type {import("../core/palette.js").Command[]} */
const LAST = [
  { name: "Edit", on, actions: ["connection.update", "connection.info"], fits: () => true, run: editConnection },
  { name: "Forget the host key", on, actions: ["hostkey.forget"], fits: (one) => one.type === "ssh", run: forgetKey },
  { name: "Remove", on, actions: ["connection.apply"], fits: (one) => one.connection !== LOCAL, run: removeConnection },
];
/** What is offered first, in whatever order the views were loaded. */
const OFFERED = ["Open a terminal", "Open files", "Run a command", "Start a job"];
/** @param {import("../core/palette.js").Command} command */
const rankOf = (command) =>
  HUB.has(command) ? OFFERED.length + 1 : (OFFERED.indexOf(command.name) + OFFERED.length + 1) % (OFFERED.length + 1);
const AT_END = new Set(LAST);
const HUB = new Set([...FIRST, ...LAST]);
for (const command of HUB) register(command);
register({ name: "Add a connection", key: "n", actions: ["connection.add"], run: () => addConnection() });
register({ name: "Import connections", actions: ["connection.apply"], run: openImport });
register({ name: "New category", actions: ["category.add"], run: () => addCategory() });

export default { component: Hub };
