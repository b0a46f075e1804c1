// Runs: commands on many machines that the daemon keeps and goes on with; and the schedules that begin them.

import { call } from "../core/api.js";
import { form } from "../core/forms.js";
import { isPattern, search } from "../core/names.js";
import { address, go, register } from "../core/navigate.js";
import { nameOf, store, useStore } from "../core/store.js";
import { ago, counted, exact, Fault, html, lines, text, toast, useAnswer, useMemo, useState } from "../core/ui.js";
import { Details, Group, Listing, numberOrShare, removal, secondsOf, spelled, took } from "./listing.js";

// Runs: commands on many machines that the daemon keeps and goes on with; each target as a cell, and what they printed.

const UNDER_WAY = ["pending", "running", "waiting", "paused", "stopping"];
const KINDS = /** @type {Record<string, string>} */ ({ done: "up", failed: "lost", stopped: "off" });
const RETRIED = ["failed", "unreachable", "unknown", "stopped"];
const LIST_SECONDS = 3;
const RUN_SECONDS = 1;
const MOST_GROUPS = 20;
const MOST_PRINTED = 4000;

const isUnderWay = (/** @type {RunInfo} */ run) => UNDER_WAY.includes(run.state);
/** @param {string} state of a run */
export const stateOfRun = (state) => ({ kind: KINDS[state] ?? "busy", word: state });
/** What runs, of a run or of a request for one. @param {any} run */
const gistOf = ({ command, argv, saved, script, facts }) =>
  (argv ?? (Array.isArray(command) ? command : undefined))?.join(" ") ??
  command ??
  saved?.name ??
  script?.text ??
  (facts && `facts: ${facts.join(", ") || "all"}`) ??
  "(not to be seen)";

/** How many targets are in each state, without those in which none is. @param {RunInfo} run */
const said = ({ counts }) =>
  Object.entries(counts)
    .filter(([, count]) => count)
    .map(([state, count]) => `${count.toLocaleString("en")} ${state}`)
    .join(", ");

/** @type {Column<RunInfo>[]} */
const RUN_COLUMNS = [
  ["State", "7rem", (run) => stateOfRun(run.state)],
  ["What", 2, (run) => (run.name ? text(run.name) : html`<span class="mono">${text(gistOf(run))}</span>`)],
  ["Targets", 1.5, said],
  ["Took", "6rem", (run) => run.began && took(run.began, run.ended), "number"],
  ["Begun", "6rem", (run) => ago(run.submitted), "note"],
];

/** @type {Command} */
const BEGIN = { name: "Run a command", actions: ["run.start"], run: () => go("#/run") };

/** @param {{path: string[]}} props */
function Runs({ path }) {
  const { answer, error, again } = useAnswer(() => call("/run/query"), [], {
    kind: "run",
    every: (found) => found?.runs.some(isUnderWay) && LIST_SECONDS,
  });
  const runs = answer?.runs;
  return html`<${Listing} view="runs" id="run" ...${{ path, error, again }} items=${runs} columns=${RUN_COLUMNS} begin=${BEGIN}
    one=${runs && path[0] && (runs.find(({ run }) => run === path[0]) ?? { run: path[0] })} details=${(one) => html`<${RunDetails} id=${one.run} listAgain=${again} />`}
    empty=${[
      "No runs yet",
      html`A run is a command on many machines that goes on without this page: in waves, and with a stop when too much fails.
      Choose the machines, and <em>Keep it as a run</em>.`,
    ]} />`;
}

/** @param {{id: string, listAgain: () => void}} props */
function RunDetails({ id, listAgain }) {
  useStore();
  const {
    answer: run,
    error,
    again,
  } = useAnswer(() => call("/run/info", { run: id, cells: true }, { quiet: true }), [id], {
    kind: "run",
    about: id,
    every: (found) => found && isUnderWay(found) && RUN_SECONDS,
  });
  const isOn = !run || isUnderWay(run);
  const [at, choose] = useState(-1);
  const [turn, show] = useState(0);
  const isShown = !isOn || turn > 0;
  const printed = useAnswer(
    async () => (isShown ? await call("/run/output", { run: id, limit: MOST_GROUPS }) : null),
    [id, turn, isOn],
  );
  const target = useAnswer(
    async () =>
      at < 0 ? null : (await call("/run/targets", { run: id, offset: at, limit: 1, output: MOST_PRINTED })).targets[0],
    [id, at, run?.cells?.[at]],
  );
  if (!run) return error && html`<${Fault} error=${error} again=${again} />`;
  const does =
    (/** @type {string} */ what, /** @type {object} */ more = {}) =>
    async () => {
      await call(`/run/${what}`, { run: id, ...more });
      again();
    };
  const failures = RETRIED.reduce((sum, state) => sum + run.counts[state], 0);
  const retry = async () => go(address("runs", (await call("/run/retry", { run: id })).run ?? ""));
  const { groups = [], total = 0 } = printed.answer ?? {};
  return html`<${Details} title=${run.name ?? "Run"} note=${html`on ${counted(run.targets, "machine")}, ${exact(run.submitted)}`} state=${stateOfRun(run.state)}
    deeds=${[
      run.state === "running" && ["Pause", "run.pause", does("pause")],
      run.state === "paused" && ["Resume", "run.resume", does("resume"), "primary"],
      run.state === "waiting" && ["Begin the next wave", "run.resume", does("resume"), "primary"],
      isOn && run.state !== "stopping" && ["Stop", "run.stop", does("stop")],
      isOn && ["Stop and kill", "run.stop", does("stop", { kill: true })],
      !isOn &&
        failures > 0 && [`Retry the ${failures.toLocaleString("en")} without success`, "run.retry", retry, "primary"],
      !isOn &&
        removal("runs", "run", { run: id }, run.name ?? "The run", "so will what its targets printed", listAgain),
    ]}
    facts=${[
      ["Took", run.began && took(run.began, run.ended)],
      ["Left at this rate", run.state === "running" && run.left ? `${Math.ceil(run.left)} s` : null],
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
    ]}>
    <pre class="printed">${lines(gistOf(run))}</pre>
    ${error && html`<${Fault} error=${error} again=${again} />`}
    ${run.reason && html`<p class=${run.state === "failed" ? "fault" : "note"}>${lines(run.reason)}</p>`}
    ${isOn && html`<progress max=${run.targets} value=${run.targets - run.counts.waiting - run.counts.starting} aria-label="Targets that have ended"></progress>`}
    <${Field} run=${run} at=${at} choose=${choose} />
    ${target.error && html`<${Fault} error=${target.error} />`}
    ${target.answer && html`<${Group} names=${[text(target.answer.name ?? target.answer.connection)]} line=${target.answer} />`}
    ${isOn && html`<p><button onClick=${() => show(turn + 1)}>${turn ? "Read what they printed again" : "Show what they printed so far"}</button></p>`}
    ${printed.error && html`<${Fault} error=${printed.error} again=${printed.again} />`}
    ${groups.map((one) => html`<${Group} key=${one.connections[0]} names=${one.names.map((name, index) => text(name ?? one.connections[index]))} line=${one} />`)}
    ${total > groups.length && html`<p class="note">and ${counted(total - groups.length, "outcome")} more; <code>connmgr run output</code> prints all.</p>`}
  <//>`;
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

/** @param {{run: RunInfo, at: number, choose: (at: number) => void}} props */
function Field({ run, at, choose }) {
  const { columns, height, paths, places } = useMemo(() => drawn(run.cells ?? "", run.waves), [run.cells]);
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

// Schedules: runs that begin by themselves; when they do in the coming week, and how the last one went.

const DAYS = 7;
/** More firings of a schedule on one day are told by their number. */
const MOST_A_DAY = 3;
const MOST_TIMES = 1000;
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short" });

/** @param {Schedule} one */
const stateOf = ({ paused, overdue, next }) =>
  paused !== null
    ? { kind: "off", word: "paused" }
    : overdue
      ? { kind: "lost", word: "overdue" }
      : next
        ? { kind: "up", word: "active" }
        : { kind: "off", word: "ended" };
/** @param {Schedule} one */
const timesOf = ({ cron, every, timezone }) => (cron ? `${cron} ${timezone}` : `every ${spelled(every ?? 0)}`);
/** @param {Schedule["run"]} run */
const targetsOf = ({ connections, connectionFilter, categoryFilter, typeFilter, where }) =>
  connections?.map(nameOf).join(", ") ??
  [
    connectionFilter,
    categoryFilter && `in ${categoryFilter}`,
    typeFilter && `of the type ${typeFilter}`,
    where && `where ${where}`,
  ]
    .filter(Boolean)
    .join(" ");

/** @type {Column<Schedule>[]} */
const SCHEDULE_COLUMNS = [
  ["State", "6rem", stateOf],
  ["Name", 1.5, (one) => one.name],
  ["When", 1.5, timesOf, "mono"],
  ["Next", "7rem", (one) => ago(one.next)],
  ["Last run", "7rem", ({ lastState }) => lastState && stateOfRun(lastState)],
];

/** @param {{path: string[]}} props */
function Schedules({ path }) {
  useStore();
  const { answer, error, again } = useAnswer(
    async () => {
      const { schedules } = await call("/schedule/query");
      const firings = await Promise.all(
        schedules.map(async ({ next, schedule }) =>
          next ? (await call("/schedule/next", { schedule, count: MOST_TIMES })).times : [],
        ),
      );
      return { schedules, firings };
    },
    [],
    { kind: "schedule" },
  );
  const items = answer?.schedules;
  return html`<${Listing} view="schedules" id="schedule" ...${{ path, items, error, again }} columns=${SCHEDULE_COLUMNS} begin=${ADD}
    filters=${Boolean(items?.length) && html`<${Week} ...${answer} />`} details=${(one) => html`<${ScheduleDetails} ...${{ one, again }} />`}
    empty=${["No schedules yet", "A schedule begins a run at each of its times: a backup each night, a check each quarter of an hour. The daemon keeps it; nothing is installed on the machines."]} />`;
}

/** @param {{schedules: Schedule[], firings: string[][]}} props */
function Week({ schedules, firings }) {
  const days = Array.from({ length: DAYS + 1 }, (_, index) => {
    const day = new Date();
    day.setHours(0, 0, 0, 0);
    day.setDate(day.getDate() + index);
    return day;
  });
  const starts = days.map((day) => day.getTime());
  const end = starts[DAYS];
  /** @type {{at: number, said: string, one: Schedule}[][]} */
  const entries = days.slice(0, DAYS).map(() => []);
  schedules.forEach((one, index) => {
    const times = firings[index].map((time) => Date.parse(time));
    const known = times.length < MOST_TIMES ? end : times[MOST_TIMES - 1];
    for (let day = 0; day < DAYS; day += 1) {
      const here = times.filter((time) => time >= starts[day] && time < starts[day + 1]);
      const put = (/** @type {number} */ at, /** @type {string} */ said) => entries[day].push({ at, said, one });
      // What is known may end within this day, or before it.
      if (known < starts[day + 1]) put(here[0] ?? starts[day], "often");
      else if (here.length > MOST_A_DAY) put(here[0], `${here.length} ×`);
      else for (const time of here) put(time, CLOCK.format(time));
    }
  });
  return html`<ol class="week" aria-label="The coming week">${entries.map(
    (some, index) => html`<li key=${index}><h2>${index ? DAY.format(days[index]) : "Today"}</h2>
      <ul>${some
        .sort((first, second) => first.at - second.at)
        .map(
          ({ said, one }) =>
            html`<li><span class="note">${said}</span> <a href=${address("schedules", one.schedule)}>${text(one.name)}</a></li>`,
        )}</ul></li>`,
  )}</ol>`;
}

/** @param {{one: Schedule, again: () => void}} props */
function ScheduleDetails({ one, again }) {
  const { schedule, run, notify } = one;
  /** @type {(what: string) => () => Promise<any>} */
  const does = (what) => () => call(`/schedule/${what}`, { schedule });
  const pause = async () => {
    await does("pause")();
    toast(`${text(one.name)} is paused.`, { undo: does("resume") });
  };
  return html`<${Details} title=${one.name} note=${html`${text(timesOf(one))}${one.next && html`; next ${exact(one.next)}`}`} state=${stateOf(one)}
    deeds=${[
      ["Run it now", "schedule.trigger", async () => go(address("runs", (await does("trigger")()).run)), "primary"],
      one.paused === null ? ["Pause", "schedule.pause", pause] : ["Resume", "schedule.resume", does("resume")],
      removal("schedules", "schedule", { schedule }, one.name, "its runs stay", again),
    ]}
    facts=${[
      ["On", text(targetsOf(run))],
      ["Waves", run.waves?.join(", ")],
      [
        "Last run",
        one.lastRun && html`<a href=${address("runs", one.lastRun)}>${text(one.lastState ?? "removed")}</a>`,
      ],
      ["Shifted by", one.jitter ? `up to ${spelled(one.jitter)}` : null],
      ["While one is under way", Object.fromEntries(OVERLAP)[one.overlap]],
      ["Times that were missed", Object.fromEntries(CATCH_UP)[one.catchUp]],
      ["Left out", one.skipped ? counted(one.skipped, "time") : null],
      ["Until", one.until && exact(one.until)],
      ["Tells", notify && [notify.command?.join(" "), notify.webhook?.url].filter(Boolean).map(text).join(", ")],
      [
        "Added by",
        one.token
          ? html`the token <a href=${address("tokens", one.token)}>${text(one.tokenName ?? one.token)}</a>`
          : "the owner",
      ],
      ["Id", html`<code>${schedule}</code>`],
    ]}>
    ${one.paused && html`<p class="note">Paused: ${lines(one.paused)}</p>`}
    ${one.lastError && html`<p class="fault">Its last time began no run: ${lines(one.lastError)}</p>`}
    <pre class="printed">${lines(gistOf(run))}</pre>
  <//>`;
}

const OVERLAP = [
  ["skip", "the next time is left out"],
  ["queue", "the next one waits"],
];
const CATCH_UP = [
  ["latest", "are made up for once"],
  ["all", "are all made up for"],
  ["none", "are left out"],
];

/**
 * What to run on: anew at each time for a pattern of names, as on the command line.
 * @param {string} wanted @param {{where?: string, categoryFilter?: string, typeFilter?: string}} filters
 */
function selection(wanted, filters) {
  if (!wanted || wanted === "*") return { connectionFilter: "*", ...filters };
  if (isPattern(wanted) && !wanted.includes("/")) return { connectionFilter: `**/${wanted}`, ...filters };
  if (Object.values(filters).some(Boolean))
    throw new Error("Conditions, categories and types go with a pattern such as web*, and not with names.");
  const machines = [...store.connections.values()].filter((one) => one.usageCategory === "shell");
  const { exact } = search(wanted, machines);
  if (!exact.length) throw new Error("No machine is called so.");
  return { connections: exact.map((one) => one.connection) };
}

/** What notices are about, and the last of them only if somebody asks for it. */
const TOLD = [
  ["missed", "no daemon was there at the time"],
  ["skipped", "the run before was under way"],
  ["refused", "the run could not be started"],
  ["failed", "it failed or was stopped"],
  ["unreachable", "machines could not be reached"],
  ["done", "all went well"],
];

async function add() {
  await form({
    title: "Add a schedule",
    required: ["name", "command", "when", "timezone"],
    value: { timezone: Intl.DateTimeFormat().resolvedOptions().timeZone },
    properties: {
      name: {},
      command: {},
      on: {
        title: "On the machines",
        description: "A name, or a pattern such as web*, which is looked up anew each time.",
      },
      where: { description: "A condition on labels and facts, such as env=prod and os.id=debian." },
      when: {
        description: "Minute, hour, day, month and weekday, such as 30 2 * * *; or how often, such as 15m or 12h.",
      },
      timezone: { title: "Time zone" },
      waves: { format: "words", description: "Up to how many targets each goes, such as 1, 10%, 100%." },
      stopAfter: { title: "Stop after so many failures", description: "A number, or a share such as 5%." },
      more: {
        type: "object",
        properties: {
          overlap: { title: "While one is under way", choices: OVERLAP },
          catchUp: { title: "Times that were missed", choices: CATCH_UP },
          jitter: {
            title: "Shift each time at random, by up to so many seconds",
            type: "number",
            minimum: 0,
            maximum: 86400,
          },
          until: { format: "datetime-local" },
          categoryFilter: { title: "Only in the categories", examples: ["fleet/**"] },
          typeFilter: { title: "Only of the types", examples: ["ssh"] },
          on: { title: "Tell of", type: "array", choices: TOLD, default: TOLD.slice(0, -1).map(([what]) => what) },
          tell: {
            format: "argv",
            title: "Tell a program",
            description: "Its path and arguments on the daemon's machine, one a line; it gets the notice as JSON.",
          },
          webhook: {
            type: "object",
            title: "Tell a server",
            required: ["url", "secret"],
            properties: {
              url: { title: "Address", description: "By https or http; it gets the notice as JSON." },
              secret: {
                format: "password",
                autocomplete: "new-password",
                minLength: 16,
                description: "Signs the notice, so that the server knows where it is from.",
              },
            },
          },
        },
      },
    },
    yes: "Add",
    work: async ({ name, command, on = "", where, when, timezone, waves, stopAfter, more = {} }) => {
      const { tell, webhook, until, on: told, categoryFilter, typeFilter, ...others } = more;
      const every = secondsOf(when);
      const { schedule, warning } = await call("/schedule/add", {
        name,
        ...(every === null ? { cron: when.trim(), timezone } : { every }),
        ...others,
        ...(until && { until: new Date(until).toISOString() }),
        ...((told || tell || webhook) && { notify: { on: told, command: tell, webhook } }),
        run: {
          ...selection(on.trim(), { where: where?.trim() || undefined, categoryFilter, typeFilter }),
          command,
          waves: waves?.map(numberOrShare),
          stopAfter: stopAfter && numberOrShare(stopAfter),
        },
      });
      go(address("schedules", schedule));
      if (warning) toast(text(warning));
    },
  });
}

/** @type {Command} */
const ADD = { name: "Add a schedule", actions: ["schedule.add"], run: add };
register(ADD);

export default {
  runs: { component: Runs },
  schedules: { component: Schedules },
};
