// Run: one command on many machines; what runs where is seen before anything does, and equal results stand together.

import { call, eachLine } from "../core/api.js";
import { Fields } from "../core/forms.js";
import { search } from "../core/names.js";
import { address, go, register } from "../core/navigate.js";
import { can, nameOf, store, useStore } from "../core/store.js";
import {
  counted,
  doing,
  Empty,
  Fault,
  html,
  Rows,
  text,
  toast,
  useAnswer,
  useEffect,
  useMemo,
  useRef,
  useState,
} from "../core/ui.js";
import { Filters, Group, named, numberOrShare } from "./listing.js";

const EVERYTHING = { categoryFilter: "*", connectionFilter: "*", typeFilter: "*" };
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
  const saved = useAnswer(async () => (await call("/command/query")).commands, []).answer ?? [];
  const command = saved.find((one) => SAVED + one.name === what);
  const other = WHAT[what];
  const isKept = isWanted || Boolean(other?.isRun);
  const mayKeep = can("run.start", "run.query");
  useEffect(() => () => stop.current?.abort(), []);

  const shown = useMemo(() => {
    const { exact, rest } = search(wanted, [...connections.values()]);
    // Those that somebody came with stand first.
    const isFirst = (/** @type {any} */ one) => path.includes(one.connection);
    const found = [...exact, ...rest];
    return [...found.filter(isFirst), ...found.filter((one) => !isFirst(one))].filter(
      (one) =>
        !isAsked &&
        one.usageCategory === "shell" &&
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
              ${results.size > 0 && html`<button type="button" class="quiet" onClick=${doing(() => copied([...results.values()]))}>Copy as text</button>`}</p>
          </form>
          ${error && html`<${Fault} error=${error} />`}
          <p role="status" class="note">${running.length > 0 && html`<progress max=${running.length} value=${done} aria-label="Machines that have answered"></progress> ${done} of ${counted(running.length, "machine")}`}
            ${!running.length && results.size > 0 && `${counted(results.size - failures.length, "machine")} done, ${failures.length} failed`}</p>
          ${grouped([...results.values()]).map((some) => html`<${Group} key=${some[0].connection} names=${some.map(machineOf).sort()} line=${some[0]} />`)}
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

/** @param {Line[]} all */
async function copied(all) {
  const said = grouped(all).map((some) => {
    const [{ exitCode, stdout, stderr, error }] = some;
    return `# ${some.map(machineOf).sort().join(", ")}: ${error ? error.message : `exit ${exitCode}`}\n${[stdout, stderr].filter(Boolean).join("\n")}`;
  });
  await navigator.clipboard.writeText(said.join("\n\n"));
  toast("Copied.");
}

const command = { name: "Run a command", actions: COMMANDS };
register({ ...command, hint: "on many machines", key: "r", run: () => go("#/run") });
register({ ...command, on: "connection", run: (id) => go(address("run", id)) });

export default { run: { component: Run } };
