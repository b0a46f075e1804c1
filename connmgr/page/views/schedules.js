// Schedules: runs that begin by themselves; when they do in the coming week, and how the last one went.

import { call } from "../core/api.js";
import { on } from "../core/events.js";
import { isPattern, search } from "../core/names.js";
import { register } from "../core/palette.js";
import { address, go } from "../core/router.js";
import { can, nameOf, store, useStore } from "../core/store.js";
import {
  ago,
  confirm,
  counted,
  doing,
  Empty,
  exact,
  form,
  hooks,
  html,
  lines,
  State,
  text,
  toast,
  useAnswer,
} from "../core/ui.js";
import { Facts, Listing, numberOrShare } from "./listing.js";

const { useLayoutEffect } = hooks;

/** @typedef {import("../contract.d.ts").ScheduleInfo} Info */

const DAYS = 7;
/** More firings of a schedule on one day are told by their number. */
const MOST_A_DAY = 3;
const MOST_TIMES = 1000;
const KINDS = /** @type {Record<string, string>} */ ({ done: "up", failed: "lost", stopped: "off" });
const SECONDS = /** @type {Record<string, number>} */ ({ s: 1, m: 60, h: 3600, d: 86400 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short" });

/** @param {Info} one */
const stateOf = (one) =>
  one.paused !== null
    ? { kind: "off", word: "paused" }
    : one.overdue
      ? { kind: "lost", word: "overdue" }
      : one.next
        ? { kind: "up", word: "active" }
        : { kind: "off", word: "ended" };
/** @param {Info} one */
const timesOf = ({ cron, every, timezone }) => (cron ? `${cron} ${timezone}` : `every ${spelled(every ?? 0)}`);
/** @param {number} seconds */
function spelled(seconds) {
  const [unit, size] = Object.entries(SECONDS).findLast(([, size]) => seconds % size === 0) ?? ["s", 1];
  return `${seconds / size} ${unit}`;
}
/** @param {any} run the request of its runs */
const gistOf = ({ command, argv, saved, script }) => argv?.join(" ") ?? command ?? saved?.name ?? script?.text ?? "";
/** @param {any} run */
const targetsOf = ({ connections, connectionFilter, categoryFilter, typeFilter, where }) =>
  connections
    ? connections.map(nameOf).join(", ")
    : [
        connectionFilter,
        categoryFilter && `in ${categoryFilter}`,
        typeFilter && `of the type ${typeFilter}`,
        where && `where ${where}`,
      ]
        .filter(Boolean)
        .join(" ");

/** @param {{path: string[]}} props */
function Schedules({ path }) {
  useStore();
  const { answer, error, again } = useAnswer(async () => {
    const schedules = /** @type {Info[]} */ ((await call("/schedule/query")).schedules);
    const firings = await Promise.all(
      schedules.map(async ({ next, schedule }) =>
        next ? (await call("/schedule/next", { schedule, count: MOST_TIMES })).times : [],
      ),
    );
    return { schedules, firings };
  }, []);
  useLayoutEffect(() => on("schedule", again), []);
  const items = answer?.schedules;
  const add_ =
    can("schedule.add") && html`<button class="primary" onClick=${doing(() => add())}>Add a schedule</button>`;
  return html`<${Listing} view="schedules" title="Schedules" items=${items} error=${error} again=${again} reading="Reading the schedules" tools=${items?.length ? add_ : null}
    keyOf=${(/** @type {Info} */ one) => one.schedule} one=${items?.find((one) => one.schedule === path[0])} details=${(/** @type {Info} */ one) => html`<${Details} one=${one} />`}
    filters=${answer && items?.length ? html`<${Week} ...${answer} />` : null}
    columns=${[["State", "6rem"], ["Name", "minmax(0, 1.5fr)"], ["When", "minmax(0, 1.5fr)"], ["Next", "7rem"], ["Last run", "7rem"]]}
    row=${(/** @type {Info} */ one, /** @type {boolean} */ isNarrow) => {
      const state = html`<${State} ...${stateOf(one)} />`;
      const name = html`<span>${text(one.name)}</span>`;
      return isNarrow
        ? html`${name}${state}`
        : html`${state}${name}<span class="mono">${text(timesOf(one))}</span><span>${ago(one.next)}</span><span>${one.lastState && html`<${State} kind=${KINDS[one.lastState] ?? "busy"} word=${one.lastState} />`}</span>`;
    }}
    empty=${html`<${Empty} title="No schedules yet"><p>A schedule begins a run at each of its times: a backup each night, a check each quarter of an hour. The daemon keeps it; nothing is installed on the machines.</p><p>${add_}</p><//>`} />`;
}

/** The firings of the coming week, by days. @param {{schedules: Info[], firings: string[][]}} props */
function Week({ schedules, firings }) {
  const days = Array.from({ length: DAYS }, (_, index) => {
    const day = new Date();
    day.setHours(0, 0, 0, 0);
    day.setDate(day.getDate() + index);
    return day;
  });
  const dayOf = (/** @type {number} */ time) => days.findLastIndex((day) => day.getTime() <= time);
  /** @type {{at: number, said: string, one: Info}[][]} */
  const entries = days.map(() => []);
  const end = new Date(days[DAYS - 1]).setDate(days[DAYS - 1].getDate() + 1);
  schedules.forEach((one, index) => {
    const times = firings[index].map((time) => Date.parse(time));
    const known = times.length < MOST_TIMES ? end : times[MOST_TIMES - 1];
    for (const [number, day] of days.entries()) {
      const here = times.filter((time) => time < end && dayOf(time) === number);
      const isWhole = number < dayOf(known) || known === end;
      const put = (/** @type {number} */ at, /** @type {string} */ said) => entries[number].push({ at, said, one });
      if (!isWhole && known < (days[number + 1]?.getTime() ?? end)) put(here[0] ?? day.getTime(), "often");
      else if (here.length > MOST_A_DAY) put(here[0], `${here.length} ×`);
      else for (const time of here) put(time, CLOCK.format(time));
    }
  });
  return html`<ol class="week" aria-label="The coming week">${days.map(
    (day, index) => html`<li key=${index}><h2>${index ? DAY.format(day) : "Today"}</h2>
      <ul>${entries[index]
        .sort((first, second) => first.at - second.at)
        .map(
          ({ said, one }) =>
            html`<li><span class="note">${said}</span> <a href=${address("schedules", one.schedule)}>${text(one.name)}</a></li>`,
        )}</ul></li>`,
  )}</ol>`;
}

/** @param {{one: Info}} props */
function Details({ one }) {
  const { schedule } = one;
  const { run, notify } = /** @type {any} */ (one);
  const does = (/** @type {string} */ what, /** @type {object} */ more = {}) =>
    call(`/schedule/${what}`, { schedule, ...more });
  const trigger = doing(async () => go(address("runs", (await does("trigger")).run)));
  const pause = doing(async () => {
    await does("pause");
    toast(`${text(one.name)} is paused.`, { undo: () => does("resume") });
  });
  const remove = doing(async () => {
    const question = {
      title: `Remove ${text(one.name)}?`,
      text: "Its runs stay. This cannot be undone.",
      yes: "Remove",
      danger: true,
    };
    if (!(await confirm(question))) return;
    await does("remove");
    go("#/schedules");
  });
  return html`
    <header><div><h2>${text(one.name)}</h2><p class="note">${text(timesOf(one))}${one.next && html`; next ${exact(one.next)}`}</p></div></header>
    <p><${State} ...${stateOf(one)} /></p>
    ${one.paused && html`<p class="note">Paused: ${lines(one.paused)}</p>`}
    ${one.lastError && html`<p class="fault">Its last time began no run: ${lines(one.lastError)}</p>`}
    <div class="does">
      ${can("schedule.trigger") && html`<button class="primary" onClick=${trigger}>Run it now</button>`}
      ${can("schedule.pause", "schedule.resume") && (one.paused === null ? html`<button onClick=${pause}>Pause</button>` : html`<button onClick=${doing(() => does("resume"))}>Resume</button>`)}
      ${can("schedule.remove") && html`<button onClick=${remove}>Remove</button>`}
    </div>
    <h3>Runs</h3><pre class="printed">${lines(gistOf(run))}</pre>
    <${Facts} facts=${[
      ["On", text(targetsOf(run))],
      ["Waves", run.waves?.join(", ")],
      [
        "Last run",
        one.lastRun &&
          html`<a href=${address("runs", one.lastRun)}>${one.lastState ? text(one.lastState) : "removed"}</a>`,
      ],
      ["Shifted by", one.jitter ? `up to ${spelled(one.jitter)}` : null],
      ["While one is under way", one.overlap === "skip" ? "the next time is left out" : "the next one waits"],
      [
        "Times that were missed",
        { none: "are left out", latest: "are made up for once", all: "are all made up for" }[one.catchUp],
      ],
      ["Left out", one.skipped ? counted(one.skipped, "time") : null],
      ["Until", one.until && exact(one.until)],
      ["Tells", notify && [notify.command?.join(" "), notify.webhook?.url].filter(Boolean).map(text).join(", ")],
      ["Added by", one.token ? html`a token, <code>${one.token}</code>` : "the owner"],
      ["Id", html`<code>${schedule}</code>`],
    ]} />
  `;
}

/** What to run on: anew at each time for a pattern of names, as on the command line. @param {string} wanted @param {string} where */
function selection(wanted, where) {
  const more = where && { where };
  if (!wanted || wanted === "*") return { connectionFilter: "*", ...more };
  if (isPattern(wanted) && !wanted.includes("/")) return { connectionFilter: `**/${wanted}`, ...more };
  const { exact } = search(
    wanted,
    [...store.connections.values()].filter((one) => one.usageCategory === "shell"),
  );
  if (where) throw new Error("A condition goes with a pattern such as web*, and not with names.");
  if (!exact.length) throw new Error("No machine is called so.");
  return { connections: exact.map((one) => one.connection) };
}

async function add() {
  await form({
    title: "Add a schedule",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "command", label: "Command", required: true },
      {
        name: "on",
        label: "On the machines",
        hint: "A name, or a pattern such as web*, which is looked up anew each time.",
      },
      { name: "where", label: "Where", hint: "A condition on labels and facts, such as env=prod and os.id=debian." },
      {
        name: "when",
        label: "When",
        required: true,
        hint: "Minute, hour, day, month and weekday, such as 30 2 * * *; or how often, such as 15m or 12h.",
      },
      { name: "timezone", label: "Time zone", value: Intl.DateTimeFormat().resolvedOptions().timeZone, required: true },
      { name: "waves", label: "Waves", hint: "Up to how many targets each goes, such as 1, 10%, 100%." },
      { name: "stopAfter", label: "Stop after so many failures", hint: "A number, or a share such as 5%." },
    ],
    yes: "Add",
    work: async ({ name, command, on: wanted, where, when, timezone, waves, stopAfter }) => {
      const often = /^(\d+(?:\.\d+)?)\s*([smhd])$/.exec(when.trim());
      const { schedule } = await call("/schedule/add", {
        name,
        timezone,
        ...(often ? { every: Number(often[1]) * SECONDS[often[2]] } : { cron: when.trim() }),
        run: {
          ...selection(wanted.trim(), where.trim()),
          command,
          ...(waves.trim() && { waves: waves.split(",").map(numberOrShare) }),
          ...(stopAfter.trim() && { stopAfter: numberOrShare(stopAfter) }),
        },
      });
      go(address("schedules", schedule));
    },
  });
}

register({ name: "Add a schedule", actions: ["schedule.add"], run: add });

export default { component: Schedules };
