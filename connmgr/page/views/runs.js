// Commands on many machines: run at once, kept by the daemon as runs, and begun by schedules.

import { call, eachLine } from "../core/api.js";
import { Fields, form } from "../core/forms.js";
import { isPattern, search } from "../core/names.js";
import { address, go, register } from "../core/navigate.js";
import { can, EVERYTHING, machines, nameOf, store, useStore } from "../core/store.js";
import {
  ago,
  counted,
  doing,
  Empty,
  exact,
  Fault,
  html,
  lines,
  Rows,
  State,
  text,
  toast,
  useAnswer,
  useEffect,
  useMemo,
  useRef,
  useState,
} from "../core/ui.js";
import {
  copy,
  Details,
  Filters,
  Listing,
  MOST_NAMED,
  named,
  plain,
  removal,
  secondsOf,
  spelled,
  stored,
  took,
} from "./listing.js";

// Run: what runs where is seen before anything does, and equal results stand together.

/** The first is every token's; the second only of those that may run commands. */
const COMMANDS = ["shell.broadcast", "run.query"];
/** Stands before the names of saved commands among what can run. */
const SAVED = "saved ";
const MOST = 1000;
const MOST_KEPT = 50_000;
/** Errors that a person can remedy when the shell is started alone. */
const REMEDIED = ["host_key_unknown", "secret_locked", "vault_locked"];

/** What can run in place of a command, each as the fields that it has. */
const WHAT = /** @type {Record<string, {said: string, isRun?: boolean, schema: Schema}>} */ ({
  argv: {
    said: "A program, without a shell",
    schema: {
      required: ["argv"],
      properties: {
        argv: {
          format: "argv",
          title: "Program and arguments",
          description: "One a line, exactly as it stands there; an empty line is an empty argument.",
        },
      },
    },
  },
  script: {
    said: "A script",
    isRun: true,
    schema: {
      required: ["text"],
      properties: {
        text: {
          title: "Script",
          maxLength: 65_536,
          rows: 8,
          description: "Its first line names the interpreter, such as #!/usr/bin/env python3; without that: /bin/sh.",
        },
        arguments: { format: "argv", description: "One a line." },
      },
    },
  },
  facts: {
    said: "Gather facts",
    isRun: true,
    schema: { properties: { facts: { format: "words", title: "Parts of them", examples: ["all"] } } },
  },
});
const TIMEOUT = { timeout: { title: "At most, in seconds", type: "number", minimum: 1 } };
const HOW = {
  user: { title: "As the user", examples: ["of the login"], description: "By sudo: root, or another." },
  cwd: { title: "In the directory" },
  ...TIMEOUT,
  env: { title: "Variables", format: "pairs", description: "One a line, as NAME=value." },
  sendEnv: {
    title: "Variables of mine",
    format: "pairs",
    description: "One a line; a machine gets those that its connection or the daemon admits.",
  },
  stdin: { title: "Input", maxLength: 65_536 },
  encoding: { title: "Input and output", choices: [["base64", "in base64, byte by byte"]] },
  session: { title: "In the shell called", examples: ["the connection's own"] },
  fresh: { title: "In a new shell", type: "boolean", default: false },
  start: { title: "Open shells that are not open", type: "boolean", default: true },
};
const KEPT = {
  properties: {
    name: { maxLength: 200, examples: ["to find it by"] },
    waves: { format: "words", examples: ["10%, 50%, 100%"] },
    stopAfter: { title: "Stop after so many failures", examples: ["3, or 5%"] },
    wavePause: { title: "Seconds between waves", type: "number", minimum: 0 },
    parallel: { title: "At a time", type: "integer", minimum: 1, maximum: 500, examples: [100] },
    retries: { title: "Try again, so many times", type: "integer", minimum: 0, maximum: 10 },
    canary: { title: "One machine before all others", type: "boolean", default: false },
    waveApproval: { title: "Wait for me between waves", type: "boolean", default: false },
    more: {
      type: "object",
      properties: {
        as: {
          title: "Runs",
          choices: [
            ["shell", "in the open shells"],
            ["job", "as jobs, which outlive the daemon"],
          ],
        },
        retryDelay: { title: "Seconds before it is tried again", type: "number", minimum: 0, examples: [10] },
        runTimeout: { title: "All of it at most, in seconds", type: "number", minimum: 1 },
        keep: { title: "Keep it after its end, in days", type: "number", minimum: 0, maximum: 3650 },
        key: { maxLength: 200, description: "Where a kept run has this key, that is shown, and nothing is started." },
      },
    },
  },
};
const DAY_SECONDS = 86_400;

/** @param {Record<string, any>} parameters */
const parametersOf = (parameters) => ({
  required: Object.keys(parameters),
  properties: Object.fromEntries(
    Object.entries(parameters).map(([name, { in: allowed, integer, secret, description }]) => [
      name,
      {
        title: text(name),
        description: description && text(description),
        ...(Array.isArray(allowed) && { choices: allowed.map((value) => [value, text(value)]) }),
        ...(integer && { type: "integer" }),
        ...(secret && { format: "password" }),
      },
    ]),
  ),
});

/** @param {{path: string[], query: URLSearchParams}} props */
function Run({ path, query }) {
  const { connections, categories } = useStore();
  const [wanted, want] = useState("");
  const [category, within] = useState("");
  const [condition, require] = useState("");
  const [kind, ofKind] = useState("");
  const [chosen, choose] = useState(() => new Set(path));
  const [results, setResults] = useState(/** @type {Map<string, Line>} */ (new Map()));
  const [running, setRunning] = useState(/** @type {string[]} */ ([]));
  const [isWanted, keep] = useState(query.has("kept"));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [what, setWhat] = useState("");
  const [typed, type] = useState(query.get("command") ?? "");
  const [given, give] = useState(/** @type {Record<string, any>} */ ({}));
  const [how, setHow] = useState(/** @type {Record<string, any>} */ ({}));
  const [kept, setKept] = useState(/** @type {Record<string, any>} */ ({}));
  const stop = useRef(/** @type {AbortController | null} */ (null));
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  const where = useAnswer(
    async () =>
      condition ? new Set((await call("/connection/query", { ...EVERYTHING, where: condition })).found) : null,
    [condition],
  );
  /** Whether it is not known yet for which machines the condition holds: none can be chosen by another one meanwhile. */
  const isAsked = condition !== "" && (where.isOld || !where.answer);
  const known = useAnswer(async () => (await call("/command/query")).commands, []);
  const saved = known.answer ?? [];
  const command = saved.find((one) => SAVED + one.name === what);
  const other = WHAT[what];
  const isKept = isWanted || Boolean(other?.isRun);
  const mayKeep = can("run.start", "run.query");
  useEffect(() => () => stop.current?.abort(), []);

  const shown = useMemo(() => {
    const { exact, rest } = search(wanted, machines());
    // Those that somebody came with stand first.
    const isFirst = (/** @type {any} */ one) => path.includes(one.connection);
    const found = [...exact, ...rest];
    return [...found.filter(isFirst), ...found.filter((one) => !isFirst(one))].filter(
      (one) =>
        !isAsked &&
        (!kind || one.type === kind) &&
        (!where.answer || where.answer.has(one.connection)) &&
        `${one.category.join("/")}/`.startsWith(category),
    );
  }, [wanted, category, kind, isAsked, where.answer, connections, connections.size]);
  const toggle = (/** @type {any} */ { connection }) => {
    const next = new Set(chosen);
    if (!next.delete(connection)) next.add(connection);
    choose(next);
  };
  const order = () => {
    const { user, ...others } = how;
    // A program of the daemon's own gathers them: nothing else of how it would run applies.
    if (what === "facts") return { facts: given.facts ?? [], timeout: how.timeout };
    const named = command && { saved: { name: command.name, arguments: given } };
    const written = what === "script" ? { script: given } : other ? given : { command: typed };
    return { ...(named ?? written), ...others, ...(user && { elevate: { user } }) };
  };
  /** @param {string[]} targets */
  const start = async (targets) => {
    stop.current = new AbortController();
    setError(null);
    setRunning(targets);
    setResults(
      (before) => new Map([...before].filter(([id]) => !targets.includes(id) && targets.length < before.size)),
    );
    let isWhole = false;
    const received = (/** @type {Line[]} */ some) => {
      isWhole ||= some.some((line) => !line.connection);
      const answered = some.flatMap((line) =>
        line.connection ? [/** @type {const} */ ([line.connection, line])] : [],
      );
      setResults((before) => new Map([...before, ...answered]));
    };
    try {
      await eachLine("/shell/broadcast", { ...order(), connections: targets }, received, stop.current.signal);
      if (!isWhole) throw new Error("The daemon ended it before all machines had answered.");
    } catch (error) {
      if (!(error instanceof DOMException)) setError(/** @type {Error} */ (error));
    } finally {
      setRunning([]);
    }
  };
  /** Starts it as a run, which the daemon keeps; a dry run starts nothing, and is told of. */
  const startKept = (dryRun = false) => {
    const { waves = [], canary, stopAfter, more: { keep: days, ...more } = {}, ...others } = kept;
    const sizes = [...(canary ? [1] : []), ...waves.map(numberOrShare)];
    return call("/run/start", {
      ...order(),
      ...others,
      ...more,
      dryRun,
      connections: [...chosen],
      ...(sizes.length && { waves: sizes }),
      ...(stopAfter && { stopAfter: numberOrShare(stopAfter) }),
      ...(days !== undefined && { keep: Math.round(days * DAY_SECONDS) }),
    });
  };
  const preview = doing(async () => {
    if (!form.current?.reportValidity()) return;
    const { targets, waves, as, why, warning = "", locked = [] } = await startKept(true);
    const said = [`Nothing is started. It would run on ${counted(targets, "machine")}`];
    if (waves.length > 1) said.push(`in waves of ${waves.join(", ")}`);
    said.push(`as ${as}: ${why}`);
    const fails = locked.length > 0 && `${counted(locked.length, "machine")} would fail: locked.`;
    toast(text([said.join(", "), fails, warning].filter(Boolean).join(" ")));
  });
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    doing(async () => {
      if (isKept) {
        const { run, warning } = await startKept();
        if (warning) toast(text(warning));
        go(address("runs", run ?? ""));
      } else if (chosen.size && !running.length) await start([...chosen]);
    })();
  };
  const groups = useMemo(() => grouped([...results.values()]), [results]);
  const failures = [...results.values()].filter((line) => line.error || line.exitCode);
  const retry = doing(async () => {
    for (const { connection, error } of failures)
      if (REMEDIED.includes(`${error?.code}`)) await call("/shell/start", { connection });
    await start(failures.map((line) => line.connection ?? ""));
  });
  const done = running.filter((id) => results.has(id)).length;
  return html`
    <div class="view running">
      <header><h1>Run</h1></header>
      <div class="split">
        <section class="aside-list" aria-label="Machines">
          <${Filters} label="Search the machines"><div class="filters">
            <label>Machines<input type="search" placeholder="web* or words of the name" value=${wanted} spellcheck=${false} onInput=${(event) => want(event.target.value)} /></label>
            <label>Category<select onChange=${(event) => within(event.target.value)}><option value="">All</option>
              ${[...categories.values()].map((one) => html`<option key=${one.category} value=${`${one.name.join("/")}/`}>${text(one.name.join(" / "))}</option>`)}</select></label>
            <label>Type<select onChange=${(event) => ofKind(event.target.value)}><option value="">All</option>
              ${[...store.types.values()].map((one) => one.usageCategory === "shell" && html`<option key=${one.type} value=${one.type}>${text(one.type)}</option>`)}</select></label>
            <label>Where<input placeholder="env=prod and os.id=debian" spellcheck=${false} onChange=${(event) => require(event.target.value.trim())} /></label>
          </div><//>
          ${where.error && html`<${Fault} error=${where.error} />`}
          <p class="does bar"><button class="quiet" disabled=${!shown.length} onClick=${() => choose(new Set([...chosen, ...shown.map((one) => one.connection)].slice(0, isKept ? MOST_KEPT : MOST)))}>Choose all ${shown.length.toLocaleString("en")}</button>
            ${chosen.size > 0 && html`<button class="quiet" onClick=${() => choose(new Set())}>Choose none</button>`}</p>
          ${
            shown.length
              ? html`<${Rows} items=${shown} label="Machines" keyOf=${(one) => one.connection} open=${toggle} toggle=${toggle}
            classOf=${(one) => (chosen.has(one.connection) ? "chosen" : "")}
            row=${(one) => html`<label class="pick"><input type="checkbox" tabindex="-1" checked=${chosen.has(one.connection)} onChange=${() => toggle(one)} /> ${text(one.name.join("/"))} <span class="note">${text(one.category.join("/"))}</span></label>`} />`
              : store.loaded &&
                !isAsked &&
                html`<${Empty} title="No machine is like that"><p>Machines are added in the <a href="#/hub">hub</a>.</p><//>`
          }
        </section>
        <section class="scroll order" aria-label="Command">
          <form ref=${form} onSubmit=${submit}>
            <label class="field">What<select value=${what} onChange=${(event) => {
              setWhat(event.target.value);
              give({});
            }}><option value="">A command</option>
              ${Object.entries(WHAT).map(([name, { said, isRun }]) => (!isRun || mayKeep) && html`<option key=${name} value=${name}>${said}</option>`)}
              ${saved.map((one) => html`<option key=${one.name} value=${SAVED + one.name}>${text(one.name)}${one.description && ` – ${text(one.description)}`}</option>`)}</select></label>
            ${
              command || other
                ? html`<${Fields} key=${what} schema=${command ? parametersOf(command.parameters ?? {}) : other.schema} value=${given} change=${give} isWhole />`
                : html`<label class="field">Command<textarea class="mono" rows="2" required spellcheck=${false} placeholder="uptime" value=${typed} onInput=${(event) => type(event.target.value)}
              onKeyDown=${(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && form.current?.requestSubmit()}></textarea></label>`
            }
            <details><summary>How</summary><div class="choices"><${Fields} schema=${{ properties: what === "facts" ? TIMEOUT : HOW }} value=${how} change=${setHow} isWhole /></div></details>
            ${
              mayKeep &&
              html`<label class="check"><input type="checkbox" checked=${isKept} disabled=${other?.isRun} onChange=${(event) => keep(event.target.checked)} />
              <span>Keep it as a run<br /><small>It goes on without this page, in waves, and stops when too much fails.</small></span></label>`
            }
            ${isKept && html`<div class="choices"><${Fields} schema=${KEPT} value=${kept} change=${setKept} isWhole /></div>`}
            <p class="note">${chosen.size ? `On ${named([...chosen].map((id) => text(nameOf(id))))}` : "Choose the machines first."}</p>
            <p class="does"><button class="primary" disabled=${!chosen.size || running.length > 0}>Run on ${counted(chosen.size, "machine")}</button>
              ${isKept && chosen.size > 0 && html`<button type="button" onClick=${preview}>Say what it would do</button>`}
              ${running.length > 0 && html`<button type="button" onClick=${() => stop.current?.abort()}>Stop</button>`}
              ${!running.length && failures.length > 0 && html`<button type="button" onClick=${retry}>Retry the ${counted(failures.length, "failure")}</button>`}
              ${results.size > 0 && html`<button type="button" class="quiet" onClick=${doing(() => copied(groups))}>Copy as text</button>`}</p>
          </form>
          ${known.error && html`<${Fault} error=${known.error} again=${known.again} />`}
          ${error && html`<${Fault} error=${error} />`}
          <p role="status" class="note">${running.length > 0 && html`<progress max=${running.length} value=${done} aria-label="Machines that have answered"></progress> ${done} of ${counted(running.length, "machine")}`}
            ${!running.length && results.size > 0 && `${counted(results.size - failures.length, "machine")} done, ${failures.length} failed`}</p>
          ${groups.map((some) => html`<${Group} key=${some[0].connection} names=${some.map(machineOf).sort()} line=${some[0]} />`)}
        </section>
      </div>
    </div>
  `;
}

/** What tells one outcome from another. @param {Line} line */
const outcomeOf = ({ exitCode, stdout, stderr, error }) =>
  JSON.stringify([exitCode, stdout, stderr, error?.code, error?.message]);

/** Lines of equal outcome together: failures first, then by how many there are. @param {Line[]} all */
function grouped(all) {
  /** @type {Map<string, Line[]>} */
  const groups = new Map();
  for (const line of all) {
    const key = outcomeOf(line);
    groups.set(key, [...(groups.get(key) ?? []), line]);
  }
  const isGood = (/** @type {Line[]} */ [line]) => Number(line.exitCode === 0);
  return [...groups.values()].sort((one, other) => isGood(one) - isGood(other) || other.length - one.length);
}

const machineOf = (/** @type {Line} */ line) => text(line.name?.join("/") ?? nameOf(line.connection));

/** @param {Line[][]} groups */
async function copied(groups) {
  const said = groups.map((some) => {
    const [{ exitCode, stdout, stderr, error }] = some;
    return `# ${some.map(machineOf).sort().join(", ")}: ${error ? error.message : `exit ${exitCode}`}\n${[stdout, stderr].filter(Boolean).join("\n")}`;
  });
  await copy(said.join("\n\n"));
}

const command = { name: "Run a command", actions: COMMANDS };
register({ ...command, hint: "on many machines", key: "r", run: () => go("#/run") });
register({ ...command, on: "connection", run: (id) => go(address("run", id)) });

const MOST_SHOWN = 20_000;
/** Characters that a browser draws without a pause, also on one line. */
const MOST_DRAWN = 200_000;

/** As the API wants it: `3`, or `"5%"`. @param {string} given */
const numberOrShare = (given) => (/^\s*\d+\s*$/.test(given) ? Number(given) : given.trim());

/**
 * What machines with an equal outcome printed. `line` is one of their lines, of `/shell/broadcast` or of a run.
 * @param {{names: string[], line: {exitCode?: number | null, stdout?: string, stderr?: string, error?: any, truncated?: boolean | null, state?: string}}} props
 */
function Group({ names, line }) {
  const [isWhole, setWhole] = useState(false);
  const printed = [line.stdout ?? "", line.stderr ?? ""];
  const longest = Math.max(...printed.map((one) => one.length));
  const [stdout, stderr] = printed.map((one) => plain(one.slice(0, isWhole ? MOST_DRAWN : MOST_SHOWN)));
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
      ${longest > MOST_SHOWN && !isWhole && html`<button class="quiet" onClick=${() => setWhole(true)}>Show ${longest > MOST_DRAWN ? "more" : "all"} of it</button>`}
      ${longest > MOST_DRAWN && html`<button class="quiet" onClick=${() => stored(new Blob(printed), "output.txt")}>Save all of it</button>`}
      ${line.truncated && html`<p class="note">The rest of the output was dropped by the daemon's limit.</p>`}
    </section>
  `;
}

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
  // With the rights of another token nobody retries it.
  const isOwn = run.token === (store.me.id ?? null);
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
        isOwn &&
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
  const { exact } = search(wanted, machines());
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
  run: { component: Run },
  runs: { component: Runs },
  schedules: { component: Schedules },
};
