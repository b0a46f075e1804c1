// The daemon's API: every request of the page, the session that it has, and the stream of what changes at the daemon.

const TOKEN = "connmgr.token";
/** Codes after which this session will not be valid again. */
const OVER = ["not_authenticated", "invalid_token", "token_expired", "token_revoked"];
/** Errors that a person can remedy, by a dialog that most pages never need; the request is then sent again. */
const REMEDIED = ["host_key_unknown", "secret_locked", "vault_locked", "step_up_required"];

/** An error that the daemon answered, or `unreachable`. */
export class ApiError extends Error {
  /** @param {{code?: string, message?: string, [member: string]: any}} answer @param {number} status */
  constructor(answer, status) {
    super(answer.message || `The daemon answered with status ${status}.`);
    this.code = answer.code || "unknown";
    this.status = status;
    /** @type {{[member: string]: any}} */
    this.details = answer;
  }

  /** Whether the page is logged out because of it; the door tells why. */
  get isOver() {
    return OVER.includes(this.code);
  }
}

/** @type {(error: ApiError | null) => void} */
let left = () => {};

/** Has `fn` called when the session is over: with the error, or null after a logout. @param {typeof left} fn */
export function whenLeft(fn) {
  left = fn;
}

export function token() {
  return sessionStorage.getItem(TOKEN);
}

/** @returns {Record<string, string>} */
export function authorization() {
  return { Authorization: `Bearer ${token()}` };
}

/**
 * Sends a request, and returns its answer. `quiet` asks nobody about a remedy: for what nobody has just asked for. With
 * `keepalive` it is sent even while the page is left.
 * @template {string} P @param {P} path @param {object} [data] @param {{quiet?: boolean} & Sent} [options]
 * @returns {Promise<import("../contract.d.ts").Answer<P>>}
 * @throws {ApiError}
 */
export function call(path, data = {}, { quiet = false, ...options } = {}) {
  return remedied(data, quiet, () => sent(path, data, options));
}

/**
 * Sends a request whose answer is lines of JSON, and calls `each` with those that have come.
 * @param {string} path @param {object} data @param {(lines: any[]) => void} each @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 * @throws {ApiError}
 */
export function eachLine(path, data, each, signal) {
  return remedied(data, false, async () => {
    const response = await posted(path, data, { signal });
    if (!response.ok || !response.body) return void answerOf(response.status, await reached(response.text()));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rested = performance.now();
    for (let begun = ""; ; ) {
      const { done, value } = await reached(reader.read());
      if (done) return;
      const whole = value.split("\n");
      whole[0] = begun + whole[0];
      begun = whole.pop() ?? "";
      const some = whole.filter(Boolean);
      if (some.length) each(some.map((line) => JSON.parse(line)));
      // What is there already is read without a pause, in which nothing else would be done.
      if (performance.now() - rested < BUSY_MS) continue;
      await new Promise((done) => setTimeout(done));
      rested = performance.now();
    }
  });
}

const BUSY_MS = 12;

/** @template T @param {object} data @param {boolean} quiet @param {() => Promise<T>} send @returns {Promise<T>} */
async function remedied(data, quiet, send) {
  for (;;) {
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.isOver) {
        leave(error);
        throw error;
      }
      if (quiet || !REMEDIED.includes(error.code)) throw error;
      const { isRemedied } = await import("./remedies.js");
      if (!(await isRemedied(error, data))) throw error;
    }
  }
}

/** @typedef {{signal?: AbortSignal, keepalive?: boolean}} Sent how a request is sent */

/** @param {string} path @param {object} data @param {Sent} [options] */
async function sent(path, data, options) {
  const response = await posted(path, data, options);
  return answerOf(response.status, await reached(response.text()));
}

/** @param {string} path @param {object} data @param {Sent} [options] */
async function posted(path, data, options) {
  const [type, body] =
    data instanceof Blob ? ["application/octet-stream", data] : ["application/json", JSON.stringify(data)];
  const headers = { "Content-Type": type, ...(token() ? authorization() : {}) };
  const response = await reached(fetch(path, { method: "POST", headers, body, ...options }));
  const apart = Date.parse(response.headers.get("Date") ?? "") - Date.now();
  // The header has whole seconds, and was on its way for some time.
  if (!Number.isNaN(apart)) ahead = Math.abs(apart) > APART_MS ? apart : 0;
  return response;
}

const APART_MS = 2000;
/** By how much the daemon's clock is ahead of the browser's, in ms. */
let ahead = 0;

/** The time on the daemon's clock, in ms: what it says of times is by that, and the browser's may be wrong. */
export const now = () => Date.now() + ahead;

/** The response of an endpoint that answers with bytes; `data` may be a Blob. @param {string} path @param {object} data @throws {ApiError} */
export async function fetched(path, data) {
  const response = await posted(path, data);
  if (!response.ok) answerOf(response.status, await reached(response.text()));
  return response;
}

export const UNREACHED = "The daemon does not answer. If it was stopped, start it again, and run connmgr web.";

/** @template T @param {Promise<T>} attempt @returns {Promise<T>} */
async function reached(attempt) {
  try {
    return await attempt;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError({ code: "unreachable", message: UNREACHED }, 0);
  }
}

/** The answer in the text of a response. @param {number} status @param {string} content @returns {any} */
export function answerOf(status, content) {
  let answer;
  try {
    answer = content ? JSON.parse(content) : {};
  } catch {
    answer = { message: `The daemon answered with status ${status}, and not with JSON.` };
  }
  if (status >= 400) throw new ApiError(answer.error ?? answer, status);
  return answer;
}

/**
 * Begins a session with the ticket in the address, if there is one, and says whether there is a session.
 * @throws {ApiError} the ticket was used or has expired.
 */
export async function login() {
  const ticket = new URLSearchParams(location.hash.slice(1)).get("login");
  if (ticket) {
    // Before anything else: neither a reload nor the history must have the ticket.
    history.replaceState(null, "", "/");
    sessionStorage.removeItem(TOKEN);
    const { sessionToken } = await sent("/web/login", { ticket });
    sessionStorage.setItem(TOKEN, sessionToken);
  }
  return token() !== null;
}

export async function logout() {
  const ended = sent("/web/logout", {});
  // At once: what is refused meanwhile is refused because of this.
  leave(null);
  try {
    await ended;
  } catch (error) {
    // It is over then, too, and the door is what was asked for.
    if (!(error instanceof ApiError)) throw error;
  }
}

/** Goes to the door: the session is over, and `error` says why. @param {ApiError | null} error */
export function leave(error) {
  if (token() === null) return;
  sessionStorage.removeItem(TOKEN);
  left(error);
}

/**
 * Opens a WebSocket of the API by a single-use ticket.
 * @param {string} path @param {string} ticketPath such as `/terminal/ticket` @param {object} [data] of the ticket's request
 */
export async function socket(path, ticketPath, data = {}) {
  const { ticket } = await call(ticketPath, data, { quiet: true });
  return new WebSocket(path, ["connmgr.v1", `connmgr.ticket.${ticket}`]);
}

// The stream of changes: one WebSocket for the whole page, which resumes where it broke.

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

/** @param {Event} event */
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
    timer = window.setTimeout(again, SILENCE_MS);
  };
  const again = () => {
    if (current) {
      // A daemon that is silent does not answer this either, and the browser would wait for that.
      current.onmessage = current.onclose = null;
      current.close();
    }
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
