// What the views have in common: a list with one thing beside it, what programs printed, and the choice of a machine.

import { ApiError, call, now } from "../core/api.js";
import { address, go, run } from "../core/navigate.js";
import { can, changed, matching, qualified, useChoice, useStore } from "../core/store.js";
import {
  doing,
  Empty,
  Facts,
  Fault,
  html,
  lines,
  Rows,
  State,
  text,
  toast,
  useEffect,
  useLayoutEffect,
  useNarrow,
  useReducer,
  useRef,
  useState,
  Waiting,
} from "../core/ui.js";

/** Names that stand before "and so many more". */
export const MOST_NAMED = 5;
/** Columns that have room beside a thing's details. */
const MOST_BESIDE = 3;

/** Renders the calling component again every so many seconds, while that is of use. @param {number} seconds @param {boolean} [isOf] */
export function useTick(seconds, isOf = true) {
  const [, tick] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    if (!isOf) return;
    const timer = setInterval(tick, seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds, isOf]);
}

/** @param {string} from @param {string | null} [to] */
export function took(from, to) {
  const seconds = Math.max(0, Math.round(((to ? Date.parse(to) : now()) - Date.parse(from)) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** The first of some names, and how many more there are. @param {string[]} names @param {number} [most] */
export const named = (names, most = MOST_NAMED) =>
  names.slice(0, most).join(", ") +
  (names.length > most ? ` and ${(names.length - most).toLocaleString("en")} more` : "");

const SECONDS = /** @type {Record<string, number>} */ ({ s: 1, m: 60, h: 3600, d: 86400 });

/** The seconds of a duration such as `15m` or `1.5 h`, or null for any other text. @param {string} given */
export function secondsOf(given) {
  const [, count, unit] = /^\s*(\d+(?:\.\d+)?)\s*([smhd])\s*$/.exec(given) ?? [];
  return unit ? Number(count) * SECONDS[unit] : null;
}

/** A length in its largest whole unit. @param {number} seconds */
export function spelled(seconds) {
  const [unit, size] = Object.entries(SECONDS).findLast(([, size]) => seconds % size === 0) ?? ["s", 1];
  return `${seconds / size} ${unit}`;
}

/** A number of bytes: in the units of conditions, `1.5 GiB`, or in those of files, whose base is 1000. @param {number} count */
export function bytes(count, base = 1024) {
  let [value, power] = [count, 0];
  for (; value >= base - 0.5 && power < 5; power += 1) value /= base;
  const unit = ["", "k", "M", "G", "T", "P"][power];
  const said = value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 });
  return `${said} ${base === 1000 || !unit ? unit : `${unit.toUpperCase()}i`}B`;
}

const COLOURS = /\x1b\[[\d;:]*m/g;

/** What a program printed, without its colours. @param {string} printed */
export const plain = (printed) => lines(printed.replace(COLOURS, "").replaceAll("\r\n", "\n"));

/** @param {string} said */
export async function copy(said) {
  await navigator.clipboard.writeText(said);
  toast("Copied.");
}

/** Has the browser store what the page holds. @param {Blob} content @param {string} name of the file */
export function stored(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

/** Printed text that stays at its end while it grows. @param {{label: string, children?: any}} props */
export function Printed({ label, children }) {
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    if (frame.current && isAtEnd.current) frame.current.scrollTop = frame.current.scrollHeight;
  });
  return html`<pre class="printed" tabindex="0" role="region" aria-label=${label} ref=${frame} onScroll=${(event) => {
    const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
    isAtEnd.current = scrollTop + clientHeight >= scrollHeight - 4;
  }}>${children}</pre>`;
}

/**
 * A list, and beside it the thing that the address names by its member `id`. On a phone a row has the columns `narrow`
 * alone, or what that makes of a thing. `begin` makes the first thing and every other one; `empty` is what is said where
 * none is, and why one would want it, and with `isFound` that a search has found none. `suffix` is what addresses end in.
 * @param {{view: string, title?: string, id: string, path: string[], items?: any[], one?: any, error?: Error, again: () => void, columns: Column<any>[], narrow?: number[] | ((item: any) => any), details: (one: any) => any, begin?: Command, empty: [title: string, said?: any], isFound?: boolean, tools?: any, filters?: any, suffix?: string, onEnd?: () => void}} props
 */
export function Listing({
  view,
  title = view[0].toUpperCase() + view.slice(1),
  id,
  path,
  items,
  one = items?.find((item) => `${item[id]}` === path[0]),
  error,
  again,
  columns,
  narrow = [1, 0],
  details,
  begin,
  empty: [none, why],
  isFound = false,
  tools,
  filters,
  suffix = "",
  onEnd,
}) {
  const isNarrow = useNarrow();
  useStore();
  const isLeaving = (/** @type {any} */ item) => leaving.has(`${view}/${item[id]}`);
  if (one && isLeaving(one)) one = undefined;
  const shown = one ? columns.slice(0, MOST_BESIDE) : columns;
  const cell = (/** @type {Column<any>} */ [, , of, look], /** @type {any} */ item) => {
    const said = of(item);
    return said?.kind
      ? html`<${State} ...${said} />`
      : html`<span class=${look}>${typeof said === "string" ? text(said) : said}</span>`;
  };
  const row = (/** @type {any} */ item) =>
    !isNarrow
      ? shown.map((column) => cell(column, item))
      : typeof narrow === "function"
        ? narrow(item)
        : narrow.map((index) => cell(columns[index], item));
  const widths = isNarrow
    ? "minmax(0, 1fr) auto"
    : shown.map(([, width]) => (typeof width === "string" ? width : `minmax(0, ${width}fr)`)).join(" ");
  const isEmpty = !items?.length && !isFound;
  const first =
    begin &&
    can(...(begin.actions ?? [])) &&
    html`<button class="primary" onClick=${() => run(begin, again)}>${begin.name}</button>`;
  return html`
    <div class=${one ? "view table with-one" : "view table"} style=${{ "--columns": widths }}>
      <header><h1>${title}</h1>${tools}${!isEmpty && first}</header>
      ${filters}
      <div class="split">
        <section class="aside-list">
          ${error && html`<${Fault} error=${error} again=${again} />`}
          ${!items && !error && html`<${Waiting} reason=${`Reading the ${title.toLowerCase()}`} />`}
          ${
            items?.length
              ? html`${!isNarrow && html`<div class="columns" aria-hidden="true">${shown.map(([head]) => html`<span>${head}</span>`)}</div>`}
            <${Rows} items=${items} label=${title} keyOf=${(item) => `${item[id]}`} onEnd=${onEnd}
              row=${row} classOf=${(item) => (item === one ? "chosen" : isLeaving(item) ? "leaving" : "")}
              open=${(item) => isLeaving(item) || go((item === one ? `#/${view}` : address(view, `${item[id]}`)) + suffix)} />`
              : items &&
                html`<${Empty} title=${none}>${why && html`<p>${why}</p>`}${isEmpty && first && html`<p>${first}</p>`}<//>`
          }
        </section>
        ${
          one &&
          html`<aside class="details" key=${one[id]} aria-label=${title}>
          <a class="button close" href=${`#/${view}${suffix}`} aria-label="Close">×</a>${details(one)}</aside>`
        }
      </div>
    </div>
  `;
}

/** Buttons, behind the links that `children` are. @param {{deeds: Deed[], children?: any}} props */
export function Deeds({ deeds, children }) {
  /** What is under way: a button that is pressed twice does it once. @type {{current: Set<string>}} */
  const busy = useRef(new Set());
  const done = (/** @type {string} */ name, /** @type {() => unknown} */ work) => async () => {
    if (busy.current.has(name)) return;
    busy.current.add(name);
    await doing(work)();
    busy.current.delete(name);
  };
  const shown = deeds.map(
    (one) =>
      one &&
      can(one[1]) &&
      html`<button key=${one[0]} class=${one[3]} onClick=${done(one[0], one[2])}>${one[0]}</button>`,
  );
  return (children || shown.some(Boolean)) && html`<div class="does">${children}${shown}</div>`;
}

/**
 * One thing, in the pane beside its list: its name, its state, what can be done, what `children` show of it, and facts.
 * @param {{title: unknown, note?: any, state?: {kind: string, word: string}, deeds?: Deed[], links?: any, facts: [string, any][], children?: any}} props
 */
export const Details = ({ title, note, state, deeds = [], links, facts, children }) => html`
  <header><div><h2>${text(title)}</h2>${note && html`<p class="note">${note}</p>`}</div></header>
  ${state && html`<p><${State} ...${state} /></p>`}
  <${Deeds} deeds=${deeds}>${links}<//>
  ${children}
  <${Facts} facts=${facts} />
`;

/** What is removed when the notice about it goes, as its view and its id. @type {Set<string>} */
const leaving = new Set();

/**
 * Removes a thing of a list, which nothing brings back: so it stays until the notice about that goes, or this page is
 * left, and can be had again until then.
 * @param {string} view @param {string} kind whose `remove` it is @param {Record<string, string>} which by its id
 * @param {string} name @param {string} more what else goes, or stays @param {() => void} again @returns {Deed}
 */
export const removal = (view, kind, which, name, more, again) => [
  "Remove",
  `${kind}.remove`,
  () => {
    const key = `${view}/${Object.values(which)[0]}`;
    const stay = () => {
      leaving.delete(key);
      changed();
    };
    leaving.add(key);
    go(`#/${view}`);
    toast(`${text(name)} will be removed; ${more}.`, {
      undo: stay,
      later: async () => {
        try {
          await call(`/${kind}/remove`, which, { keepalive: true });
        } catch (error) {
          if (!(error instanceof ApiError)) throw error;
          // Without its code: where the session is over, nothing but the door would say so.
          throw new ApiError({ message: `${text(name)} is not removed. ${error.message}` }, error.status);
        } finally {
          stay();
          again();
        }
      },
    });
  },
];

/** What a list is narrowed by; on a phone it would be all that one sees. @param {{label: string, isOpen?: boolean, children?: any}} props */
export const Filters = ({ label, isOpen, children }) =>
  useNarrow()
    ? html`<details class="narrow" open=${isOpen}><summary>${label}</summary>${children}</details>`
    : children;

const MOST_CHOICES = 8;

/** @param {{label: string, choose: (connection: string) => void}} props */
export function Chooser({ label, choose }) {
  const [wanted, want] = useState("");
  const [at, move] = useState(0);
  useStore();
  const found = wanted
    ? matching(wanted)
        .filter((one) => one.usageCategory === "shell")
        .slice(0, MOST_CHOICES)
    : [];
  const open = (/** @type {any} */ one) => {
    want("");
    choose(one.connection);
  };
  const choice = useChoice(() => found.length && open(found[Math.min(at, found.length - 1)]));
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && found.length) {
      event.preventDefault();
      move((at + by + found.length) % found.length);
    } else if (event.key === "Enter") choice.make();
    else if (event.key === "Escape") {
      want("");
      choice.forget();
    }
  };
  return html`
    <div class="choice">
      <input type="search" role="combobox" aria-label=${label} aria-expanded=${found.length > 0} aria-controls="choices"
        aria-activedescendant=${found.length ? `choice-${at}` : undefined} autocomplete="off" placeholder=${label} value=${wanted}
        onKeyDown=${onKeyDown} onInput=${(event) => {
          want(event.target.value);
          move(0);
          choice.forget();
        }} />
      <ul id="choices" role="listbox" aria-label="Machines" hidden=${!found.length}>
        ${found.map(
          (one, index) => html`
            <li key=${one.connection} id=${`choice-${index}`} role="option" aria-selected=${index === at} onClick=${() => open(one)}>${text(qualified(one))}</li>
          `,
        )}
      </ul>
    </div>
  `;
}
