// The hub: all connections by their categories, what state they are in, and the way to everything that is done on them.

import { call } from "../core/api.js";
import { fold, search } from "../core/names.js";
import { address, go, openPalette, register } from "../core/navigate.js";
import { byPath, can, infoOf, load, nameOf, refresh, stateOf, store, useChoice, useStore } from "../core/store.js";
import {
  ago,
  counted,
  doing,
  Empty,
  Fault,
  failed,
  html,
  Rows,
  State,
  text,
  toast,
  useAnswer,
  useEffect,
  useLayoutEffect,
  useMemo,
  useNarrow,
  useRef,
  useState,
  Waiting,
} from "../core/ui.js";

const CLOSED = "connmgr.hub.closed";

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
    if (event.key === "." && item && "one" in item) pane().then(() => openPalette(item.one), failed);
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
          spellcheck=${false} onKeyDown=${typed} onInput=${(event) => {
            want(event.target.value);
            choice.forget();
          }} />
        ${can("connection.add") && html`<button class="primary" onClick=${doing(() => addConnection(category === undefined ? "" : idOf(category)))}>Add</button>`}
        ${can("connection.apply") && html`<button class="seldom" onClick=${doing(openImport)}>Import</button>`}
        ${can("category.add") && html`<button class="seldom" onClick=${doing(() => addCategory(category))}>New category</button>`}
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
                  : html`<${Rows} id="hub-rows" items=${items} label="Connections" keyOf=${(item) => item.key} open=${open} toggle=${toggle} key_=${keys}
                  active=${at >= 0 ? at : undefined} row=${(item) => ("one" in item ? line(item, isNarrow) : folderLine(item, toggle))}
                  levelOf=${(item) => item.depth + 1} isExpanded=${(item) => ("one" in item ? undefined : item.isOpen)}
                  classOf=${(item) => ("one" in item ? (item.one === one ? "chosen" : "") : "folder")} />`
          }
          ${
            isEmpty &&
            html`<${Empty} title="Add your first machine">
            <p>Give its name or address and the user, as you would give them to ssh. The page asks about its host key, and opens a terminal on it.</p>
            ${
              can("connection.add") &&
              html`<p><button class="primary" onClick=${doing(addConnection)}>Add a machine</button>
              ${can("connection.apply") && html` or <button class="link" onClick=${doing(openImport)}>import a list</button>.`}</p>`
            }<//>`
          }
          ${loaded && connections.size > 1 && html`<div class="foot note"><p role="status">${result ? `${counted(result.exact.length, "connection is", "connections are")} meant${result.rest.length ? `, ${result.rest.length.toLocaleString("en")} more contain it` : ""}` : counted(connections.size, "connection")}</p>${!isNarrow && html`<${Activity} />`}</div>`}
        </section>
        ${one && html`<${Beside} one=${one} />`}
        ${!one && loaded && path.length > 0 && at < 0 && !result && html`<aside class="details"><${Empty} title="No connection or category is called so here."><p>${text(path.join("/"))}</p><//></aside>`}
      </div>
    </div>
  `;
}

/** Where a connection leads, in a few words: the row's second column. @param {string} id */
function placeOf(id) {
  const data = infoOf(id)?.rawData;
  if (!data) return "";
  const { host, user, port } = data;
  if (typeof host === "string" && !store.connections.has(host))
    return `${user ? `${user}@` : ""}${host}${port && port !== 22 ? `:${port}` : ""}`;
  const over = host?.storeId ?? host;
  const far = data.remotePort && `${data.remoteHost ?? data.address ?? "port"}:${data.remotePort}`;
  const what = data.containerName ?? data.pod ?? data.directory ?? far ?? user ?? "";
  return over ? [what, `on ${nameOf(over)}`].filter(Boolean).join(" ") : `${what}`;
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

// What the list of machines does not need is loaded when somebody does.
const pane = () => import("./connection.js");

/** What is beside the list: a machine, and what can be done with it. @param {{one: Connection}} props */
function Beside({ one }) {
  const { answer, error, again } = useAnswer(pane, []);
  return answer
    ? html`<${answer.Pane} key=${one.connection} one=${one} />`
    : error && html`<aside class="details"><${Fault} error=${error} again=${again} /></aside>`;
}

const openImport = async () => (await import("./hub-add.js")).openImport();
/** @param {string} [category] */
const addConnection = async (category) => (await import("./hub-add.js")).addConnection(category);
/** @param {string} [within] the key of the category above it */
const addCategory = async (within) =>
  (await import("./hub-add.js")).addCategory(within === undefined ? undefined : idOf(within));

// What happened in the last hour, as two small plots below the hub: commands, and links that came up or broke.

const ACTIVITY_SECONDS = 20;
const HEIGHT = 16;
const STEP = 2;

/** A bar for each minute, upwards from `base`, or downwards with a negative `height`. @param {number[]} numbers @param {number} most @param {number} base @param {number} height */
const bars = (numbers, most, base, height) =>
  numbers
    .map((count, at) => {
      // One is seen beside a thousand.
      const size = count && Math.sign(height) * Math.max(1, Math.abs((height * count) / most));
      return size ? `M${at * STEP} ${base}h${STEP - 0.5}v${-size}h${0.5 - STEP}z` : "";
    })
    .join("");

const sum = (/** @type {number[]} */ numbers) => numbers.reduce((all, one) => all + one, 0);

/** @param {{said: string, base: number, children?: any}} props */
const Plot = ({ said, base, children }) => html`
  <svg class="plot" role="img" aria-label=${said} viewBox=${`0 0 ${60 * STEP} ${HEIGHT}`} width=${60 * STEP} height=${HEIGHT}>
    <title>${said}</title>
    <path class="ground" d=${`M0 ${base}h${60 * STEP}`} />
    ${children}
  </svg>
`;

function Activity() {
  const isShown = can("daemon.status");
  const { answer } = useAnswer(
    async () => (isShown ? (await call("/daemon/status", {}, { quiet: true })).activity : null),
    [isShown],
    { every: () => isShown && ACTIVITY_SECONDS },
  );
  return useMemo(() => answer && html`<${Plots} ...${answer} />`, [answer]);
}

/** @param {import("../contract.d.ts").Activity} props */
function Plots({ commands, linksUp, linksLost }) {
  const most = Math.max(1, ...commands);
  const links = Math.max(1, ...linksUp, ...linksLost);
  const middle = HEIGHT / 2;
  const [all, up, lost] = [commands, linksUp, linksLost].map(sum);
  const last = commands[commands.length - 1];
  return html`
    <div class="plots">
      <span>Commands a minute <${Plot} base=${HEIGHT} said=${`Commands in the last hour: ${all}, at most ${Math.max(...commands)} a minute`}>
        <path class="commands" d=${bars(commands, most, HEIGHT, HEIGHT)} /><//> <b>${last.toLocaleString("en")}</b></span>
      <span>Links <${Plot} base=${middle} said=${`Links in the last hour: ${up} up, ${lost} lost`}>
        <path class="up" d=${bars(linksUp, links, middle, middle)} /><path class="lost" d=${bars(linksLost, links, middle, -middle)} /><//>
        <b>${up.toLocaleString("en")}</b> up, <b>${lost.toLocaleString("en")}</b> lost</span>
    </div>
  `;
}

register({ name: "Add a connection", key: "n", actions: ["connection.add"], run: () => addConnection() });
register({ name: "Import connections", actions: ["connection.apply"], run: openImport });
register({ name: "New category", actions: ["category.add"], run: () => addCategory() });

export default { hub: { component: Hub } };
