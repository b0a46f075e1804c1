// What the views of work have in common: a list with one thing beside it, and what programs printed.

import { address, go } from "../core/router.js";
import { Fault, hooks, html, lines, Rows, useNarrow, Waiting } from "../core/ui.js";

const { useEffect, useLayoutEffect, useReducer, useRef } = hooks;

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
  return html`
    <div class=${`view table work ${one ? "with-one" : ""}`} style=${{ "--columns": isNarrow ? "minmax(0, 1fr) auto" : columns.map(([, width]) => width).join(" ") }}>
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
            html`${!isNarrow && html`<div class="columns" aria-hidden="true">${columns.map(([head]) => html`<span>${head}</span>`)}</div>`}
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

/** Facts in two columns; without those that are null. @param {{facts: [string, any][]}} props */
export const Facts = ({ facts }) =>
  html`<dl>${facts.filter(([, said]) => said !== null && said !== undefined).map(([name, said]) => html`<div key=${name}><dt>${name}</dt><dd>${said}</dd></div>`)}</dl>`;
