// What happened in the last hour, as two small plots below the hub: commands, and links that came up or broke.

import { call } from "../core/api.js";
import { can } from "../core/store.js";
import { hooks, html, useAnswer } from "../core/ui.js";
import { useEvery } from "./listing.js";

const { useMemo } = hooks;

const EVERY_SECONDS = 20;
const HEIGHT = 16;
/** The width of a minute. */
const STEP = 2;

/** A bar for each minute, upwards from `base`, or downwards with a negative `height`. @param {number[]} numbers @param {number} most @param {number} base @param {number} height */
const bars = (numbers, most, base, height) =>
  numbers
    .map((count, at) => {
      // One is seen beside a thousand.
      const size = count && Math.sign(height) * Math.max(1, Math.abs((height * count) / most));
      return size ? `M${at * STEP} ${base}h${STEP - 0.5}v${-size}h${0.5 - STEP}z` : "";
    })
    .join("");

const sum = (/** @type {number[]} */ numbers) => numbers.reduce((all, one) => all + one, 0);

/** @param {{said: string, base: number, children?: any}} props */
const Plot = ({ said, base, children }) => html`
  <svg class="plot" role="img" aria-label=${said} viewBox=${`0 0 ${60 * STEP} ${HEIGHT}`} width=${60 * STEP} height=${HEIGHT}>
    <title>${said}</title>
    <path class="ground" d=${`M0 ${base}h${60 * STEP}`} />
    ${children}
  </svg>
`;

/** The plots, for whoever may know the daemon's figures. */
export function Activity() {
  const isShown = can("daemon.status");
  const { answer, error, again } = useAnswer(
    async () => (isShown ? (await call("/daemon/status", {}, { quiet: true })).activity : null),
    [isShown],
  );
  useEvery(again, EVERY_SECONDS, answer ?? error, isShown);
  return useMemo(() => answer && html`<${Plots} ...${answer} />`, [answer]);
}

/** @param {import("../contract.d.ts").Activity} props */
function Plots({ commands, linksUp, linksLost }) {
  const most = Math.max(1, ...commands);
  const links = Math.max(1, ...linksUp, ...linksLost);
  const middle = HEIGHT / 2;
  const [all, up, lost] = [commands, linksUp, linksLost].map(sum);
  const last = commands[commands.length - 1];
  return html`
    <div class="plots">
      <span>Commands a minute <${Plot} base=${HEIGHT} said=${`Commands in the last hour: ${all}, at most ${Math.max(...commands)} a minute`}>
        <path class="commands" d=${bars(commands, most, HEIGHT, HEIGHT)} /><//> <b>${last.toLocaleString("en")}</b></span>
      <span>Links <${Plot} base=${middle} said=${`Links in the last hour: ${up} up, ${lost} lost`}>
        <path class="up" d=${bars(linksUp, links, middle, middle)} /><path class="lost" d=${bars(linksLost, links, middle, -middle)} /><//>
        <b>${up.toLocaleString("en")}</b> up, <b>${lost.toLocaleString("en")}</b> lost in an hour</span>
    </div>
  `;
}
