// One terminal on the screen: xterm, the WebSocket to the daemon, and the frames between them (docs/API.md, terminal).
// It lives on while its tab is hidden; whoever shows it moves `element` into the page.

import { ApiError, socket as opened } from "../core/api.js";
import { failed } from "../core/ui.js";

const DATA = 0;
const RESIZE = 2;
const ACKNOWLEDGEMENT = 3;
const EXIT_STATUS = 5;
const ERROR = 6;
const WINDOW_BYTES = 256 * 1024;
const ACKNOWLEDGED_BYTES = 64 * 1024;

const ASKED_CHARACTERS = 5000;
const SCROLLBACK_LINES = 5000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;
/** Until the files that draw terminals are asked for once more. */
const LOADING_WAIT_MS = 3000;
const MIN_CONTRAST = 4.5;
const AWAY = "The daemon does not answer; trying again.";
const GONE = new Set(["unknown_terminal", "unknown_connection", "not_visible"]);
const REFUSED = new Set(["scope_denied", "policy_denied", "secret_locked", "step_up_required"]);

/**
 * @typedef {{ask: (title: string, text: string, yes: string) => Promise<boolean>, changed: () => void}} Host
 * @typedef {"connecting" | "attached" | "lost" | "ended"} State
 */

const encoder = new TextEncoder();

/** Loads xterm once, when the first terminal is opened: the page's first paint does not wait for it. */
let loading = /** @type {Promise<any> | null} */ (null);

export function loadXterm() {
  loading ??= load().catch((error) => {
    // The next terminal tries again.
    loading = null;
    throw error;
  });
  return loading;
}

async function load() {
  allowStyles();
  const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/page/vendor/xterm.css" });
  document.head.append(link);
  const [xterm, fit, search] = await Promise.all([
    import("../vendor/xterm.mjs"),
    import("../vendor/addon-fit.mjs"),
    import("../vendor/addon-search.mjs"),
    new Promise((resolve) => link.addEventListener("load", resolve)),
  ]);
  return { Terminal: xterm.Terminal, FitAddon: fit.FitAddon, SearchAddon: search.SearchAddon };
}

/** xterm makes style elements itself, and the page's policy wants the nonce of this answer on each. */
function allowStyles() {
  const nonce = /** @type {HTMLScriptElement | null} */ (document.querySelector("script[nonce]"))?.nonce ?? "";
  const create = document.createElement;
  document.createElement = /** @type {typeof create} */ (
    (/** @type {string} */ name, /** @type {any} */ options) => {
      const element = create.call(document, name, options);
      if (name === "style") element.nonce = nonce;
      return element;
    }
  );
}

/** xterm's colours from the page's, so that both follow the same switch. */
export function themeOf(/** @type {Element} */ element) {
  const style = getComputedStyle(element);
  const [background, foreground] = [style.backgroundColor, style.color];
  const [red = 0, green = 0, blue = 0] = (background.match(/[\d.]+/g) ?? []).map(Number);
  const dark = red * 0.3 + green * 0.6 + blue * 0.1 < 128;
  const colours = dark
    ? ["#3b4048", "#f47067", "#57ab5a", "#c69026", "#539bf5", "#b083f0", "#39c5cf", "#adbac7"]
    : ["#24292f", "#cf222e", "#116329", "#7d4e00", "#0969da", "#8250df", "#1b7c83", "#57606a"];
  const bright = dark
    ? ["#768390", "#ff938a", "#6bc46d", "#daaa3f", "#6cb6ff", "#dcbdfb", "#56d4dd", "#ffffff"]
    : ["#57606a", "#a40e26", "#1a7f37", "#633c01", "#218bff", "#a475f9", "#3192aa", "#24292f"];
  const names = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
  const theme = /** @type {Record<string, string>} */ ({
    background,
    foreground,
    cursor: foreground,
    cursorAccent: background,
    selectionBackground: dark ? "#3d6fb080" : "#8fbcf080",
  });
  names.forEach((name, index) => {
    theme[name] = colours[index];
    theme[`bright${name[0].toUpperCase()}${name.slice(1)}`] = bright[index];
  });
  return theme;
}

/** The options that all xterms of the page have. */
export function xtermOptions() {
  return {
    allowProposedApi: true,
    cursorBlink: false,
    fontFamily: 'ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace',
    fontSize: Number(localStorage.getItem("connmgr.terminal.font")) || 14,
    // At 1 the row below covers the underscores of some fonts, such as DejaVu's.
    lineHeight: 1.1,
    minimumContrastRatio: MIN_CONTRAST,
    screenReaderMode: localStorage.getItem("connmgr.terminal.reader") === "on",
    scrollback: SCROLLBACK_LINES,
  };
}

/** Whether WebGL is drawn by a graphics processor; by the main one it is slower than elements. */
function hasGraphics() {
  const context = document.createElement("canvas").getContext("webgl2");
  if (!context) return false;
  const info = context.getExtension("WEBGL_debug_renderer_info");
  const renderer = info ? String(context.getParameter(info.UNMASKED_RENDERER_WEBGL)) : "";
  context.getExtension("WEBGL_lose_context")?.loseContext();
  return !/swiftshader|llvmpipe|softpipe|software|basic render/i.test(renderer);
}

/** Draws by WebGL while shown: a browser has few contexts, and xterm falls back to elements without one. */
export async function drawFast(/** @type {any} */ term) {
  if (!hasGraphics()) return null;
  try {
    const { WebglAddon } = await import("../vendor/addon-webgl.mjs");
    const addon = new WebglAddon();
    addon.onContextLoss(() => addon.dispose());
    term.loadAddon(addon);
    return addon;
  } catch {
    // No WebGL here. The elements show the same, slower.
    return null;
  }
}

export class Session {
  /** @param {string} id @param {Host} host @param {boolean} watch */
  constructor(id, host, watch = false) {
    this.id = id;
    this.watch = watch;
    this.title = "";
    /** @type {State} */
    this.state = "connecting";
    /** How it ended, or why it is not attached; a sentence. */
    this.why = "";
    /** @type {number | null} */
    this.exitCode = null;
    /** The size that another viewer has set; empty while this one leads. */
    this.foreignSize = "";
    this.element = document.createElement("div");
    this.element.className = "xterm-place";
    /** @type {any} */
    this.term = null;
    /** Control by the row of keys on a phone: the next key is typed with it. */
    this.control = false;
    this._host = host;
    this._room = WINDOW_BYTES;
    /** @type {Uint8Array[]} */
    this._queue = [];
    this._unreported = 0;
    this._wait = FIRST_WAIT_MS;
    this._leads = false;
    this._closed = false;
    /** @type {any} */
    this._webgl = null;
    /** @type {WebSocket | null} */
    this._socket = null;
    this._timer = 0;
    this._observer = new ResizeObserver(() => this.fit());
    this._ready = this._prepare();
  }

  async _prepare() {
    let xterm = null;
    while (!xterm) {
      xterm = await loadXterm().catch(() => null);
      if (this._closed) return;
      if (!xterm) {
        this._become("lost", AWAY);
        await new Promise((done) => setTimeout(done, LOADING_WAIT_MS));
      }
    }
    const { Terminal, FitAddon, SearchAddon } = xterm;
    const term = new Terminal({
      ...xtermOptions(),
      disableStdin: this.watch,
      linkHandler: { activate: (/** @type {MouseEvent} */ _event, /** @type {string} */ text) => this._follow(text) },
    });
    this.term = term;
    this._fit = new FitAddon();
    this.search = new SearchAddon();
    term.loadAddon(this._fit);
    term.loadAddon(this.search);
    term.onData((/** @type {string} */ text) => this.type(text));
    term.onBinary((/** @type {string} */ text) => this._send(Uint8Array.from(text, (each) => each.charCodeAt(0))));
    term.onTitleChange((/** @type {string} */ title) => {
      this.title = title;
      this._host.changed();
    });
    term.attachCustomKeyEventHandler((/** @type {KeyboardEvent} */ event) => this._key(event));
    // Before xterm's own listener: it would paste what could run at once, or end the bracket of a bracketed paste.
    this.element.addEventListener("paste", (event) => this._pasted(event), { capture: true });
    this._attach();
  }

  /** Shows it in the page, at the size of its place. */
  async show() {
    await this._ready;
    if (this._closed || !this.element.isConnected) return;
    this.term.options.theme = themeOf(this.element);
    if (!this.term.element) this.term.open(this.element);
    this._observer.observe(this.element);
    this.fit();
    this._webgl ??= await drawFast(this.term);
    if (!this.element.isConnected) this.hide();
  }

  /** Releases what only a shown terminal needs. */
  hide() {
    this._observer.disconnect();
    this._webgl?.dispose();
    this._webgl = null;
  }

  focus() {
    this.term?.focus();
  }

  /** Leaves the terminal, which runs on. */
  close() {
    this._closed = true;
    clearTimeout(this._timer);
    this.hide();
    this._socket?.close();
    this.term?.dispose();
    this.element.remove();
  }

  /** Fills its place, and sets the terminal's size if this viewer leads. */
  fit() {
    if (!this._leads || this.foreignSize || !this.element.isConnected || !this.element.clientWidth) return;
    const size = this._fit.proposeDimensions();
    if (!size || !Number.isFinite(size.cols) || !Number.isFinite(size.rows)) return;
    const [columns, rows] = [Math.max(2, Math.min(size.cols, 500)), Math.max(1, Math.min(size.rows, 300))];
    if (columns !== this.term.cols || rows !== this.term.rows) this.term.resize(columns, rows);
    if (this._sentSize === `${columns}×${rows}`) return;
    this._sentSize = `${columns}×${rows}`;
    this._frame(RESIZE, columns >> 8, columns & 255, rows >> 8, rows & 255);
  }

  /** Attaches anew: whoever attached last sets the size. */
  lead() {
    this._socket?.close();
    this._wait = FIRST_WAIT_MS;
    this._attach();
  }

  /** @param {string} text */
  type(text) {
    // While it connects, keys wait for the first drawing; into a lost terminal nobody types blindly.
    if (this.watch || this.state === "lost" || this.state === "ended") return;
    if (this.control) {
      this.control = false;
      this._host.changed();
      const code = text.toUpperCase().charCodeAt(0);
      if (text.length === 1 && code >= 64 && code < 96) text = String.fromCharCode(code - 64);
    }
    this._send(encoder.encode(text));
  }

  /** Pastes a text, after a question where it is long or would run before it was seen. */
  async paste(/** @type {string} */ text) {
    // Control characters would act as keys, and ESC could end the bracket around the paste.
    const clean = text.replace(/\r\n?/g, "\n").replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");
    const lines = clean.split("\n").length;
    const runs = lines > 1 && !this.term.modes.bracketedPasteMode;
    if (clean.length > ASKED_CHARACTERS || runs) {
      const size = `${clean.length.toLocaleString()} characters in ${lines.toLocaleString()} lines`;
      const why = runs ? " The program takes each line as if you had pressed Enter." : "";
      const shown = clean.length > 600 ? `${clean.slice(0, 600)}…` : clean;
      if (!(await this._host.ask(`Paste ${size}?`, `${why}\n\n${shown}`.trim(), "Paste"))) return;
    }
    this.term.paste(clean);
    this.focus();
  }

  /** @returns {Promise<boolean>} whether there was a selection */
  async copy() {
    const text = this.term.getSelection();
    if (text) await navigator.clipboard.writeText(text);
    return Boolean(text);
  }

  async _attach() {
    clearTimeout(this._timer);
    this._leads = false;
    this._sentSize = "";
    if (this.state === "attached") this.state = "connecting";
    try {
      const path = `/terminal/attach/${this.id}${this.watch ? "?watch=true" : ""}`;
      const socket = await opened(path, "/terminal/ticket", { terminal: this.id });
      if (this._closed) return socket.close();
      socket.binaryType = "arraybuffer";
      socket.onmessage = (event) => this._received(socket, new Uint8Array(event.data));
      socket.onclose = () => this._left(socket);
      this._socket = socket;
    } catch (error) {
      this._notAttached(error);
    }
  }

  _notAttached(/** @type {any} */ error) {
    if (this._closed) return;
    if (error instanceof ApiError && (GONE.has(error.code) || REFUSED.has(error.code) || error.isOver)) {
      this._become("ended", GONE.has(error.code) ? "The terminal is gone: it ended some time ago." : error.message);
      return;
    }
    this._queue = [];
    this._become("lost", AWAY);
    this._timer = window.setTimeout(() => this._attach(), this._wait);
    this._wait = Math.min(2 * this._wait, LONGEST_WAIT_MS);
  }

  _left(/** @type {WebSocket} */ socket) {
    // An ended one was told so; another socket has taken the place of a left one.
    if (this._closed || this.state === "ended" || socket !== this._socket) return;
    this._notAttached(null);
  }

  /** @param {WebSocket} socket @param {Uint8Array} frame */
  _received(socket, frame) {
    if (socket !== this._socket || this._closed) return;
    const view = new DataView(frame.buffer);
    const kind = frame[0];
    if (kind === DATA || kind === 1) this._printed(socket, frame.subarray(1));
    else if (kind === RESIZE) this._resized(view.getUint16(1), view.getUint16(3));
    else if (kind === ACKNOWLEDGEMENT) this._acknowledged(view.getUint32(1));
    else if (kind === EXIT_STATUS) this._ended(view.getInt32(1));
    else if (kind === ERROR) this._become("ended", JSON.parse(new TextDecoder().decode(frame.subarray(1))).message);
  }

  /** @param {WebSocket} socket @param {Uint8Array} data */
  _printed(socket, data) {
    const first = this.state !== "attached";
    if (first) {
      this._room = WINDOW_BYTES;
      this._unreported = 0;
      this._wait = FIRST_WAIT_MS;
      this._become("attached", "");
      this._send(new Uint8Array());
    }
    // What xterm has not drawn is not acknowledged, so the program waits instead of the page's memory.
    this.term.write(data, () => {
      if (socket !== this._socket) return;
      this._unreported += data.length;
      if (this._unreported >= ACKNOWLEDGED_BYTES) {
        const count = this._unreported;
        this._unreported = 0;
        this._frame(ACKNOWLEDGEMENT, count >> 24, (count >> 16) & 255, (count >> 8) & 255, count & 255);
      }
      if (first && !this.watch) {
        // The first drawing is of the size before: only then may this window set its own.
        this._leads = true;
        this.foreignSize = "";
        this.fit();
        this._host.changed();
      }
    });
  }

  /** @param {number} columns @param {number} rows */
  _resized(columns, rows) {
    const own = `${columns}×${rows}` === this._sentSize;
    this.foreignSize = own || (!this._leads && !this.watch) ? "" : `${columns}×${rows}`;
    if (columns !== this.term.cols || rows !== this.term.rows) this.term.resize(columns, rows);
    if (own) this.fit();
    this._host.changed();
  }

  /** @param {number} status */
  _ended(status) {
    this.exitCode = status;
    const by = status > 128 && status < 193 ? ` (signal ${status - 128})` : "";
    this._become("ended", `The program ended with exit code ${status}${by}.`);
  }

  /** @param {State} state @param {string} why */
  _become(state, why) {
    if (this.state === "ended") return;
    this.state = state;
    this.why = why;
    if (state === "ended") {
      if (this.term) this.term.options.disableStdin = true;
      this._socket?.close();
    }
    this._host.changed();
  }

  /** @param {Uint8Array} data */
  _send(data) {
    if (data.length) this._queue.push(data);
    while (
      this.state === "attached" &&
      this._room > 0 &&
      this._queue.length &&
      this._socket?.readyState === WebSocket.OPEN
    ) {
      const next = this._queue[0];
      const part = next.subarray(0, this._room);
      if (part.length === next.length) this._queue.shift();
      else this._queue[0] = next.subarray(part.length);
      this._room -= part.length;
      const frame = new Uint8Array(part.length + 1);
      frame.set(part, 1);
      this._socket.send(frame);
    }
  }

  /** @param {number} count */
  _acknowledged(count) {
    this._room += count;
    this._send(new Uint8Array());
  }

  /** @param {number[]} bytes */
  _frame(...bytes) {
    if (this._socket?.readyState === WebSocket.OPEN) this._socket.send(Uint8Array.from(bytes));
  }

  /** @param {KeyboardEvent} event @returns {boolean} whether xterm handles it */
  _key(event) {
    if (event.type !== "keydown") return true;
    const shifted = event.ctrlKey && event.shiftKey && !event.altKey;
    if (shifted && event.code === "KeyC") {
      event.preventDefault();
      this.copy().catch(failed);
      return false;
    }
    // These are the page's: everything else, Ctrl-K and F1 too, is the program's.
    return !(shifted && /^(Key[FKTV]|Arrow(Left|Right)|Backslash|Minus)$/.test(event.code)) && event.key !== "F6";
  }

  /** @param {ClipboardEvent} event */
  _pasted(event) {
    event.preventDefault();
    event.stopPropagation();
    this.paste(event.clipboardData?.getData("text/plain") ?? "");
  }

  /** @param {string} target */
  async _follow(target) {
    let url;
    try {
      url = new URL(target);
    } catch {
      return;
    }
    if (url.protocol !== "http:" && url.protocol !== "https:") return;
    const text = `The program that runs in the terminal has made this link:\n\n${url.href}`;
    if (await this._host.ask("Open a link?", text, "Open")) window.open(url.href, "_blank", "noopener,noreferrer");
  }
}
