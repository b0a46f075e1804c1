// Recordings of terminals: listed, searched, replayed at any speed from any point, and exported as asciicasts.

import { call, eachLine, fetched } from "../core/api.js";
import { useRoute } from "../core/navigate.js";
import { nameOf, useStore } from "../core/store.js";
import { ago, doing, Fault, failed, html, text, useAnswer, useLayoutEffect, useRef, useState } from "../core/ui.js";
import { bytes, Listing, stored } from "./listing.js";
import { drawFast, loadXterm, themeOf, xtermOptions } from "./terminal-session.js";

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
const store = (id) =>
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
            <button onClick=${store(id)}>Export</button>
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

export default { recordings: { component: Recordings } };
