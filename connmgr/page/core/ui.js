// What all views are made of: text of remote hosts, lists that draw only what is seen, dialogs, messages with an undo.

import {
  html,
  render,
  useCallback,
  useEffect,
  useLayoutEffect,
  useReducer,
  useRef,
  useState,
} from "../vendor/htm-preact.js";
import { ApiError, now, on, UNREACHED } from "./api.js";

export * from "../vendor/htm-preact.js";

// Line ends and tabs too: a name has one line. The last ranges turn the direction of text, or have no width.
const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/gu;

const SHORT = /** @type {Record<string, string>} */ ({ "\n": "\\n", "\r": "\\r", "\t": "\\t" });

/** Text of a remote host on one line, its control characters visible. @param {unknown} value */
export function text(value) {
  return String(value ?? "").replace(CONTROLS, (character) => {
    const code = character.charCodeAt(0);
    return (
      SHORT[character] ??
      (code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`)
    );
  });
}

/** Such text with its lines and tabs. @param {unknown} value */
export const lines = (value) =>
  String(value ?? "")
    .split("\n")
    .map((line) => line.split("\t").map(text).join("\t"))
    .join("\n");

const UNITS = /** @type {[Intl.RelativeTimeFormatUnit, number][]} */ ([
  ["year", 31557600],
  ["month", 2629800],
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
]);
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const EXACT = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** A time as people say it, with the exact one on it. @param {string | null | undefined} time */
export function ago(time) {
  if (!time) return html`<span class="note">–</span>`;
  const at = new Date(time);
  const seconds = (at.getTime() - now()) / 1000;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  const said =
    unit === "second" ? (seconds > 0 ? "in a moment" : "just now") : RELATIVE.format(Math.trunc(seconds / size), unit);
  return html`<time datetime=${at.toISOString()} title=${EXACT.format(at)}>${said}</time>`;
}

/** @param {string} time */
export const exact = (time) => EXACT.format(new Date(time));

/** @param {number} count @param {string} noun @param {string} [plural] */
export const counted = (count, noun, plural = `${noun}s`) =>
  `${count.toLocaleString("en")} ${count === 1 ? noun : plural}`;

/** `hostKeyChecking` as `Host key checking`. @param {string} name */
export const labelOf = (name) =>
  name[0].toUpperCase() + name.slice(1).replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

const narrow = matchMedia("(max-width: 760px)");

/** Whether the page is as narrow as a phone, now and later. */
export function useNarrow() {
  const [is, set] = useState(narrow.matches);
  useLayoutEffect(() => {
    const changed = () => set(narrow.matches);
    narrow.addEventListener("change", changed);
    return () => narrow.removeEventListener("change", changed);
  }, []);
  return is;
}

const SOON_MS = 60;

/**
 * What `work` resolves to, its error, and `again`, which does it once more; so does an event of `kind` (and of `about`,
 * where that is given), and, while the page is seen, the time: `every` says after how many seconds, by the answer.
 * After new `inputs` the answer to the ones before `isOld`, and stays until there is another one, or an error.
 * @template T @param {() => Promise<T>} work @param {unknown[]} inputs
 * @param {{kind?: string, about?: string, every?: (answer: T | undefined) => number | false | undefined}} [renewal]
 */
export function useAnswer(work, inputs, { kind, about, every } = {}) {
  const [state, set] = useState(/** @type {{answer?: T, error?: Error, of?: unknown[]}} */ ({}));
  const isOf = (/** @type {unknown[] | undefined} */ others) => inputs.every((one, at) => one === others?.[at]);
  const [turn, again] = /** @type {[number, () => void]} */ (useReducer((count) => count + 1, 0));
  useEffect(() => {
    let isCurrent = true;
    work().then(
      (answer) => isCurrent && set({ answer, of: inputs }),
      (error) => isCurrent && set(({ answer, of }) => ({ answer: isOf(of) ? answer : undefined, error, of: inputs })),
    );
    return () => {
      isCurrent = false;
    };
  }, [...inputs, turn]);
  useLayoutEffect(() => {
    if (!kind) return;
    let timer = 0;
    const end = on(kind, (event) => {
      if (event.kind === "stream" || !about || event.id === about) timer ||= window.setTimeout(renew, SOON_MS);
    });
    const renew = () => {
      timer = 0;
      again();
    };
    return () => {
      end();
      clearTimeout(timer);
    };
  }, [kind, about]);
  const seconds = every?.(state.answer) || 0;
  useEffect(() => {
    if (!seconds) return;
    const timer = setTimeout(() => {
      if (!document.hidden) return again();
      document.addEventListener("visibilitychange", again, { once: true });
    }, seconds * 1000);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", again);
    };
  }, [state, seconds]);
  const isOld = !isOf(state.of);
  return { answer: state.answer, error: isOld ? undefined : state.error, isOld, again };
}

/** @param {{path: string}} props */
export const Icon = ({ path }) =>
  html`<svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><path d=${path} /></svg>`;

/** @param {{kind: string, word: string}} props */
export const State = ({ kind, word }) =>
  html`<span class=${`state ${kind}`}>${word && html`<i aria-hidden="true"></i>${text(word)}`}</span>`;

/** What is said where nothing is, and what to do first. @param {{title: string, children?: any}} props */
export const Empty = ({ title, children }) => html`<div class="empty"><p class="title">${title}</p>${children}</div>`;

/** Waiting, and what for; shown after a moment, so that quick answers do not flicker. @param {{reason: string}} props */
export const Waiting = ({ reason }) =>
  html`<p class="waiting" role="status"><progress aria-label=${reason}></progress> ${reason}</p>`;

/** Why something failed; of a module that did not come a browser says no more than its address. @param {unknown} error */
const reasonOf = (error) =>
  error instanceof TypeError && /dynamically|module script/.test(error.message)
    ? UNREACHED
    : lines(error instanceof Error ? error.message : error);

/** @param {{error: Error, again?: () => void}} props */
export const Fault = ({ error, again }) => html`
  <p class="fault" role="alert">${reasonOf(error)} ${again && html`<button class="quiet" onClick=${again}>Try again</button>`}</p>
`;

/** Names and what is said of them, in two columns; without those of which nothing is. @param {{facts: [string, any][]}} props */
export const Facts = ({ facts }) =>
  html`<dl>${facts.filter(([, said]) => said !== null && said !== undefined).map(([name, said]) => html`<div key=${name}><dt>${name}</dt><dd>${said}</dd></div>`)}</dl>`;

const OVERSCAN = 6;

/**
 * A list that draws only the rows that are seen. Its rows have the same height; `row` makes the content of one. The
 * arrows move, Enter opens, the space bar toggles. With `isPassive` the keys belong to somebody else, who says which row
 * is `active`.
 * @param {{items: readonly any[], keyOf: (item: any) => string, row: (item: any, index: number) => any, label: string, open?: (item: any) => void, toggle?: (item: any) => void, onActive?: (item: any) => void, key_?: (event: KeyboardEvent, item: any) => void, classOf?: (item: any) => string, levelOf?: (item: any) => number, onEnd?: () => void, isExpanded?: (item: any) => boolean | undefined, height?: number, id?: string, active?: number, isPassive?: boolean}} props
 */
export function Rows({
  items,
  keyOf,
  row,
  label,
  open,
  toggle,
  onActive,
  key_,
  classOf,
  levelOf,
  isExpanded,
  onEnd,
  height,
  id = "rows",
  active,
  isPassive = false,
}) {
  const isNarrow = useNarrow();
  const size = height ?? (isNarrow ? 52 : 34);
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const [view, setView] = useState({ top: 0, height: innerHeight });
  const [own, setOwn] = useState(0);
  const at = Math.max(0, Math.min(active ?? own, items.length - 1));

  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (frame.current);
    const look = () => setView({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(look);
    observer.observe(element);
    look();
    return () => observer.disconnect();
  }, []);

  const reveal = useCallback(
    (/** @type {number} */ index) => {
      const element = frame.current;
      if (!element) return;
      if (index * size < element.scrollTop) element.scrollTop = index * size;
      else if ((index + 1) * size > element.scrollTop + element.clientHeight)
        element.scrollTop = (index + 1) * size - element.clientHeight;
    },
    [size],
  );
  useLayoutEffect(() => {
    if (active !== undefined) reveal(active);
  }, [active]);

  /** @param {number} to */
  const move = (to) => {
    const next = Math.max(0, Math.min(items.length - 1, to));
    setOwn(next);
    reveal(next);
    onActive?.(items[next]);
  };
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (event.target !== frame.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(view.height / size) - 1);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -items.length, End: items.length }[
      event.key
    ];
    if (by) move(at + by);
    else if (event.key === "Enter" && items[at]) open?.(items[at]);
    else if (event.key === " " && toggle && items[at]) toggle(items[at]);
    else {
      key_?.(event, items[at]);
      return;
    }
    event.preventDefault();
  };

  const first = Math.max(0, Math.floor(view.top / size) - OVERSCAN);
  const last = Math.min(items.length, Math.ceil((view.top + view.height) / size) + OVERSCAN);
  useEffect(() => {
    if (last === items.length) onEnd?.();
  }, [last, items.length]);
  const drawn = [];
  for (let index = first; index < last; index += 1) {
    const item = items[index];
    drawn.push(html`
      <div key=${keyOf(item)} id=${`${id}-${index}`} role=${isPassive ? "option" : "row"} class=${`row ${index === at ? "active" : ""} ${classOf?.(item) ?? ""}`}
        aria-selected=${index === at} aria-rowindex=${isPassive ? undefined : index + 1} aria-level=${levelOf?.(item)} aria-expanded=${isExpanded?.(item)}
        style=${{ height: `${size}px`, transform: `translateY(${index * size}px)` }}
        onMouseDown=${() => setOwn(index)}
        onClick=${(event) => {
          if (!(/** @type {Element} */ (event.target).closest("a, button, input, select, label"))) open?.(item);
        }}>
        ${isPassive ? row(item, index) : html`<div role="gridcell" class="cells">${row(item, index)}</div>`}
      </div>
    `);
  }
  const role = isPassive ? "listbox" : levelOf ? "treegrid" : "grid";
  return html`
    <div ref=${frame} id=${id} class="rows" role=${role} aria-label=${label} aria-rowcount=${isPassive ? undefined : items.length}
      tabindex=${isPassive ? -1 : 0} aria-activedescendant=${!isPassive && at >= first && at < last ? `${id}-${at}` : undefined}
      onKeyDown=${isPassive ? undefined : onKeyDown}
      onScroll=${(event) => setView({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight })}>
      <div role="presentation" class="extent" style=${{ height: `${items.length * size}px` }}>${drawn}</div>
    </div>
  `;
}

/**
 * Opens a dialog, and resolves when it is closed, to what it was closed with. `content` makes what is in it, and gets the
 * function that closes it. The title may have names of remote hosts as they are.
 * @param {{title?: string, label?: string, kind?: string}} options @param {(close: (result?: any) => void) => any} content
 * @returns {Promise<any>}
 */
export function openDialog({ title, label, kind = "" }, content) {
  const element = document.createElement("dialog");
  element.className = kind;
  element.setAttribute("aria-label", text(label ?? title));
  document.body.append(element);
  return new Promise((resolve) => {
    let result = /** @type {any} */ (null);
    const close = (given = null) => {
      result = given;
      element.close();
    };
    element.addEventListener("close", () => {
      render(/** @type {any} */ (null), element);
      element.remove();
      resolve(result);
    });
    element.addEventListener("mousedown", (event) => {
      if (event.target === element && kind === "palette") close();
    });
    render(
      html`${title && html`<header><h2>${text(title)}</h2><button class="quiet close" aria-label="Close" onClick=${() => close()}>×</button></header>`}${content(close)}`,
      element,
    );
    element.showModal();
    const first = ["[autofocus]", ".body :is(input, textarea)", "footer .primary"]
      .map((what) => element.querySelector(what))
      .find(Boolean);
    /** @type {HTMLElement | undefined} */ (first)?.focus();
  });
}

/**
 * Asks a question that yes or no answers; with an empty `no` it only says something.
 * @param {{title: string, text?: any, yes?: string, no?: string, danger?: boolean}} question @returns {Promise<boolean>}
 */
export const confirm = async ({ title, text: said = "", yes = "OK", no = "Cancel", danger = false }) =>
  (await openDialog(
    { title },
    (close) => html`
      <div class="body said">${typeof said === "string" ? lines(said) : said}</div>
      <footer>
        ${no && html`<button type="button" onClick=${() => close(false)}>${no}</button>`}
        <button type="button" class=${danger ? "danger" : "primary"} autofocus onClick=${() => close(true)}>${yes}</button>
      </footer>
    `,
  )) === true;

const TOAST_MS = 6000;
const MOST_TOASTS = 4;

/** The notices that are shown, and what is done when they go. @type {Map<HTMLElement, (() => unknown) | undefined>} */
const toasts = new Map();

/**
 * Says in passing that something was done, with a way back where there is one. What has none is done by `later`: when
 * the notice goes, unless somebody undoes it, or when the page is left.
 * @param {string} said @param {{undo?: () => unknown, later?: () => unknown, isFault?: boolean}} [options]
 */
export function toast(said, { undo, later, isFault = false } = {}) {
  const place = /** @type {HTMLElement} */ (document.getElementById(isFault ? "faults" : "toasts"));
  // The same fault again takes the place of the one before.
  const same = isFault && [...toasts.keys()].find((one) => one.parentElement === place && one.dataset.said === said);
  if (same) gone(same);
  const element = document.createElement("div");
  element.dataset.said = said;
  toasts.set(element, later);
  if (toasts.size > MOST_TOASTS) gone([...toasts.keys()][0]);
  place.append(element);
  const close = () => gone(element);
  render(
    html`
    <span>${lines(said)}</span>
    ${
      undo &&
      html`<button class="undo" onClick=${() => {
        toasts.set(element, undo);
        close();
      }}>Undo</button>`
    }
    <button class="quiet close" aria-label="Dismiss" onClick=${close}>×</button>
  `,
    element,
  );
  const leave = () => {
    // Whoever reads it with a finger or a focus on it has the time that takes.
    if (element.matches(":hover, :focus-within")) setTimeout(leave, TOAST_MS);
    else close();
  };
  setTimeout(leave, isFault || undo ? 2 * TOAST_MS : TOAST_MS);
}

/** Presses the undo of the last notice that has one. */
export function undoLast() {
  const last = [...toasts.keys()].findLast((one) => one.querySelector(".undo"));
  if (last) /** @type {HTMLElement} */ (last.querySelector(".undo")).click();
  else toast("There is nothing to undo.");
}

/** @param {HTMLElement} element */
function gone(element) {
  const work = toasts.get(element);
  toasts.delete(element);
  render(/** @type {any} */ (null), element);
  element.remove();
  return work && doing(work)();
}

/** Does at once what waits for notices to go. */
export const settle = () => Promise.all([...toasts].map(([element, later]) => later && gone(element)));
addEventListener("pagehide", settle);

/** Says that something failed, unless it was ended on purpose or the door says so. @param {unknown} error */
export function failed(error) {
  if (error instanceof DOMException && error.name === "AbortError") return;
  if (error instanceof ApiError && error.isOver) return;
  toast(reasonOf(error), { isFault: true });
  // What is not an answer of the daemon is a fault of the page, which its console has in full.
  if (!(error instanceof ApiError)) console.error(error);
}

/** Does `work`, and says so if it fails. @param {() => unknown} work */
export const doing = (work) => () => Promise.resolve().then(work).catch(failed);
