// What the views of work have in common: a list with one thing beside it, and what programs printed.

import { address, go } from "../core/router.js";
import { counted, Fault, hooks, html, lines, Rows, State, text, useNarrow, Waiting } from "../core/ui.js";

const { useEffect, useLayoutEffect, useReducer, useRef, useState } = hooks;

/** Names that stand before "and so many more". */
export const MOST_NAMED = 5;
const MOST_SHOWN = 20_000;

/**
 * Asks again so many seconds after an answer has come, while that is of use and the page is seen.
 * @param {() => void} again @param {number} seconds @param {unknown} answer @param {boolean} isOf
 */
export function useEvery(again, seconds, answer, isOf) {
  useEffect(() => {
    if (!isOf) return;
    const timer = setTimeout(() => {
      if (!document.hidden) return again();
      document.addEventListener("visibilitychange", again, { once: true });
    }, seconds * 1000);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", again);
    };
  }, [answer, isOf]);
}

/** Renders the calling component again every so many seconds, while that is of use. @param {number} seconds @param {boolean} [isOf] */
export function useTick(seconds, isOf = true) {
  const [, tick] = useReducer((/** @type {number} */ count) => count + 1, 0);
  useEffect(() => {
    if (!isOf) return;
    const timer = setInterval(tick, seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds, isOf]);
}

/** How long something took, or takes. @param {string} from @param {string | null} [to] */
export function took(from, to) {
  const seconds = Math.max(
    0,
    Math.round(((to ? new Date(to).getTime() : Date.now()) - new Date(from).getTime()) / 1000),
  );
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** As the API wants it: `3`, or `"5%"`. @param {string} given */
export const numberOrShare = (given) => (/^\s*\d+\s*$/.test(given) ? Number(given) : given.trim());

/** A number of bytes, in the units of conditions: `1.5 GiB`. @param {number} count */
export function bytes(count) {
  const power = Math.min(4, Math.floor(Math.log2(Math.max(count, 1)) / 10));
  return `${(count / 1024 ** power).toLocaleString("en", { maximumFractionDigits: 1 })} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

const COLOURS = /\x1b\[[\d;:]*m/g;

/** What a program printed, without its colours. @param {string} printed */
export const plain = (printed) => lines(printed.replace(COLOURS, "").replaceAll("\r\n", "\n"));

/** Printed text that stays at its end while it grows. @param {{label: string, children?: any}} props */
export function Printed({ label, children }) {
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    if (frame.current && isAtEnd.current) frame.current.scrollTop = frame.current.scrollHeight;
  });
  return html`<pre class="printed" tabindex="0" role="region" aria-label=${label} ref=${frame} onScroll=${(
    /** @type {any} */ event,
  ) => {
    const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
    isAtEnd.current = scrollTop + clientHeight >= scrollHeight - 4;
  }}>${children}</pre>`;
}

/** Columns that have room beside a thing's details. */
const MOST_BESIDE = 3;

/**
 * A list, and beside it the thing that the address names. `columns` are pairs of a head and a width; on a phone the
 * row has a name and a state.
 * @param {{view: string, title: string, items?: any[], error?: Error, again: () => void, keyOf: (item: any) => string, columns: [string, string][], row: (item: any, isNarrow: boolean) => any, one?: any, details: (one: any) => any, empty: any, tools?: any, filters?: any, reading: string}} props
 */
export function Listing({
  view,
  title,
  items,
  error,
  again,
  keyOf,
  columns,
  row,
  one,
  details,
  empty,
  tools,
  filters,
  reading,
}) {
  const isNarrow = useNarrow();
  const heads = one ? columns.slice(0, MOST_BESIDE) : columns;
  return html`
    <div class=${`view table work ${one ? "with-one" : ""}`} style=${{ "--columns": isNarrow ? "minmax(0, 1fr) auto" : heads.map(([, width]) => width).join(" ") }}>
      <header><h1>${title}</h1>${tools}</header>
      ${filters}
      <div class="split">
        <section class="aside-list">
          ${error && html`<${Fault} error=${error} again=${again} />`}
          ${!items && !error && html`<${Waiting} reason=${reading} />`}
          ${items && !items.length && empty}
          ${
            items &&
            items.length > 0 &&
            html`${!isNarrow && html`<div class="columns" aria-hidden="true">${heads.map(([head]) => html`<span>${head}</span>`)}</div>`}
            <${Rows} items=${items} label=${title} keyOf=${keyOf} row=${(/** @type {any} */ item) => row(item, isNarrow)}
              classOf=${(/** @type {any} */ item) => (item === one ? "chosen" : "")}
              open=${(/** @type {any} */ item) => go(item === one ? `#/${view}` : address(view, keyOf(item)))} />`
          }
        </section>
        ${
          one &&
          html`<aside class="details" key=${keyOf(one)} aria-label=${title}>
          <a class="button close" href=${`#/${view}`} aria-label="Close">×</a>${details(one)}</aside>`
        }
      </div>
    </div>
  `;
}

/**
 * What machines with an equal outcome printed. `line` is one of their lines, of `/shell/broadcast` or of a run.
 * @param {{names: string[], line: {exitCode?: number | null, stdout?: string, stderr?: string, error?: any, truncated?: boolean | null, state?: string}}} props
 */
export function Group({ names, line }) {
  const [isWhole, setWhole] = useState(false);
  const printed = [line.stdout ?? "", line.stderr ?? ""];
  const isLong = printed.some((one) => one.length > MOST_SHOWN);
  const [stdout, stderr] = printed.map((one) => plain(isWhole ? one : one.slice(0, MOST_SHOWN)));
  const [kind, word] = line.error
    ? ["lost", text(line.error.code)]
    : line.exitCode
      ? ["lost", `exit ${line.exitCode}`]
      : line.exitCode === null
        ? ["off", text(line.state)]
        : ["up", "done"];
  return html`
    <section class="group" aria-label=${`${word} on ${counted(names.length, "machine")}`}>
      <h2><${State} kind=${kind} word=${word} /> <span>${names.slice(0, MOST_NAMED).join(", ")}</span></h2>
      ${names.length > MOST_NAMED && html`<details><summary>and ${names.length - MOST_NAMED} more</summary>${names.slice(MOST_NAMED).join(", ")}</details>`}
      ${line.error && html`<p class="fault">${lines(line.error.message)}</p>`}
      ${(stdout || stderr) && html`<pre class="printed" tabindex="0">${stdout}${stdout && stderr && "\n"}<span class="err">${stderr}</span></pre>`}
      ${isLong && !isWhole && html`<button class="quiet" onClick=${() => setWhole(true)}>Show all of it</button>`}
      ${line.truncated && html`<p class="note">The rest of the output was dropped by the daemon's limit.</p>`}
    </section>
  `;
}

/** Facts in two columns; without those that are null. @param {{facts: [string, any][]}} props */
export const Facts = ({ facts }) =>
  html`<dl>${facts.filter(([, said]) => said !== null && said !== undefined).map(([name, said]) => html`<div key=${name}><dt>${name}</dt><dd>${said}</dd></div>`)}</dl>`;
