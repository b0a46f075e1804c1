// Runs: commands on many machines that the daemon keeps and goes on with; each target as a cell, and what they printed.

import { call } from "../core/api.js";
import { on } from "../core/events.js";
import { address, go } from "../core/router.js";
import { can, useStore } from "../core/store.js";
import {
  ago,
  confirm,
  counted,
  doing,
  Empty,
  exact,
  Fault,
  hooks,
  html,
  lines,
  State,
  text,
  useAnswer,
} from "../core/ui.js";
import { Facts, Group, Listing, took, useEvery } from "./listing.js";

const { useLayoutEffect, useState } = hooks;

/** @typedef {import("../contract.d.ts").RunInfo} Info */
/** @typedef {import("../contract.d.ts").RunGroup} Outcome */

const UNDER_WAY = ["pending", "running", "waiting", "paused", "stopping"];
const KINDS = /** @type {Record<string, string>} */ ({ done: "up", failed: "lost", stopped: "off" });
const RETRIED = ["failed", "unreachable", "unknown", "stopped"];
const LIST_SECONDS = 3;
const RUN_SECONDS = 1;
const MOST_GROUPS = 20;
/** Characters of a target's output that are shown beside its cell. */
const MOST_PRINTED = 4000;

const isUnderWay = (/** @type {Info} */ run) => UNDER_WAY.includes(run.state);
const stateOf = (/** @type {Info} */ run) => ({ kind: KINDS[run.state] ?? "busy", word: run.state });
const gistOf = (/** @type {any} */ command) =>
  Array.isArray(command) ? command.join(" ") : (command ?? "(not to be seen)");

/** How many targets are in each state, without those in which none is. @param {Info} run */
const said = ({ counts }) =>
  Object.entries(counts)
    .filter(([, count]) => count)
    .map(([state, count]) => `${count.toLocaleString("en")} ${state}`)
    .join(", ");

/** @param {{path: string[]}} props */
function Runs({ path }) {
  const {
    answer: runs,
    error,
    again,
  } = useAnswer(async () => /** @type {Info[]} */ ((await call("/run/query")).runs), []);
  useLayoutEffect(() => on("run", again), []);
  useEvery(again, LIST_SECONDS, runs, Boolean(runs?.some(isUnderWay)));
  const begin = html`<a class="button" href="#/run">Run a command</a>`;
  return html`<${Listing} view="runs" title="Runs" items=${runs} error=${error} again=${again} reading="Reading the runs" keyOf=${(/** @type {Info} */ run) => run.run}
    one=${runs && path[0] ? (runs.find((run) => run.run === path[0]) ?? { run: path[0] }) : undefined} details=${(/** @type {Info} */ run) => html`<${Details} id=${run.run} />`} tools=${runs?.length ? begin : null}
    columns=${[["State", "7rem"], ["What", "minmax(0, 2fr)"], ["Targets", "minmax(0, 1.5fr)"], ["Took", "6rem"], ["Begun", "6rem"]]}
    row=${(/** @type {Info} */ run, /** @type {boolean} */ isNarrow) => {
      const state = html`<${State} ...${stateOf(run)} />`;
      const gist = html`<span class=${run.name ? "" : "mono"}>${text(run.name ?? gistOf(run.command))}</span>`;
      return isNarrow
        ? html`${gist}${state}`
        : html`${state}${gist}<span>${said(run)}</span><span class="number">${run.began && took(run.began, run.ended)}</span><span class="note">${ago(run.submitted)}</span>`;
    }}
    empty=${html`<${Empty} title="No runs yet"><p>A run is a command on many machines that goes on without this page: in waves, and with a stop when too much fails.
      Choose the machines, and <em>Keep it as a run</em>.</p><p>${begin}</p><//>`} />`;
}

/** @param {{id: string}} props */
function Details({ id }) {
  useStore();
  const { answer, error, again } = useAnswer(() => call("/run/info", { run: id, cells: true }, { quiet: true }), [id]);
  const run = /** @type {Info | undefined} */ (answer);
  const isOn = !run || isUnderWay(run);
  useLayoutEffect(() => on("run", (event) => (event.kind === "stream" || event.id === id) && again()), [id]);
  useEvery(again, RUN_SECONDS, answer, isOn);
  const [at, choose] = useState(-1);
  const [turn, show] = useState(0);
  const isShown = !isOn || turn > 0;
  const found = useAnswer(
    async () => (isShown ? await call("/run/output", { run: id, limit: MOST_GROUPS }) : null),
    [id, turn, isOn],
  );
  const target = useAnswer(
    async () =>
      at < 0 ? null : (await call("/run/targets", { run: id, offset: at, limit: 1, output: MOST_PRINTED })).targets[0],
    [id, at, run?.cells?.[at]],
  );
  if (!run) return error ? html`<${Fault} error=${error} again=${again} />` : null;
  const does = (/** @type {string} */ what, /** @type {object} */ more = {}) =>
    doing(async () => {
      await call(`/run/${what}`, { run: id, ...more });
      again();
    });
  const left = RETRIED.reduce((sum, state) => sum + run.counts[state], 0);
  const retry = doing(async () => go(address("runs", (await call("/run/retry", { run: id })).run)));
  const remove = doing(async () => {
    const question = {
      title: "Remove this run?",
      text: "What its targets printed goes with it. This cannot be undone.",
      yes: "Remove",
      danger: true,
    };
    if (!(await confirm(question))) return;
    await call("/run/remove", { run: id });
    go("#/runs");
  });
  const ended = run.targets - run.counts.waiting - run.counts.starting;
  return html`
    <header><div><h2>${text(run.name ?? "Run")}</h2><p class="note">on ${counted(run.targets, "machine")}, ${exact(run.submitted)}</p></div></header>
    <pre class="printed">${lines(gistOf(run.command))}</pre>
    <p class="does"><${State} ...${stateOf(run)} /> <span class="note">${run.began && took(run.began, run.ended)}${run.state === "running" && run.left ? `, ${Math.ceil(run.left)} s left at this rate` : ""}</span>
      ${run.state === "running" && can("run.pause") && html`<button onClick=${does("pause")}>Pause</button>`}
      ${["paused", "waiting"].includes(run.state) && can("run.resume") && html`<button class="primary" onClick=${does("resume")}>${run.state === "waiting" ? "Begin the next wave" : "Resume"}</button>`}
      ${
        isOn &&
        can("run.stop") &&
        html`${run.state !== "stopping" && html`<button onClick=${does("stop")}>Stop</button>`}<button onClick=${does("stop", { kill: true })}>Stop and kill</button>`
      }
      ${!isOn && left > 0 && can("run.retry") && html`<button class="primary" onClick=${retry}>Retry the ${left.toLocaleString("en")} without success</button>`}
      ${!isOn && can("run.remove") && html`<button onClick=${remove}>Remove</button>`}</p>
    ${error && html`<${Fault} error=${error} again=${again} />`}
    ${run.reason && html`<p class=${run.state === "failed" ? "fault" : "note"}>${lines(run.reason)}</p>`}
    ${isOn && html`<progress max=${run.targets} value=${ended} aria-label="Targets that have ended"></progress>`}
    <${Field} run=${run} at=${at} choose=${choose} />
    ${target.error && html`<${Fault} error=${target.error} />`}
    ${target.answer && html`<${Group} names=${[text(target.answer.name ?? target.answer.connection)]} line=${target.answer} />`}
    <${Facts} facts=${[
      ["Wave", run.waves.length > 1 ? `${run.wave} of ${run.waves.length}` : null],
      [
        "Rate",
        run.rate &&
          `${run.rate.toLocaleString("en", { maximumFractionDigits: 1 })} targets a second, at most ${run.parallel} at a time`,
      ],
      ["Stops after", run.stopAfter && counted(run.stopAfter, "failure")],
      ["Runs as", html`${run.as}: ${text(run.why)}`],
      ["Worked on by", run.daemons.length ? run.daemons.map(text).join(", ") : null],
      ["Retries", run.retryOf && html`<a href=${address("runs", run.retryOf)}>an earlier run</a>`],
      ["Id", html`<code>${id}</code>`],
    ]} />
    ${isOn && html`<p><button onClick=${() => show(turn + 1)}>${turn ? "Read what they printed again" : "Show what they printed so far"}</button></p>`}
    ${found.error && html`<${Fault} error=${found.error} again=${found.again} />`}
    ${found.answer?.groups.map((/** @type {Outcome} */ one) => html`<${Group} key=${one.connections[0]} names=${one.names.map((name, index) => text(name ?? one.connections[index]))} line=${one} />`)}
    ${found.answer?.total > found.answer?.groups.length && html`<p class="note">and ${counted(found.answer.total - found.answer.groups.length, "outcome")} more; <code>connmgr run output</code> prints all.</p>`}
  `;
}

const FEWEST_COLUMNS = 24;
/** Empty rows between two waves, in cells. */
const BETWEEN = 0.6;

/**
 * The cells, each wave on rows of its own: those of a state are one path, in which a stretch of equal ones is one dashed
 * line. So 20,000 cells are a few thousand short lines, and follow the colours of the page.
 * @param {string} cells @param {number[]} waves
 */
export function drawn(cells, waves) {
  const columns = Math.max(FEWEST_COLUMNS, Math.ceil(Math.sqrt(cells.length * 2.2)));
  /** @type {string[]} */
  const paths = [];
  /** The first cell, the number of cells and the height at which it begins of each wave. */
  const places = [];
  let top = 0;
  let first = 0;
  for (const size of waves) {
    places.push({ first, size, top });
    for (let at = first; at < first + size; ) {
      const [row, column] = [Math.floor((at - first) / columns), (at - first) % columns];
      const end = Math.min(first + size, at - column + columns);
      let next = at + 1;
      while (next < end && cells[next] === cells[at]) next += 1;
      const state = Number(cells[at]);
      paths[state] = `${paths[state] ?? ""}M${column} ${(top + row + 0.5).toFixed(1)}h${(next - at - 0.2).toFixed(1)}`;
      at = next;
    }
    first += size;
    top += Math.ceil(size / columns) + BETWEEN;
  }
  return { columns, height: top - BETWEEN, paths, places };
}

/** @param {{run: Info, at: number, choose: (at: number) => void}} props */
function Field({ run, at, choose }) {
  const { columns, height, paths, places } = hooks.useMemo(() => drawn(run.cells ?? "", run.waves), [run.cells]);
  const states = Object.keys(run.counts);
  const chosen = places.find(({ first, size }) => at >= first && at < first + size);
  /** @param {any} event */
  const pointed = ({ currentTarget, clientX, clientY }) => {
    const box = currentTarget.getBoundingClientRect();
    const [x, y] = [((clientX - box.left) / box.width) * columns, ((clientY - box.top) / box.height) * height];
    const place = places.findLast(({ top }) => y >= top);
    const found = place ? place.first + Math.floor(y - place.top) * columns + Math.floor(x) : -1;
    choose(place && found < place.first + place.size ? found : -1);
  };
  /** @param {KeyboardEvent} event */
  const moved = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (!by) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(run.targets - 1, at + by)));
  };
  return html`
    <svg class="field-of-cells" viewBox=${`0 0 ${columns} ${height}`} style=${{ maxWidth: `${columns}rem` }} role="slider" tabindex="0"
      aria-label="Target" aria-valuemin="1" aria-valuemax=${run.targets} aria-valuenow=${at + 1 || 1} aria-valuetext=${at < 0 ? `None chosen; ${said(run)}` : `${at + 1} of ${run.targets}: ${states[Number(run.cells?.[at])]}`}
      onClick=${pointed} onKeyDown=${moved}>
      ${states.map((state, index) => paths[index] && html`<path key=${state} class=${`cell is-${state}`} d=${paths[index]} />`)}
      ${chosen && html`<rect class="chosen" x=${((at - chosen.first) % columns) - 0.1} y=${chosen.top + Math.floor((at - chosen.first) / columns)} width="1" height="1" />`}
    </svg>
    <ul class="legend">${states.filter((state) => run.counts[state]).map((state) => html`<li key=${state}><i class=${`cell is-${state}`} aria-hidden="true"></i>${run.counts[state].toLocaleString("en")} ${state}</li>`)}</ul>
    ${at < 0 && html`<p class="note">Each cell is a machine: choose one to see its output.</p>`}
  `;
}

export default { component: Runs };
