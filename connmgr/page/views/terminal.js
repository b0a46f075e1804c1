// Terminals: those that run, in tabs and panes, and the recordings of earlier ones. A terminal lives in the daemon; what
// is here only shows it, so a reload, another browser or `connmgr shell --attach` finds it again.

import { call, eachLine, fetched, on } from "../core/api.js";
import { go, register, useRoute } from "../core/navigate.js";
import { changed, EVERYTHING, latest, nameOf, useStore } from "../core/store.js";
import {
  ago,
  confirm,
  doing,
  Fault,
  failed,
  html,
  lines,
  text,
  toast,
  useAnswer,
  useLayoutEffect,
  useRef,
  useState,
} from "../core/ui.js";
import { bytes, Chooser, Listing, stored } from "./listing.js";
import { drawFast, loadXterm, Session, themeOf, xtermOptions } from "./terminal-session.js";

const FIRST_SIZE = { columns: 100, rows: 30 };

// The tabs: which terminals are shown, and how they share the window. Kept by this window's sessionStorage, so that a
// reload finds them again; another device finds the terminals in the list of those that run.

const TABS = "connmgr.terminal.tabs";
const MAX_PANES = 4;

/** @typedef {{panes: string[], stacked: boolean}} Tab */

/** @returns {Tab[]} */
function storedTabs() {
  try {
    const stored = JSON.parse(sessionStorage.getItem(TABS) ?? "[]");
    return stored.filter((/** @type {any} */ tab) => Array.isArray(tab?.panes) && tab.panes.length);
  } catch {
    return [];
  }
}

/** @param {Tab[]} tabs */
function storeTabs(tabs) {
  sessionStorage.setItem(TABS, JSON.stringify(tabs));
}

/** The last part of a tab's address: ids side by side with commas, one below the other with semicolons. */
function addressOf(/** @type {Tab} */ tab) {
  return tab.panes.join(tab.stacked ? ";" : ",");
}

/** @param {string} address @returns {Tab} */
function tabAt(address) {
  const stacked = address.includes(";");
  const ids = address.split(/[,;]/).filter((id) => /^[0-9a-f-]{36}$/.test(id));
  return { panes: [...new Set(ids)].slice(0, MAX_PANES), stacked };
}

/**
 * The tabs after an address was opened, and the index of its tab: an address of one terminal finds the tab in which it
 * is; another layout of the same terminals replaces the one before.
 * @param {Tab[]} tabs @param {Tab} opened @returns {{tabs: Tab[], index: number}}
 */
function opened(tabs, opened) {
  if (!opened.panes.length) return { tabs, index: -1 };
  const index = tabs.findIndex((tab) => opened.panes.some((id) => tab.panes.includes(id)));
  if (index < 0) return { tabs: [...tabs, opened], index: tabs.length };
  if (opened.panes.length === 1 || addressOf(tabs[index]) === addressOf(opened)) return { tabs, index };
  const others = tabs.map((tab, each) =>
    each === index ? opened : { ...tab, panes: tab.panes.filter((id) => !opened.panes.includes(id)) },
  );
  const left = others.filter((tab) => tab.panes.length);
  return { tabs: left, index: left.indexOf(opened) };
}

/** @param {Tab[]} tabs @param {string} id @returns {Tab[]} */
function without(tabs, id) {
  return tabs
    .map((tab) => ({ ...tab, panes: tab.panes.filter((each) => each !== id) }))
    .filter((tab) => tab.panes.length);
}

// What this page shows of the terminals.

/** @type {Map<string, Session>} */
const sessions = new Map();
let tabs = storedTabs();
/** @type {Map<string, import("../contract.d.ts").TerminalInfo>} */
let known = new Map();
/** Why these may not be all; undefined while they are read for the first time. @type {Error | null | undefined} */
let fault;
/** The terminal that was opened or chosen last: it has the keyboard. */
let recent = "";
const host = {
  /** @param {string} title @param {string} question @param {string} yes */
  ask: (title, question, yes) => confirm({ title, text: lines(question), yes }),
  changed,
};

const refresh = latest(async () => {
  try {
    const { terminals } = await call("/terminal/query", EVERYTHING);
    known = new Map(terminals.map((one) => [one.terminal, one]));
    fault = null;
  } catch (error) {
    fault = /** @type {Error} */ (error);
  }
  changed();
});

/** @param {Tab[]} next */
function keep(next) {
  tabs = next;
  storeTabs(tabs);
  const shown = new Set(tabs.flatMap((tab) => tab.panes));
  for (const [id, session] of sessions) {
    if (!shown.has(id)) {
      session.close();
      sessions.delete(id);
    }
  }
  changed();
}

/** @param {string} id */
function sessionOf(id) {
  let session = sessions.get(id);
  if (!session) {
    session = new Session(id, host);
    sessions.set(id, session);
  }
  return session;
}

/**
 * Opens a terminal on a connection, and shows it.
 * @param {string} connection @param {{command?: string, argv?: string[], record?: boolean, elevate?: {user: string}, beside?: string}} options
 */
export async function openTerminal(connection, { beside, ...options } = {}) {
  try {
    const info = await call("/terminal/open", { connection, ...FIRST_SIZE, ...options });
    known.set(info.terminal, info);
    recent = info.terminal;
    const tab = beside ? tabs.find((each) => each.panes.includes(beside)) : undefined;
    if (tab && tab.panes.length < MAX_PANES) {
      tab.panes.push(info.terminal);
      keep(tabs);
    }
    show(info.terminal);
    return info.terminal;
  } catch (error) {
    failed(error);
    return null;
  }
}

/** Ends a terminal with what runs in it, which nothing brings back. @param {string} id */
const end = (id) =>
  doing(async () => {
    const info = known.get(id);
    const what = sessions.get(id)?.title || (info?.command ? words(info.command) : "the shell");
    const question = `${text(what)} on ${text(nameOf(info?.connection))} gets HUP.`;
    if (!(await confirm({ title: "End this terminal?", text: question, yes: "End", danger: true }))) return;
    await call("/terminal/close", { terminal: id });
    await refresh();
  });

/** @param {string} id */
function show(id) {
  const tab = tabs.find((each) => each.panes.includes(id));
  go(`#/terminal/${tab ? addressOf(tab) : id}`);
}

/** `#/terminal`, or with the address of a tab: one id or several. */
function Terminals() {
  const { view, path } = useRoute();
  useStore();
  useLayoutEffect(() => {
    refresh();
    return on("terminal", refresh);
  }, []);
  // This still renders once when another view has the address already.
  const address = view === "terminal" ? (path[0] ?? "") : "";
  const found = opened(tabs, tabAt(address));
  useLayoutEffect(() => {
    if (found.tabs !== tabs) keep(found.tabs);
  });
  const tab = found.tabs[found.index];
  return html`
    <div class="terminals">
      <h1 class="unseen">Terminals</h1>
      <${Tabs} tabs=${found.tabs} index=${found.index} address=${address} />
      ${tab ? html`<${Panes} key=${addressOf(tab)} tab=${tab} />` : html`<${Overview} />`}
    </div>
  `;
}

/** @param {{tabs: Tab[], index: number, address: string}} props */
function Tabs({ tabs, index, address }) {
  const label = (/** @type {string} */ id) => {
    const info = known.get(id);
    return (
      sessions.get(id)?.title || (info ? (info.command ? words(info.command) : nameOf(info.connection)) : "terminal")
    );
  };
  const leave = (/** @type {Tab} */ tab) => {
    keep(tabs.filter((each) => each !== tab));
    go("#/terminal");
  };
  return html`
    <nav class="tabs" aria-label="Terminals">
      <a href="#/terminal" aria-current=${address === "" ? "page" : undefined}>All</a>
      ${tabs.map(
        (tab, each) => html`
          <span class=${each === index ? "tab here" : "tab"}>
            <a href=${`#/terminal/${addressOf(tab)}`} aria-current=${each === index ? "page" : undefined}>
              <i class=${`dot ${stateOf(tab.panes[0])}`} aria-hidden="true"></i>${text(tab.panes.map(label).join(" · "))}
            </a>
            <button class="quiet" aria-label="Leave this tab; its terminals run on" onClick=${() => leave(tab)}>×</button>
          </span>
        `,
      )}
    </nav>
  `;
}

/** @param {string} id */
function stateOf(id) {
  const session = sessions.get(id);
  if (session) return session.state;
  const info = known.get(id);
  return info && info.state !== "running" ? "ended" : "attached";
}

/** @param {string | string[]} command */
function words(command) {
  return Array.isArray(command) ? command.join(" ") : command;
}

/** @param {{tab: Tab}} props */
function Panes({ tab }) {
  const [searching, search] = useState(/** @type {string | null} */ (null));
  const [here, move] = useState(tab.panes.includes(recent) ? recent : tab.panes[0]);
  const choose = (/** @type {string} */ id) => {
    recent = id;
    move(id);
  };
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const shifted = event.ctrlKey && event.shiftKey && !event.altKey;
    const done = {
      KeyF: () => search(here),
      Backslash: () => split(here, false),
      Minus: () => split(here, true),
      ArrowLeft: () => step(tab, -1),
      ArrowRight: () => step(tab, 1),
    }[event.code];
    if (shifted && done) {
      event.preventDefault();
      done();
    } else if (event.key === "F6") {
      event.preventDefault();
      /** @type {HTMLElement | null} */ (document.querySelector(".terminals .tabs [aria-current]"))?.focus();
    }
  };
  return html`
    <div class=${tab.stacked ? "panes stacked" : "panes"} onKeyDown=${onKeyDown}>
      ${tab.panes.map(
        (id) => html`
          <${Pane} key=${id} id=${id} alone=${tab.panes.length === 1} searching=${searching === id} search=${search}
            focused=${here === id} chosen=${() => choose(id)} />
        `,
      )}
    </div>
    <${Keys} session=${sessionOf(here)} />
  `;
}

/** @param {string} id @param {boolean} stacked */
function split(id, stacked) {
  const tab = tabs.find((each) => each.panes.includes(id));
  const connection = known.get(id)?.connection;
  if (!tab || !connection) return;
  if (tab.panes.length >= MAX_PANES) {
    toast(`A tab has at most ${MAX_PANES} panes; open another tab.`);
    return;
  }
  if (tab.panes.length === 1) tab.stacked = stacked;
  openTerminal(connection, { beside: id });
}

/** @param {Tab} tab @param {number} by */
function step(tab, by) {
  const index = tabs.findIndex((each) => addressOf(each) === addressOf(tab));
  const next = tabs[(index + by + tabs.length) % tabs.length];
  if (next) go(`#/terminal/${addressOf(next)}`);
}

/** @param {{id: string, alone: boolean, searching: boolean, search: (id: string | null) => void, focused: boolean, chosen: () => void}} props */
function Pane({ id, alone, searching, search, focused, chosen }) {
  useStore();
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const session = sessionOf(id);
  useLayoutEffect(() => {
    place.current?.prepend(session.element);
    session.show().then(() => focused && session.focus(), failed);
    return () => {
      session.hide();
      session.element.remove();
    };
  }, [session]);
  const info = known.get(id);
  const title = session.title || (info?.command ? words(info.command) : "");
  const leave = () => {
    keep(without(tabs, id));
    const left = tabs.find((tab) => tab.panes.length && tab.panes.some((each) => sessions.has(each)));
    go(alone || !left ? "#/terminal" : `#/terminal/${addressOf(left)}`);
  };
  return html`
    <section class="pane" aria-label=${`Terminal on ${text(nameOf(info?.connection ?? ""))}`} onFocusIn=${chosen}>
      <header>
        <strong>${text(nameOf(info?.connection ?? ""))}</strong>
        <span class="title">${text(title)}</span>
        ${session.watch && html`<span class="note">watching</span>`}
        ${
          session.foreignSize &&
          html`
          <button class="quiet" title="Another viewer sets the size" onClick=${() => session.lead()}>${session.foreignSize} · use mine</button>`
        }
        <${Tools} id=${id} session=${session} search=${search} leave=${leave} />
      </header>
      ${searching && html`<${Search} session=${session} done=${() => search(null)} />`}
      <div class="xterm-frame" ref=${place}></div>
      <${How} id=${id} session=${session} leave=${leave} />
    </section>
  `;
}

/** @param {{id: string, session: Session, search: (id: string) => void, leave: () => void}} props */
function Tools({ id, session, search, leave }) {
  const reader = localStorage.getItem("connmgr.terminal.reader") === "on";
  const read = () => {
    localStorage.setItem("connmgr.terminal.reader", reader ? "off" : "on");
    for (const each of sessions.values()) if (each.term) each.term.options.screenReaderMode = !reader;
    changed();
  };
  const copy = doing(async () => toast((await session.copy()) ? "Copied." : "Nothing is selected."));
  return html`
    <div class="tools" role="toolbar" aria-label="Terminal">
      <button class="quiet" title="Find (Ctrl+Shift+F)" onClick=${() => search(id)}>Find</button>
      <button class="quiet" title="Copy (Ctrl+Shift+C)" onClick=${copy}>Copy</button>
      <button class="quiet" title="Split to the right (Ctrl+Shift+\\)" onClick=${() => split(id, false)}>Split</button>
      <button class="quiet" title="Say output aloud by a screen reader" aria-pressed=${reader} onClick=${read}>Reader</button>
      ${session.state !== "ended" && !session.watch && html`<button class="quiet" onClick=${end(id)}>End</button>`}
      <button class="quiet" aria-label="Leave; the terminal runs on" title="Leave; the terminal runs on" onClick=${leave}>×</button>
    </div>
  `;
}

/** Says how a terminal ended, or why it is not attached, and offers what can be done. @param {{id: string, session: Session, leave: () => void}} props */
function How({ id, session, leave }) {
  if (!session.why) return null;
  const info = known.get(id);
  const again = () => {
    keep(without(tabs, id));
    const { connection = "", command } = info ?? {};
    openTerminal(connection, Array.isArray(command) ? { argv: command } : command ? { command } : {});
  };
  return html`
    <p class="how" role="status">
      ${text(session.why)}
      ${session.state === "ended" && info && html`<button class="primary" onClick=${again}>Open again</button>`}
      ${session.state === "ended" && html`<button onClick=${leave}>Close</button>`}
    </p>
  `;
}

/** @param {{session: Session, done: () => void}} props */
function Search({ session, done }) {
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [found, tell] = useState("");
  useLayoutEffect(() => {
    input.current?.focus();
    const heard = session.search.onDidChangeResults((/** @type {any} */ results) =>
      tell(results.resultCount ? `${results.resultIndex + 1} of ${results.resultCount}` : "none"),
    );
    return () => {
      heard.dispose();
      session.search.clearDecorations();
      session.focus();
    };
  }, [session]);
  const options = {
    decorations: {
      matchOverviewRuler: "#888888",
      activeMatchColorOverviewRuler: "#e0a030",
      matchBackground: "#80600060",
      activeMatchBackground: "#c08000",
    },
  };
  const find = (/** @type {boolean} */ back) => {
    const wanted = input.current?.value ?? "";
    if (wanted) session.search[back ? "findPrevious" : "findNext"](wanted, options);
  };
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (event.key === "Enter") find(!event.shiftKey);
    if (event.key === "Escape") done();
    event.stopPropagation();
  };
  return html`
    <div class="find" role="search">
      <input ref=${input} type="search" aria-label="Find in the output" placeholder="Find" onKeyDown=${onKeyDown} onInput=${() => find(true)} />
      <span aria-live="polite">${found}</span>
      <button class="quiet" aria-label="Earlier" onClick=${() => find(true)}>↑</button>
      <button class="quiet" aria-label="Later" onClick=${() => find(false)}>↓</button>
      <button class="quiet" aria-label="Close the search" onClick=${done}>×</button>
    </div>
  `;
}

const KEYS = [
  ["Esc", "\x1b"],
  ["Tab", "\t"],
  ["←", "D"],
  ["↑", "A"],
  ["↓", "B"],
  ["→", "C"],
  ["|", "|"],
  ["/", "/"],
  ["-", "-"],
  ["~", "~"],
];

/** @param {{session: Session}} props */
function Keys({ session }) {
  // The keyboard of the phone stays only as long as the terminal has the focus.
  const hold = (/** @type {Event} */ event) => event.preventDefault();
  const press = (/** @type {string} */ key) => {
    const arrow = /^[A-D]$/.test(key);
    session.type(arrow ? `\x1b${session.term?.modes.applicationCursorKeysMode ? "O" : "["}${key}` : key);
  };
  const control = () => {
    session.control = !session.control;
    changed();
  };
  const paste = doing(async () => session.paste(await navigator.clipboard.readText()));
  return html`
    <div class="keys" role="toolbar" aria-label="Keys" onPointerDown=${hold} onMouseDown=${hold}>
      <button aria-pressed=${session.control} onClick=${control}>Ctrl</button>
      ${KEYS.map(([label, key]) => html`<button onClick=${() => press(key)}>${label}</button>`)}
      <button onClick=${paste}>Paste</button>
    </div>
  `;
}

function Overview() {
  const [record, keepRecord] = useState(false);
  const listed = [...known.values()].reverse();
  const watch = (/** @type {string} */ id) => {
    sessions.get(id)?.close();
    sessions.set(id, new Session(id, host, true));
    show(id);
  };
  return html`
    <div class="overview">
      <div class="chooser">
        <${Chooser} label="Open a terminal on …" choose=${(connection) => openTerminal(connection, record ? { record } : {})} />
        <label class="check"><input type="checkbox" checked=${record} onChange=${() => keepRecord(!record)} /> Record</label>
      </div>
      ${fault && html`<${Fault} error=${fault} again=${refresh} />`}
      ${
        listed.length
          ? html`
            <table>
              <caption>Terminals</caption>
              <thead>
                <tr><th scope="col">Connection</th><th scope="col">Runs</th><th scope="col">State</th><th scope="col">Viewers</th><th scope="col">Opened</th><td></td></tr>
              </thead>
              <tbody>
                ${listed.map(
                  (one) => html`
                    <tr key=${one.terminal}>
                      <td><a href=${`#/terminal/${one.terminal}`}>${text(nameOf(one.connection))}</a></td>
                      <td class="mono">${one.locked ? "locked" : text(one.command ? words(one.command) : "shell")}</td>
                      <td><i class=${`dot ${one.state === "running" ? "attached" : "ended"}`} aria-hidden="true"></i>${one.state}${one.exitCode === null ? "" : ` ${one.exitCode}`}${one.recording === "active" ? ", recorded" : ""}</td>
                      <td>${one.clients || "–"}</td>
                      <td>${ago(one.opened)}</td>
                      <td class="actions">
                        ${
                          one.state === "running" &&
                          html`<button class="quiet" onClick=${() => watch(one.terminal)}>Watch</button>
                        <button class="quiet" onClick=${end(one.terminal)}>End</button>`
                        }
                      </td>
                    </tr>
                  `,
                )}
              </tbody>
            </table>
          `
          : fault === null &&
            html`<p class="empty">No terminal runs. Choose a machine above: a login shell opens on it, and goes on when you close this page.</p>`
      }
      <p><a href="#/recordings">Recordings</a> of terminals that were opened with Record.</p>
    </div>
  `;
}

register({
  name: "Open a terminal",
  actions: ["terminal.open"],
  on: "connection",
  run: (connection) => openTerminal(connection),
});

// Recordings of terminals: listed, searched, replayed at any speed from any point, and exported as asciicasts.

const SPEEDS = [0.5, 1, 2, 4, 8, 16];
const LONGEST_PAUSE = 2;
/** What is printed within a frame is shown at once. */
const FRAME_SECONDS = 1 / 60;
/** Characters that are written to a terminal at once. */
const PIECE = 100_000;

/** `#/recordings`, or `#/recordings/ID` with `/SECONDS` to begin at. */
function Recordings() {
  useStore();
  const { view, path } = useRoute();
  const [id, seconds] = view === "recordings" ? path : [];
  return id ? html`<${Replay} key=${id} id=${id} from=${Number(seconds) || 0} />` : html`<${List} />`;
}

/** @type {Column<import("../contract.d.ts").RecordingInfo>[]} */
const COLUMNS = [
  ["Connection", 1, place],
  ["Ran", 2, ({ locked, command }) => (locked ? "locked" : (command ?? "shell")), "mono"],
  ["Began", "6rem", (one) => ago(one.began), "note"],
  ["Length", "6rem", ({ active, seconds }) => (active ? "still runs" : clock(seconds ?? 0)), "number"],
  ["Size", "5rem", (one) => bytes(one.size, 1000), "number"],
];

function List() {
  const { answer, error, again } = useAnswer(() => call("/recording/query", { connectionFilter: "*" }), []);
  const [wanted, want] = useState("");
  const [contains, search] = useState("");
  const found = useAnswer(async () => (contains ? call("/recording/search", { contains }) : null), [contains]);
  const items = answer?.recordings;
  return html`<${Listing} view="recordings" id="recording" path=${[]} ...${{ items, error, again }} columns=${COLUMNS} narrow=${[0, 3]}
    tools=${
      Boolean(items?.length) &&
      html`<form class="find" role="search" onSubmit=${(event) => {
        event.preventDefault();
        if (wanted === contains) found.again();
        else search(wanted);
      }}>
        <input type="search" aria-label="Find in what terminals printed" placeholder="Find in what was printed" value=${wanted} onInput=${(event) => want(event.target.value)} />
        <button>Find</button></form>`
    }
    filters=${html`${found.error && html`<${Fault} error=${found.error} again=${found.again} />`}
      ${found.answer && html`<${Lines} lines=${found.answer} named=${new Map(items?.map((one) => [one.recording, one]))} />`}`}
    empty=${["No recordings yet", html`Open a terminal with <em>Record</em>, or run <code>connmgr shell --record</code>: what it prints can be replayed and searched here.`]} />`;
}

/** @param {any} one */
function place(one) {
  return one.connection ? text(nameOf(one.connection)) : "unknown";
}

/** @param {{lines: any, named: Map<string, any>}} props */
function Lines({ lines: { matches, complete }, named }) {
  if (!matches.length)
    return html`<p class="found note">No line has this text${complete ? "." : ", as far as there was time to look."}</p>`;
  return html`
    <ul class="found" aria-label="Lines found">
      ${matches.map(
        (/** @type {any} */ one) => html`
          <li>
            <a href=${`#/recordings/${one.recording}/${Math.max(0, one.seconds - 1).toFixed(1)}`}>
              ${place(named.get(one.recording) ?? {})} ${clock(one.seconds)}
            </a>
            <code>${text(one.text)}</code>
          </li>
        `,
      )}
      ${!complete && html`<li>There may be more lines.</li>`}
    </ul>
  `;
}

/** @param {number} seconds */
function clock(seconds) {
  const whole = Math.floor(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (/** @type {number} */ each) => String(each).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** @param {string} id */
const exported = (id) =>
  doing(async () => stored(await (await fetched("/recording/read", { recording: id })).blob(), `${id}.cast`));

/** Plays an asciicast of version 3, the lines of which come in one after the other. */
class Player {
  /** @param {any} term @param {any} header @param {() => void} changed */
  constructor(term, header, changed) {
    this.term = term;
    /** @type {string} */
    this.command = header.command ?? "shell";
    this.length = 0;
    /** Whether all lines have come. */
    this.isWhole = false;
    this.speed = 1;
    this.skips = true;
    this.playing = false;
    this.now = 0;
    this._size = header.term;
    /** @type {{time: number, kind: string, data: string}[]} */
    this._events = [];
    this._next = 0;
    this._last = 0;
    this._frame = 0;
    this._isWriting = false;
    this._isBack = false;
    this._changed = changed;
  }

  /** @param {[interval: number, kind: string, data: string][]} lines */
  add(lines) {
    for (const [interval, kind, data] of lines) {
      this.length += interval;
      const before = this._events.at(-1);
      if (
        kind === "o" &&
        before?.kind === "o" &&
        this.length - before.time < FRAME_SECONDS &&
        before.data.length < PIECE &&
        this._next < this._events.length
      )
        before.data += data;
      else if (kind === "o" || kind === "r") this._events.push({ time: this.length, kind, data });
    }
    this._show();
    this._changed();
  }

  toggle() {
    if (!this.playing && !this._isMore()) this.seek(0);
    this.playing = !this.playing;
    this._last = performance.now();
    if (this.playing) this._frame = requestAnimationFrame((at) => this._step(at));
    this._changed();
  }

  close() {
    this.playing = false;
    this._events = [];
    cancelAnimationFrame(this._frame);
  }

  /** @param {number} time */
  seek(time) {
    this._isBack ||= time < this.now;
    this.now = Math.max(0, this.isWhole ? Math.min(time, this.length) : time);
    this._show();
    this._changed();
  }

  /** @param {number} at */
  _step(at) {
    if (!this.playing) return;
    // It goes no further than the lines that have come.
    if (this.now < this.length) this.now += ((at - this._last) / 1000) * this.speed;
    this._last = at;
    const next = this._events[this._next];
    if (next && this.skips && next.time - this.now > LONGEST_PAUSE) this.now = next.time - LONGEST_PAUSE;
    this._show();
    this.playing = this._isMore();
    if (this.playing) this._frame = requestAnimationFrame((later) => this._step(later));
    this._changed();
  }

  _isMore() {
    return !this.isWhole || this._next < this._events.length;
  }

  /** Writes what was printed until now, each piece when the one before is drawn: a terminal refuses to have too much before it. */
  _show() {
    if (this._isWriting) return;
    if (this._isBack) {
      this._isBack = false;
      this._next = 0;
      this.term.reset();
      this.term.resize(this._size.cols, this._size.rows);
    }
    let piece = "";
    for (; this._next < this._events.length && piece.length < PIECE; this._next += 1) {
      const { time, kind, data } = this._events[this._next];
      if (time > this.now || (kind === "r" && piece)) break;
      if (kind === "o") piece += data;
      else {
        const [columns, rows] = data.split("x").map(Number);
        this.term.resize(columns, rows);
      }
    }
    if (!piece) return;
    this._isWriting = true;
    this.term.write(piece, () => {
      this._isWriting = false;
      this._show();
    });
  }
}

/** @param {{id: string, from: number}} props */
function Replay({ id, from }) {
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const [player, play] = useState(/** @type {Player | null} */ (null));
  const [, draw] = useState(0);
  const [error, tell] = useState(/** @type {Error | null} */ (null));
  useLayoutEffect(() => {
    const closed = new AbortController();
    /** @type {Player | undefined} */
    let made;
    const begin = async () => {
      const { Terminal } = await loadXterm();
      const received = (/** @type {any[]} */ lines) => {
        if (closed.signal.aborted || !frame.current) return;
        if (!made) {
          const header = lines.shift();
          const { cols, rows } = header.term;
          const term = new Terminal({ ...xtermOptions(), cols, rows, disableStdin: true });
          term.options.theme = themeOf(frame.current);
          term.options.linkHandler = { activate() {} };
          term.open(frame.current);
          drawFast(term);
          made = new Player(term, header, () => draw(performance.now()));
          made.seek(from);
          if (!from) made.toggle();
          play(made);
        }
        made.add(lines);
      };
      await eachLine("/recording/read", { recording: id }, received, closed.signal);
      if (made) made.isWhole = true;
      draw(performance.now());
    };
    begin().catch((error) => closed.signal.aborted || tell(error));
    return () => {
      closed.abort();
      made?.close();
      made?.term.dispose();
    };
  }, [id]);
  if (error) return html`<${Fault} error=${error} />`;
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (!player || /^(BUTTON|SELECT|INPUT)$/.test(target.tagName)) return;
    const done = {
      " ": () => player.toggle(),
      ArrowLeft: () => player.seek(player.now - 5),
      ArrowRight: () => player.seek(player.now + 5),
    }[event.key];
    if (!done) return;
    event.preventDefault();
    done();
  };
  return html`
    <section class="pane replay" aria-label="Recording" onKeyDown=${onKeyDown}>
      <h1 class="unseen">Recording</h1>
      <header>
        <a class="button" href="#/recordings" aria-label="All recordings">‹</a>
        ${
          player &&
          html`
          <span class="title mono">${text(player.command)}</span>
          <div class="tools" role="toolbar" aria-label="Replay">
            <button class="primary" title="Space" onClick=${() => player.toggle()}>${player.playing ? "Pause" : "Play"}</button>
            <input type="range" min="0" max=${player.length} step="any" value=${player.now} aria-label="Moment"
              aria-valuetext=${clock(player.now)} onInput=${(event) => player.seek(Number(event.target.value))} />
            <span class="clock">${clock(player.now)} / ${clock(player.length)}${!player.isWhole && "+"}</span>
            <select aria-label="Speed" onChange=${(event) => {
              player.speed = Number(event.target.value);
            }}>
              ${SPEEDS.map((speed) => html`<option value=${speed} selected=${speed === player.speed}>${speed}×</option>`)}
            </select>
            <label title=${`Pauses last at most ${LONGEST_PAUSE} s`}>
              <input type="checkbox" checked=${player.skips} onChange=${() => {
                player.skips = !player.skips;
                draw(performance.now());
              }} /> Skip pauses
            </label>
            <button onClick=${exported(id)}>Export</button>
          </div>`
        }
      </header>
      ${player && html`<${Find} id=${id} player=${player} />`}
      <div class="xterm-frame" ref=${frame}></div>
    </section>
  `;
}

/** Finds a text in this recording, and goes to the moments where it was printed. @param {{id: string, player: Player}} props */
function Find({ id, player }) {
  const [wanted, want] = useState("");
  const [answer, match] = useState(/** @type {any | null} */ (null));
  const [at, move] = useState(0);
  /** @param {number} index @param {any[]} matches */
  const show = (index, matches) => {
    move(index);
    // Behind the line, so that it is on the screen.
    if (matches[index]) player.seek(matches[index].seconds + 0.05);
  };
  /** @param {SubmitEvent} event */
  const search = (event) => {
    event.preventDefault();
    if (answer?.for === wanted) return show((at + 1) % answer.matches.length, answer.matches);
    call("/recording/search", { contains: wanted, recordings: [id] }).then((found) => {
      match({ ...found, for: wanted });
      show(0, found.matches);
    }, failed);
  };
  return html`
    <form class="find" role="search" onSubmit=${search}>
      <input type="search" aria-label="Find in this recording" placeholder="Find" required value=${wanted}
        onInput=${(event) => want(event.target.value)} />
      <button class="quiet">Next</button>
      <span aria-live="polite">${answer && (answer.matches.length ? `${at + 1} of ${answer.matches.length}${answer.complete ? "" : "+"}` : "none")}</span>
    </form>
  `;
}

export default { terminal: { component: Terminals }, recordings: { component: Recordings } };
