// Run: one command on many machines; what runs where is seen before anything does, and equal results stand together.

import { call, eachLine } from "../core/api.js";
import { search } from "../core/names.js";
import { register } from "../core/palette.js";
import { address, go } from "../core/router.js";
import { can, nameOf, store, useStore } from "../core/store.js";
import {
  counted,
  doing,
  Empty,
  Fault,
  failed,
  hooks,
  html,
  Rows,
  text,
  toast,
  useAnswer,
  useNarrow,
} from "../core/ui.js";
import { Group, MOST_NAMED, numberOrShare } from "./listing.js";

const { useEffect, useMemo, useRef, useState } = hooks;

/** @typedef {import("../contract.d.ts").BroadcastLine} Line */

const EVERYTHING = { categoryFilter: "*", connectionFilter: "*", typeFilter: "*" };
/** The first is every token's; the second only of those that may run commands. */
const COMMANDS = ["shell.broadcast", "run.query"];
const MOST = 1000;
/** Most connections of a run. */
const MOST_KEPT = 50_000;
/** Errors that a person can remedy when the shell is started alone. */
const REMEDIED = ["host_key_unknown", "secret_locked", "vault_locked"];

/** @param {{path: string[], query: URLSearchParams}} props */
function Run({ path, query }) {
  const { connections, categories } = useStore();
  const [wanted, want] = useState("");
  const [category, within] = useState("");
  const [condition, require] = useState("");
  const [chosen, choose] = useState(() => new Set(path));
  const [results, setResults] = useState(/** @type {Map<string, Line>} */ (new Map()));
  const [running, setRunning] = useState(/** @type {string[]} */ ([]));
  const [isKept, keep] = useState(query.has("kept"));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const stop = useRef(/** @type {AbortController | null} */ (null));
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  const where = useAnswer(
    async () =>
      condition ? new Set((await call("/connection/query", { ...EVERYTHING, where: condition })).found) : null,
    [condition],
  );
  const saved = useAnswer(async () => (await call("/command/query")).commands, []);
  const [name, name_] = useState("");
  const command = saved.answer?.find((/** @type {any} */ one) => one.name === name);
  useEffect(() => () => stop.current?.abort(), []);

  const shown = useMemo(() => {
    const { exact, rest } = search(wanted, [...connections.values()]);
    // Those that somebody came with stand first.
    const found = [...exact, ...rest];
    const isFirst = (/** @type {any} */ one) => path.includes(one.connection);
    const ordered = path.length ? [...found.filter(isFirst), ...found.filter((one) => !isFirst(one))] : found;
    return ordered.filter(
      (one) =>
        one.usageCategory === "shell" &&
        (!where.answer || where.answer.has(one.connection)) &&
        `${one.category.join("/")}/`.startsWith(category),
    );
  }, [wanted, category, where.answer, connections, connections.size]);
  const toggle = (/** @type {any} */ { connection }) => {
    const next = new Set(chosen);
    if (!next.delete(connection)) next.add(connection);
    choose(next);
  };
  /** What the form says runs, and how. */
  const order = () => {
    const given = new FormData(/** @type {HTMLFormElement} */ (form.current));
    const value = (/** @type {string} */ key) => String(given.get(key) ?? "").trim() || undefined;
    const user = value("user");
    return {
      ...(command
        ? {
            saved: {
              name,
              arguments: Object.fromEntries(
                Object.entries(command.parameters ?? {}).map(([key, one]) => [
                  key,
                  /** @type {any} */ (one).integer ? Number(given.get(`p ${key}`)) : given.get(`p ${key}`),
                ]),
              ),
            },
          }
        : { command: String(given.get("command")) }),
      cwd: value("cwd"),
      timeout: Number(value("timeout")) || undefined,
      fresh: given.has("fresh") || undefined,
      elevate: user && { user },
    };
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
    try {
      await eachLine(
        "/shell/broadcast",
        { ...order(), connections: targets },
        (some) => {
          isWhole ||= some.some((line) => !line.connection);
          setResults(
            (before) =>
              new Map([
                ...before,
                ...some
                  .filter((line) => line.connection)
                  .map((line) => /** @type {[string, Line]} */ ([line.connection, line])),
              ]),
          );
        },
        stop.current.signal,
      );
      if (!isWhole) throw new Error("The daemon ended it before all machines had answered.");
    } catch (error) {
      if (!(error instanceof DOMException)) setError(/** @type {Error} */ (error));
    } finally {
      setRunning([]);
    }
  };
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (isKept) kept().catch(failed);
    else if (chosen.size && !running.length) start([...chosen]);
  };
  /** Starts it as a run, which the daemon keeps, and goes there. */
  const kept = async () => {
    const given = new FormData(/** @type {HTMLFormElement} */ (form.current));
    const value = (/** @type {string} */ key) => String(given.get(key) ?? "").trim() || undefined;
    const waves = value("waves")?.split(",").map(numberOrShare) ?? [];
    const request = {
      ...order(),
      connections: [...chosen],
      name: value("name"),
      waves: given.has("canary") ? [1, ...waves] : waves.length ? waves : undefined,
      wavePause: Number(value("pause")) || undefined,
      waveApproval: given.has("approval") || undefined,
      stopAfter: value("stopAfter") && numberOrShare(String(value("stopAfter"))),
      parallel: Number(value("parallel")) || undefined,
    };
    const { run } = await call("/run/start", request);
    go(address("runs", run));
  };
  const failures = [...results.values()].filter((line) => line.error || line.exitCode);
  const retry = doing(async () => {
    for (const { connection = "", error } of failures)
      if (REMEDIED.includes(String(error?.code))) await call("/shell/start", { connection });
    await start(failures.map((line) => line.connection ?? ""));
  });
  const done = running.filter((id) => results.has(id)).length;
  return html`
    <div class="view work running">
      <header><h1>Run</h1></header>
      <div class="split">
        <section class="aside-list" aria-label="Machines">
          <${Filters}>
            <label>Machines<input type="search" placeholder="web* or words of the name" value=${wanted} spellcheck=${false} onInput=${(/** @type {any} */ event) => want(event.target.value)} /></label>
            <label>Category<select onChange=${(/** @type {any} */ event) => within(event.target.value)}><option value="">All</option>
              ${[...categories.values()].map((one) => html`<option key=${one.category} value=${`${one.name.join("/")}/`}>${text(one.name.join(" / "))}</option>`)}</select></label>
            <label>Where<input placeholder="env=prod and os.id=debian" spellcheck=${false} onChange=${(/** @type {any} */ event) => require(event.target.value.trim())} /></label>
          <//>
          ${where.error && html`<${Fault} error=${where.error} />`}
          <p class="does bar"><button class="quiet" disabled=${!shown.length} onClick=${() => choose(new Set([...chosen, ...shown.map((one) => one.connection)].slice(0, isKept ? MOST_KEPT : MOST)))}>Choose all ${shown.length.toLocaleString("en")}</button>
            ${chosen.size > 0 && html`<button class="quiet" onClick=${() => choose(new Set())}>Choose none</button>`}</p>
          ${
            shown.length
              ? html`<${Rows} items=${shown} label="Machines" keyOf=${(/** @type {any} */ one) => one.connection} open=${toggle} toggle=${toggle}
            classOf=${(/** @type {any} */ one) => (chosen.has(one.connection) ? "chosen" : "")}
            row=${(/** @type {any} */ one) => html`<label class="pick"><input type="checkbox" tabindex="-1" checked=${chosen.has(one.connection)} onChange=${() => toggle(one)} /> ${text(one.name.join("/"))} <span class="note">${text(one.category.join("/"))}</span></label>`} />`
              : store.loaded &&
                html`<${Empty} title="No machine is like that"><p>Machines are added in the <a href="#/hub">hub</a>.</p><//>`
          }
        </section>
        <section class="scroll order" aria-label="Command">
          <form ref=${form} onSubmit=${submit}>
            ${
              saved.answer?.length > 0 &&
              html`<label class="field"><span>What</span><select onChange=${(/** @type {any} */ event) => name_(event.target.value)}><option value="">A command</option>
              ${saved.answer.map((/** @type {any} */ one) => html`<option key=${one.name} value=${one.name}>${text(one.name)}${one.description && ` – ${text(one.description)}`}</option>`)}</select></label>`
            }
            ${
              command
                ? Object.entries(command.parameters ?? {}).map(
                    ([key, one]) => html`<${Parameter} key=${`${name} ${key}`} name=${key} one=${one} />`,
                  )
                : html`<label class="field"><span>Command</span><textarea name="command" class="mono" rows="2" required spellcheck=${false} placeholder="uptime" defaultValue=${query.get("command") ?? ""}
              onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && form.current?.requestSubmit()}></textarea></label>`
            }
            <details><summary>How</summary><div class="choices">
              <label class="field"><span>As the user</span><input name="user" placeholder="of the login" spellcheck=${false} /></label>
              <label class="field"><span>In the directory</span><input name="cwd" spellcheck=${false} /></label>
              <label class="field"><span>At most, in seconds</span><input name="timeout" type="number" min="1" /></label>
              <label class="check"><input type="checkbox" name="fresh" /> In a new shell</label></div></details>
            ${
              can("run.start", "run.query") &&
              html`<label class="check"><input type="checkbox" checked=${isKept} onChange=${(/** @type {any} */ event) => keep(event.target.checked)} />
              <span>Keep it as a run<br /><small>It goes on without this page, in waves, and stops when too much fails.</small></span></label>`
            }
            ${
              isKept &&
              html`<div class="choices">
              <label class="field"><span>Name</span><input name="name" maxlength="200" placeholder="to find it by" /></label>
              <label class="field"><span>Waves</span><input name="waves" placeholder="10%, 50%, 100%" spellcheck=${false} /></label>
              <label class="field"><span>Stop after so many failures</span><input name="stopAfter" placeholder="3, or 5%" spellcheck=${false} /></label>
              <label class="field"><span>Seconds between waves</span><input name="pause" type="number" min="0" /></label>
              <label class="field"><span>At a time</span><input name="parallel" type="number" min="1" max="500" placeholder="100" /></label>
              <div><label class="check"><input type="checkbox" name="canary" /> One machine before all others</label>
              <label class="check"><input type="checkbox" name="approval" /> Wait for me between waves</label></div></div>`
            }
            <p class="note">${
              chosen.size
                ? `On ${[...chosen]
                    .slice(0, MOST_NAMED)
                    .map((id) => text(nameOf(id)))
                    .join(", ")}${chosen.size > MOST_NAMED ? ` and ${chosen.size - MOST_NAMED} more` : ""}`
                : "Choose the machines first."
            }</p>
            <p class="does"><button class="primary" disabled=${!chosen.size || running.length > 0}>Run on ${counted(chosen.size, "machine")}</button>
              ${running.length > 0 && html`<button type="button" onClick=${() => stop.current?.abort()}>Stop</button>`}
              ${!running.length && failures.length > 0 && html`<button type="button" onClick=${retry}>Retry the ${counted(failures.length, "failure")}</button>`}
              ${results.size > 0 && html`<button type="button" class="quiet" onClick=${doing(() => copied([...results.values()]))}>Copy as text</button>`}</p>
          </form>
          ${error && html`<${Fault} error=${error} />`}
          <p role="status" class="note">${running.length > 0 && html`<progress max=${running.length} value=${done} aria-label="Machines that have answered"></progress> ${done} of ${counted(running.length, "machine")}`}
            ${!running.length && results.size > 0 && `${counted(results.size - failures.length, "machine")} done, ${failures.length} failed`}</p>
          ${grouped([...results.values()]).map((some) => html`<${Group} key=${some[0].connection} names=${some.map(machineOf)} line=${some[0]} />`)}
        </section>
      </div>
    </div>
  `;
}

/** What the list of machines is narrowed by; on a phone it would be all that one sees. @param {{children?: any}} props */
function Filters({ children }) {
  const filters = html`<div class="filters">${children}</div>`;
  return useNarrow()
    ? html`<details class="narrow"><summary>Search the machines</summary>${filters}</details>`
    : filters;
}

/** @param {{name: string, one: any}} props */
const Parameter = ({ name, one }) => html`
  <label class="field"><span>${text(name)}</span>
    ${
      Array.isArray(one.in)
        ? html`<select name=${`p ${name}`}>${one.in.map((/** @type {string} */ value) => html`<option key=${value} value=${value}>${text(value)}</option>`)}</select>`
        : html`<input name=${`p ${name}`} required type=${one.integer ? "number" : one.secret ? "password" : "text"} autocomplete="off" spellcheck=${false} />`
    }${one.description && html`<small>${text(one.description)}</small>`}</label>
`;

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
    return `# ${some.map(machineOf).join(", ")}: ${error ? error.message : `exit ${exitCode}`}\n${[stdout, stderr].filter(Boolean).join("\n")}`;
  });
  await navigator.clipboard.writeText(said.join("\n\n"));
  toast("Copied.");
}

register({
  name: "Run a command",
  hint: "on many machines",
  key: "r",
  actions: COMMANDS,
  run: () => go("#/run"),
});
register({
  name: "Run a command",
  on: "connection",
  actions: COMMANDS,
  run: (id) => go(address("run", id)),
});

export default { component: Run };
