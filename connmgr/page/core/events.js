// What changes at the daemon, as it happens: one WebSocket for the whole page, which resumes where it broke.

import { ApiError, leave, socket } from "./api.js";

const SILENCE_MS = 40_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
/** The page goes on without a stream that has not begun by then, and reads everything again when it has. */
const PATIENCE_MS = 3000;
/** Reasons for an end after which connecting again is of no use. */
const FINAL = ["scope_denied", "token_revoked", "token_expired", "invalid_token", "not_found"];

/** @typedef {import("../contract.d.ts").Event} Event */
/** @typedef {(event: Event) => void} Listener */

/** @type {Map<string, Set<Listener>>} */
const listeners = new Map();
/** @type {Set<(isLive: boolean) => void>} */
const watchers = new Set();
let isLive = false;

/**
 * Has `fn` called for each event of `kind` (`*`: of all). It gets the event `missed` of kind `stream` when some were
 * lost, and must then read again what it shows. Returns what ends that.
 * @param {string} kind @param {Listener} fn
 */
export function on(kind, fn) {
  const some = listeners.get(kind) ?? new Set();
  listeners.set(kind, some.add(fn));
  return () => {
    some.delete(fn);
  };
}

/** Has `fn` called now and whenever the stream breaks or stands again. @param {(isLive: boolean) => void} fn */
export function onLive(fn) {
  watchers.add(fn);
  fn(isLive);
  return () => {
    watchers.delete(fn);
  };
}

/** @param {boolean} now */
function setLive(now) {
  if (now === isLive) return;
  isLive = now;
  for (const fn of watchers) fn(now);
}

/** Tells the listeners of an event. @param {Event} event */
export function tell(event) {
  const all = event.kind === "stream" ? [...listeners.values()] : [listeners.get(event.kind), listeners.get("*")];
  for (const some of all) for (const fn of some ?? []) fn(event);
}

/**
 * Listens until `end` is called. `begun` resolves when the stream stands, or cannot: what is read from then on misses no
 * change.
 */
export function listen() {
  /** @type {number | undefined} */
  let last;
  /** @type {() => void} */
  let goOn = () => {};
  let isLate = false;
  const begun = new Promise((resolve) => {
    goOn = () => {
      clearTimeout(patience);
      isLate = true;
      resolve(undefined);
    };
    const patience = setTimeout(goOn, PATIENCE_MS);
  });
  /** @type {WebSocket | undefined} */
  let current;
  let timer = 0;
  let wait = FIRST_WAIT_MS;
  let ended = false;

  const alive = () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => current?.close(), SILENCE_MS);
  };
  const again = () => {
    current = undefined;
    clearTimeout(timer);
    setLive(false);
    goOn();
    if (ended) return;
    timer = window.setTimeout(connect, wait);
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  };
  /** @param {Event} event */
  const received = (event) => {
    alive();
    const isFirst = last === undefined;
    last = event.number;
    if (event.kind !== "stream") return tell(event);
    if (event.change === "begun") {
      wait = FIRST_WAIT_MS;
      setLive(true);
      // What has happened since the page read its lists, no stream has told.
      if (isFirst && isLate) tell({ ...event, change: "missed" });
      goOn();
    } else if (event.change === "missed") tell(event);
    else if (event.change === "ended" && FINAL.includes(event.code ?? "")) {
      ended = true;
      // Nobody may press anything for an hour, and what is shown is not theirs to see any more.
      const error = new ApiError({ code: event.code ?? "", message: event.message ?? "" }, 0);
      if (error.isOver) leave(error);
    }
  };
  const connect = async () => {
    try {
      const opened = await socket("/event/stream", "/event/ticket");
      if (ended) return opened.close();
      current = opened;
      alive();
      opened.onopen = () => opened.send(JSON.stringify(last === undefined ? {} : { after: last }));
      opened.onmessage = (message) => received(JSON.parse(message.data));
      opened.onclose = again;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.isOver || FINAL.includes(error.code)) ended = true;
      again();
    }
  };
  connect();
  const end = () => {
    ended = true;
    clearTimeout(timer);
    current?.close();
    goOn();
  };
  return { begun, end };
}
