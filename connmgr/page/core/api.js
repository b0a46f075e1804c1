// The daemon's API: every request of the page, the session that it has, and what is done about errors that a person can
// remedy, such as an unknown host key.

const TOKEN = "connmgr.token";
/** Codes after which this session will not be valid again. */
const OVER = ["not_authenticated", "invalid_token", "token_expired", "token_revoked"];

/** An error that the daemon answered, or `unreachable`. */
export class ApiError extends Error {
  /** @param {{code?: string, message?: string, [member: string]: any}} answer @param {number} status */
  constructor(answer, status) {
    super(answer.message || `The daemon answered with status ${status}.`);
    this.code = answer.code || "unknown";
    this.status = status;
    /** All members of the answer. @type {{[member: string]: any}} */
    this.details = answer;
  }

  /** Whether the page is logged out because of it; the door tells why. */
  get isOver() {
    return OVER.includes(this.code);
  }
}

/** @typedef {(error: ApiError, path: string, data: any) => Promise<boolean>} Remedy */
/** @type {Map<string, Remedy>} */
const remedies = new Map();
/** @type {(error: ApiError | null) => void} */
let left = () => {};

/**
 * Has `remedy` asked whenever a request fails with `code`; if it resolves to true, the request is sent again.
 * @param {string} code @param {Remedy} remedy
 */
export function remedy(code, remedy) {
  remedies.set(code, remedy);
}

/** Has `fn` called when the session is over: with the error, or null after a logout. @param {typeof left} fn */
export function whenLeft(fn) {
  left = fn;
}

/** The session's token, or null. */
export function token() {
  return sessionStorage.getItem(TOKEN);
}

/** @returns {Record<string, string>} */
export function authorization() {
  return { Authorization: `Bearer ${token()}` };
}

/**
 * Sends a request, and returns its answer. `quiet` asks nobody about a remedy: for what nobody has just asked for.
 * @param {string} path @param {object} [data] @param {{signal?: AbortSignal, quiet?: boolean}} [options]
 * @returns {Promise<any>}
 * @throws {ApiError}
 */
export function call(path, data = {}, { signal, quiet = false } = {}) {
  return remedied(path, data, quiet, () => sent(path, data, signal));
}

/**
 * Sends a request whose answer is lines of JSON, and calls `each` with those that have come.
 * @param {string} path @param {object} data @param {(lines: any[]) => void} each @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 * @throws {ApiError}
 */
export function eachLine(path, data, each, signal) {
  return remedied(path, data, false, async () => {
    const response = await posted(path, data, signal);
    if (!response.ok || !response.body) return void answerOf(response.status, await reached(response.text()));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let begun = ""; ; ) {
      const { done, value } = await reached(reader.read());
      if (done) return;
      const whole = (begun + value).split("\n");
      begun = whole.pop() ?? "";
      each(whole.filter(Boolean).map((line) => JSON.parse(line)));
    }
  });
}

/** @template T @param {string} path @param {object} data @param {boolean} quiet @param {() => Promise<T>} send @returns {Promise<T>} */
async function remedied(path, data, quiet, send) {
  for (;;) {
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.isOver) {
        leave(error);
        throw error;
      }
      const found = quiet ? undefined : remedies.get(error.code);
      if (!found || !(await found(error, path, data))) throw error;
    }
  }
}

/** @param {string} path @param {object} data @param {AbortSignal} [signal] */
async function sent(path, data, signal) {
  const response = await posted(path, data, signal);
  return answerOf(response.status, await reached(response.text()));
}

/** @param {string} path @param {object} data @param {AbortSignal} [signal] */
function posted(path, data, signal) {
  const headers = { "Content-Type": "application/json", ...(token() ? authorization() : {}) };
  return reached(fetch(path, { method: "POST", headers, body: JSON.stringify(data), signal }));
}

/** @template T @param {Promise<T>} attempt @returns {Promise<T>} */
async function reached(attempt) {
  try {
    return await attempt;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    const message = "The daemon does not answer. If it was stopped, start it again, and run connmgr web.";
    throw new ApiError({ code: "unreachable", message }, 0);
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

/** Ends the session here and at the daemon. */
export async function logout() {
  try {
    await sent("/web/logout", {});
  } catch (error) {
    // It is over then, too, and the door is what was asked for.
    if (!(error instanceof ApiError)) throw error;
  }
  leave(null);
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
