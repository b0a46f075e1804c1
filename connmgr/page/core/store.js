// What the page knows: who it is, the connections and categories, and what stands and runs there. Read once, then kept
// current by events.

import { useLayoutEffect, useReducer, useRef } from "../vendor/htm-preact.js";
import { ApiError, call, on } from "./api.js";
import { folded, search } from "./names.js";

/** What a request has that is about all connections. */
export const EVERYTHING = { categoryFilter: "*", connectionFilter: "*", typeFilter: "*" };
const SOON_MS = 60;
const UNDER_WAY = ["starting", "running"];
const RUNNING = ["started", "running", "waiting", "opened", "clients"];
/** With more changes than this at once everything is read again. */
const MANY = 200;
/** Rows that a quick scroll has passed need no information. */
const SEEN = 120;
const SETTLED_MS = 80;

export const store = {
  /** The session's rights, as `/token/info` tells them. @type {any} */
  me: null,
  /** By their uuids, in the order of their paths. @type {Map<string, Connection>} */
  connections: new Map(),
  /** By their uuids, in the order of their paths, without the root. @type {Map<string, Category>} */
  categories: new Map(),
  root: "",
  loaded: false,
  /** @type {Error | null} */
  fault: null,
  /** Jobs and terminals that run, by connection, then by id. @type {Map<string, Map<string, "job" | "terminal">>} */
  work: new Map(),
  /** @type {Map<string, any[]>} */
  shells: new Map(),
  /** @type {Map<string, any>} */
  tunnels: new Map(),
  /** The last event of a link, by connection. @type {Map<string, import("./api.js").Event>} */
  links: new Map(),
  /** @type {Map<string, import("../contract.d.ts").TypeInfo>} */
  types: new Map(),
  /** Where secrets can be fetched from, by name. @type {Map<string, import("../contract.d.ts").SourceInfo>} */
  sources: new Map(),
  /** What is stored of connections that were shown; read when they are. @type {Map<string, ConnectionInfo>} */
  infos: new Map(),
};

/** @type {Set<() => void>} */
const watchers = new Set();
let isTold = false;

/** Renders what uses the store again, once for all changes of a frame. */
export function changed() {
  if (isTold) return;
  isTold = true;
  queueMicrotask(() => {
    isTold = false;
    for (const fn of watchers) fn();
  });
}

/**
 * `read`, one at a time: whoever asks for it while it is under way gets the next one, so that no older answer replaces a
 * newer one.
 * @template T @param {() => Promise<T>} read @returns {() => Promise<T>}
 */
export function latest(read) {
  /** @type {Promise<T> | null} */
  let now = null;
  /** @type {Promise<T> | null} */
  let next = null;
  const begin = () => {
    next = null;
    now = read().finally(() => {
      now = null;
    });
    return now;
  };
  return () => {
    // Whoever asked for the one before is told of its failure.
    if (now) next ??= now.then(begin, begin);
    return next ?? begin();
  };
}

/** What events have told while a list was read, for each list that is being read. @type {Set<import("./api.js").Event[]>} */
const meanwhile = new Set();

/** Has `read` fill the store with an answer, which may be older than events that came before it. @param {() => Promise<void>} read */
async function filled(read) {
  /** @type {import("./api.js").Event[]} */
  const told = [];
  meanwhile.add(told);
  try {
    await read();
    for (const event of told) note(event);
    changed();
  } finally {
    meanwhile.delete(told);
  }
}

/** As {@link latest}, for a list of the store. @param {() => Promise<void>} read */
const list = (read) => latest(() => filled(read));

/** Whether the connections are there, as far as the session may see them and they could be read. */
export const isRead = () => store.loaded || store.fault !== null || !can("connection.query");

/**
 * What Enter does where it chooses among connections. `make` does it: at once, or when the connections are there if they
 * are still being read. `forget` is for whatever is typed meanwhile.
 * @param {() => unknown} act
 */
export function useChoice(act) {
  const isMade = useRef(false);
  useStore();
  const isReady = isRead();
  const forget = () => {
    isMade.current = false;
  };
  useLayoutEffect(() => {
    if (!isReady || !isMade.current) return;
    forget();
    act();
  });
  const make = () => {
    isMade.current = !isReady;
    if (isReady) act();
  };
  return { isReady, make, forget };
}

/** Renders the calling component again whenever the store changes. */
export function useStore() {
  const [, render] = useReducer((count) => count + 1, 0);
  useLayoutEffect(() => {
    watchers.add(/** @type {() => void} */ (render));
    return () => {
      watchers.delete(/** @type {() => void} */ (render));
    };
  }, []);
  return store;
}

/** @param {...string} actions */
export const can = (...actions) => actions.every((action) => store.me?.actions.includes(action));

/** A connection's path, or its id while that is unknown. @param {string | undefined} connection */
export function nameOf(connection = "") {
  const [base, , user] = connection.split("+");
  const found = store.connections.get(base);
  return (found ? found.name.join("/") : base) + (user ? ` as ${user}` : "");
}

/** @param {Connection} one */
export const qualified = (one) => [...one.category, ...one.name].join("/");

/** The connections that a name, a pattern, or words of a name mean; those that are meant exactly first. @param {string} query */
export function matching(query) {
  const { exact, rest } = search(query, [...store.connections.values()]);
  return [...exact, ...rest];
}

/** The connections on which commands run. */
export const machines = () => [...store.connections.values()].filter((one) => one.usageCategory === "shell");

/** The categories and connections, and what runs; what the session may not see stays empty. */
export async function load() {
  store.fault = null;
  await Promise.all([
    can("category.query", "category.info") ? loadCategories() : null,
    can("connection.query") ? loadConnections() : null,
    can("connection.types") ? loadTypes() : null,
    can("shell.list") ? loadShells() : null,
    can("tunnel.query") ? loadTunnels() : null,
    loadWork(),
  ]).then(
    () => {
      store.loaded = true;
    },
    (error) => {
      if (!(error instanceof ApiError)) throw error;
      store.fault = error;
    },
  );
  changed();
}

const loadWork = list(async () => {
  const [{ jobs }, { terminals }] = await Promise.all([
    can("job.query") ? call("/job/query", { states: UNDER_WAY }, { quiet: true }) : { jobs: [] },
    can("terminal.query") ? call("/terminal/query", {}, { quiet: true }) : { terminals: [] },
  ]);
  store.work = new Map();
  for (const one of jobs) working(one.connection, one.job, "job");
  for (const one of terminals) if (one.state === "running") working(one.connection, one.terminal, "terminal");
});

/** Notes that something runs on a connection, or with no `kind` that it has ended. @param {string} connection @param {string} id @param {"job" | "terminal"} [kind] */
function working(connection, id, kind) {
  const base = connection.split("+")[0];
  const some = store.work.get(base) ?? new Map();
  if (kind) some.set(id, kind);
  else some.delete(id);
  if (some.size) store.work.set(base, some);
  else store.work.delete(base);
}

const loadConnections = list(async () => {
  const { found, names } = await call("/connection/query", { ...EVERYTHING, names: true }, { quiet: true });
  store.connections = new Map(
    found.map((/** @type {string} */ id, /** @type {number} */ at) => [id, named(id, names?.[at])]),
  );
  store.infos.clear();
  changes += 1;
});

const loadCategories = list(async () => {
  const { found } = await call("/category/query", { filter: "*" }, { quiet: true });
  const { infos } = await call("/category/info", { categories: found }, { quiet: true });
  const root = infos.find((/** @type {any} */ one) => one.parentCategory === null);
  store.root = root?.category ?? "";
  store.categories = new Map(
    infos
      .filter((/** @type {any} */ one) => one !== root)
      .map((/** @type {any} */ one) => [one.category, { category: one.category, name: one.name.slice(1) }]),
  );
});

async function loadTypes() {
  const { types, sources } = await call("/connection/types", {}, { quiet: true });
  store.sources = new Map(sources.map((/** @type {any} */ one) => [one.source, one]));
  store.types = new Map(types.map((/** @type {any} */ one) => [one.type, one]));
  changed();
}

const loadShells = list(async () => {
  const { shells } = await call("/shell/list", {}, { quiet: true });
  store.shells = new Map();
  for (const shell of shells) {
    const base = shell.connection.split("+")[0];
    store.shells.set(base, [...(store.shells.get(base) ?? []), shell]);
  }
});

const loadTunnels = list(async () => {
  const { tunnels } = await call("/tunnel/query", {}, { quiet: true });
  store.tunnels = new Map(tunnels.map((/** @type {any} */ one) => [one.connection, one]));
});

/** @param {string} id @param {any} found @returns {Connection} */
function named(id, found) {
  const { category, name, type, usageCategory } = found;
  const text = folded(found);
  // Of web2 and web10 people expect web2 first.
  const order = text.replaceAll("/", "\u0000").replace(/\d+/g, (digits) => digits.padStart(12, "0"));
  return { connection: id, category, name, type, usageCategory, folded: text, order };
}

/** @type {Set<string>} */
const wanted = new Set();
let asking = false;
/** How often something stored has changed: an answer that was asked for before is out of date. */
let changes = 0;

/** What is stored of a connection; undefined until it was read, which this begins. @param {string} id */
export function infoOf(id) {
  const found = store.infos.get(id);
  if (!found && can("connection.info")) {
    wanted.delete(id);
    wanted.add(id);
    if (!asking) {
      asking = true;
      setTimeout(() => readInfos().finally(() => (asking = false)), SETTLED_MS);
    }
  }
  return found;
}

/** Reads again what is stored of a connection, which this page has changed. @param {string} id */
export const reread = (id) => readSome([id]);

async function readInfos() {
  while (wanted.size) {
    const some = [...wanted].slice(-SEEN);
    wanted.clear();
    await readSome(some);
  }
}

/** Those of some connections that no event has told to be removed meanwhile. @param {string[]} some */
const there = (some) => some.filter((id) => store.connections.has(id));

/** @param {string[]} some */
async function readSome(some) {
  const before = changes;
  try {
    const { infos } = await call("/connection/info", { connections: some }, { quiet: true });
    if (before !== changes) {
      for (const id of there(some)) wanted.add(id);
      return;
    }
    for (const info of infos) store.infos.set(info.connection, info);
    changed();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    // One of them is gone by now, or was damaged; the others are asked for alone.
    if (some.length > 1 && !error.isOver) for (const id of there(some)) await readSome([id]);
  }
}

/**
 * Collects the ids that events name, and has `read` called with all of them soon; `drop` is for one that is gone by then.
 * @param {(ids: Set<string>) => Promise<void>} read
 */
function soon(read) {
  /** @type {Set<string>} */
  let ids = new Set();
  let isDue = false;
  const drop = (/** @type {string} */ id) => ids.delete(id);
  const add = (/** @type {string} */ id) => {
    ids.add(id);
    if (isDue) return;
    isDue = true;
    setTimeout(async () => {
      const some = ids;
      ids = new Set();
      isDue = false;
      try {
        if (some.size) await read(some);
      } catch (error) {
        // What is shown stays as it was; the stream's next `missed` reads all of it again.
        if (!(error instanceof ApiError)) throw error;
      }
    }, SOON_MS);
  };
  return Object.assign(add, { drop });
}

const readAll = soon(async () => load());
const readTunnels = soon(async () => loadTunnels());
const readCategories = soon(async () => {
  await loadCategories();
  await loadConnections();
});
const readConnections = soon(async (ids) => {
  if (ids.size > MANY) return loadConnections();
  try {
    await filled(async () => {
      const { infos } = await call("/connection/info", { connections: [...ids] }, { quiet: true });
      for (const info of infos) {
        store.infos.set(info.connection, info);
        store.connections.set(info.connection, named(info.connection, info));
      }
      store.connections = new Map([...store.connections].sort(([, one], [, other]) => byPath(one, other)));
    });
  } catch (error) {
    if (!(error instanceof ApiError) || error.isOver) throw error;
    // One of them is gone by now, and the others have no answer.
    await loadConnections();
  }
});

/** Keeps the store current until the returned function is called. */
export function follow() {
  return on("*", (event) => {
    for (const told of meanwhile) told.push(event);
    note(event);
    changed();
  });
}

/** Notes what an event tells; that it is told twice does no harm. @param {import("./api.js").Event} event */
function note(event) {
  const id = event.connection ?? "";
  if (event.kind === "connection") changes += 1;
  if (event.kind === "stream") {
    // No list has the links: those that broke meanwhile must not look as if they stood.
    store.links.clear();
    readAll("");
  } else if (event.kind === "connection" && event.change === "removed") {
    store.connections.delete(id);
    store.infos.delete(id);
    wanted.delete(id);
    readConnections.drop(id);
  } else if (event.kind === "connection") {
    readConnections(id);
    if (store.types.get(store.connections.get(id)?.type ?? "")?.usageCategory === "tunnel") readTunnels(id);
  } else if (event.kind === "category") readCategories(event.id ?? "");
  else if (event.kind === "shell") shellChanged(event);
  else if (event.kind === "job" || event.kind === "terminal")
    working(id, event.id ?? "", RUNNING.includes(event.change) ? event.kind : undefined);
  else if (event.kind === "tunnel") {
    const known = store.tunnels.get(id);
    if (!known) readTunnels(id);
    else
      store.tunnels.set(id, {
        ...known,
        state: event.state ?? event.change,
        address: event.address ?? null,
        since: event.time,
        wanted: event.change !== "stopped",
      });
  } else if (event.kind === "link" && event.change !== "touch") store.links.set(id.split("+")[0], event);
}

/** An event says enough of a shell; asking each time would fill the audit log. @param {import("./api.js").Event} event */
function shellChanged({ connection = "", session, change, time }) {
  const base = connection.split("+")[0];
  const some = store.shells.get(base) ?? [];
  const others = some.filter(
    (one) => one.connection !== connection || (one.session ?? undefined) !== (session ?? undefined),
  );
  const before = some.find((one) => !others.includes(one)) ?? { connection, session, since: time };
  const next =
    change === "ended"
      ? others
      : [
          ...others,
          {
            ...before,
            state: change === "started" ? "idle" : change,
            running: change === "busy" ? before.running : undefined,
          },
        ];
  if (next.length) store.shells.set(base, next);
  else store.shells.delete(base);
}

/** @param {Connection} one @param {Connection} other */
export function byPath(one, other) {
  return one.order < other.order ? -1 : one.order > other.order ? 1 : 0;
}

/** Reads again what a request of this page has changed, where no event tells. @param {"connections" | "categories" | "shells" | "tunnels"} what */
export function refresh(what) {
  return { connections: loadConnections, categories: loadCategories, shells: loadShells, tunnels: loadTunnels }[what]();
}

/** Reads which commands the shells of a connection run, which events do not say. @param {string} id */
export async function readShells(id) {
  const { shells } = await call("/shell/list", { connection: id }, { quiet: true });
  if (shells.length) store.shells.set(id, shells);
  else store.shells.delete(id);
  changed();
}

/**
 * The state of a connection in a few words, and its kind: `up`, `busy`, `lost` or `off`.
 * @param {string} id
 */
export function stateOf(id) {
  const { kind, word } = linkOf(id);
  const runs = [...(store.work.get(id)?.values() ?? [])];
  const counts = ["job", "terminal"]
    .map((what) => [runs.filter((one) => one === what).length, what])
    .filter(([count]) => count)
    .map(([count, what]) => `${count} ${what}${count === 1 ? "" : "s"}`);
  // What runs there says that it is connected.
  const said = counts.length && word === "connected" ? "" : word;
  return { kind: counts.length && kind === "off" ? "up" : kind, word: [said, ...counts].filter(Boolean).join(", ") };
}

/** @param {string} id */
function linkOf(id) {
  const tunnel = store.tunnels.get(id);
  if (tunnel && tunnel.state !== "stopped") {
    const kind = tunnel.state === "open" ? "up" : tunnel.state === "failed" ? "lost" : "busy";
    return { kind, word: tunnel.state };
  }
  const shells = store.shells.get(id) ?? [];
  const link = store.links.get(id);
  if (shells.some((shell) => shell.state === "busy")) return { kind: "busy", word: "busy" };
  if (shells.some((shell) => shell.state === "idle") || link?.change === "up") return { kind: "up", word: "connected" };
  if (shells.length || link?.change === "lost") return { kind: "lost", word: "link lost" };
  return { kind: "off", word: "" };
}
