// Jobs: commands that outlive the page and the daemon; their states, and their output as it grows.

import { call } from "../core/api.js";
import { on } from "../core/events.js";
import { fold, search } from "../core/names.js";
import { register } from "../core/palette.js";
import { address, go } from "../core/router.js";
import { can, nameOf, store, useStore } from "../core/store.js";
import {
  ago,
  confirm,
  doing,
  Empty,
  exact,
  Fault,
  failed,
  form,
  hooks,
  html,
  lines,
  State,
  text,
  toast,
  useAnswer,
} from "../core/ui.js";
import { Facts, Listing, Printed, plain, took, useTick } from "./listing.js";

const { useEffect, useLayoutEffect, useState } = hooks;

const KINDS = /** @type {Record<string, string>} */ ({ starting: "busy", running: "busy", exited: "up" });
const WAIT_SECONDS = 25;
/** Bytes of output that are kept in the page, at its end. */
const MOST = 200_000;

const isUnderWay = (/** @type {any} */ job) => job.state === "starting" || job.state === "running";
const commandOf = (/** @type {any} */ job) =>
  job.locked ? "(locked)" : Array.isArray(job.command) ? job.command.join(" ") : (job.command ?? "");
/** @param {any} job */
const stateOf = (job) =>
  job.waiting
    ? { kind: "busy", word: "waits for input" }
    : job.exitCode
      ? { kind: "lost", word: `${job.state === "exited" ? "exit" : job.state} ${job.exitCode}` }
      : { kind: KINDS[job.state] ?? "lost", word: job.state === "exited" ? "done" : job.state };

/** @param {{path: string[]}} props */
function Jobs({ path }) {
  useStore();
  const { answer, error, again } = useAnswer(() => call("/job/query", {}).then((found) => found.jobs), []);
  const [wanted, want] = useState("");
  const [changes, setChanges] = useState(/** @type {Record<string, any>} */ ({}));
  useLayoutEffect(
    () =>
      on("job", ({ kind, id = "", change, state, exitCode, time }) => {
        if (kind === "stream") setChanges({});
        // What it waits for is in the answer alone.
        if (change === "waiting") setChanges(({ [id]: _, ...others }) => others);
        if (kind === "stream" || change === "started" || change === "waiting") return again();
        setChanges((before) => ({
          ...before,
          [id]:
            change === "removed"
              ? null
              : { state, exitCode, ended: state === "running" ? null : time, waiting: undefined },
        }));
      }),
    [],
  );
  const all = answer
    ?.map((/** @type {any} */ job) =>
      changes[job.job] === undefined ? job : changes[job.job] && { ...job, ...changes[job.job] },
    )
    .filter(Boolean);
  const words = fold(wanted).split(/\s+/u);
  const jobs = all?.reverse().filter((/** @type {any} */ job) => {
    const said = fold([job.name, commandOf(job), job.state, nameOf(job.connection)].join(" "));
    return words.every((word) => said.includes(word));
  });
  useTick(1, Boolean(jobs?.some(isUnderWay)));
  const begin =
    can("job.start", "shell.start") &&
    html`<button class="primary" onClick=${doing(() => start())}>Start a job</button>`;
  return html`<${Listing} view="jobs" title="Jobs" items=${jobs} error=${error} again=${again} reading="Reading the jobs" keyOf=${(/** @type {any} */ job) => job.job}
    one=${all?.find((/** @type {any} */ job) => job.job === path[0])} details=${(/** @type {any} */ job) => html`<${Details} job=${job} />`}
    tools=${all?.length > 0 && html`<input type="search" class="find" aria-label="Search jobs" placeholder="Search" value=${wanted} onInput=${(/** @type {any} */ event) => want(event.target.value)} />${begin}`}
    columns=${[["State", "9rem"], ["Command", "minmax(0, 2fr)"], ["On", "minmax(0, 1fr)"], ["Took", "6rem"], ["Started", "6rem"]]}
    row=${(/** @type {any} */ job, /** @type {boolean} */ isNarrow) => {
      const state = html`<${State} ...${stateOf(job)} />`;
      const gist = html`<span class=${job.name ? "" : "mono"}>${text(job.name ?? commandOf(job))}</span>`;
      return isNarrow
        ? html`${gist}${state}`
        : html`${state}${gist}<span>${text(nameOf(job.connection))}</span><span class="number">${took(job.created, job.ended)}</span><span class="note">${ago(job.created)}</span>`;
    }}
    empty=${all?.length ? html`<${Empty} title="No job is like that" />` : html`<${Empty} title="No jobs yet"><p>A job is a command that goes on when this page, the daemon or the connection ends. Its output is kept on its machine.</p><p>${begin}</p><//>`} />`;
}

/** What a job prints, from its last part on, until it has ended. @param {string} job */
function useOutput(job) {
  const [printed, setPrinted] = useState(
    /** @type {{parts: [string, string][], cut: boolean, error?: Error, dropped?: boolean}} */ ({
      parts: [],
      cut: false,
    }),
  );
  const [turn, again] = useState(0);
  useEffect(() => {
    const ended = new AbortController();
    const follow = async () => {
      const ask = (/** @type {object} */ more) => call("/job/output", { job, ...more }, { signal: ended.signal });
      const sizes = await ask({ maxBytes: 16 });
      const at = { stdout: Math.max(0, sizes.stdout.size - MOST), stderr: Math.max(0, sizes.stderr.size - MOST) };
      setPrinted({ parts: [], cut: at.stdout + at.stderr > 0 });
      for (;;) {
        const answer = await ask({ ...at, maxBytes: MOST, wait: WAIT_SECONDS });
        for (const name of /** @type {const} */ (["stdout", "stderr"])) {
          const { data, next, size } = answer[name];
          // What is printed faster than it can be read is left out: a person wants the end.
          const isBehind = size - next > MOST;
          at[name] = isBehind ? size - MOST : next;
          if (isBehind)
            setPrinted((before) => ({ ...before, parts: before.parts.filter(([of]) => of !== name), cut: true }));
          else if (data) setPrinted((before) => added(before, name, plain(data)));
        }
        if (answer.truncated) setPrinted((before) => ({ ...before, dropped: true }));
        if (answer.stdout.eof && answer.stderr.eof) return;
      }
    };
    follow().catch((error) => ended.signal.aborted || setPrinted((before) => ({ ...before, error })));
    return () => ended.abort();
  }, [job, turn]);
  return { ...printed, again: () => again(turn + 1) };
}

/** @template {{parts: [string, string][], cut: boolean}} T @param {T} before @param {string} name @param {string} data @returns {T} */
function added(before, name, data) {
  const parts = [...before.parts, /** @type {[string, string]} */ ([name, data])];
  // Each stream has its own end: the other one may be read later, and is as much.
  let size = parts.reduce((sum, [of, part]) => sum + (of === name ? part.length : 0), 0);
  let { cut } = before;
  while (size > MOST && parts.some(([of], at) => of === name && at < parts.length - 1)) {
    const [[, gone]] = parts.splice(
      parts.findIndex(([of]) => of === name),
      1,
    );
    size -= gone.length;
    cut = true;
  }
  return { ...before, parts, cut };
}

/** @param {{job: any}} props */
function Details({ job }) {
  const { parts, cut, dropped, error, again } = useOutput(job.job);
  const isOn = isUnderWay(job);
  const kill = (/** @type {string} */ signal) => doing(() => call("/job/kill", { job: job.job, signal }));
  const remove = doing(async () => {
    if (
      await confirm({
        title: "Remove this job?",
        text: "Its output on its machine is removed, too. This cannot be undone.",
        yes: "Remove",
        danger: true,
      })
    ) {
      await call("/job/remove", { job: job.job });
      go("#/jobs");
    }
  });
  const send = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const field = /** @type {HTMLInputElement} */ (
      /** @type {HTMLFormElement} */ (event.currentTarget).elements.namedItem("line")
    );
    const data = field.value;
    // At once: what is typed until the answer comes is the next line.
    field.value = "";
    call("/job/input", { job: job.job, data: `${data}\n` }).catch((error) => {
      field.value ||= data;
      failed(error);
    });
  };
  return html`
    <header><div><h2>${text(job.name ?? "Job")}</h2><p class="note">on ${text(nameOf(job.connection))}, ${exact(job.created)}</p></div></header>
    <pre class="printed">${lines(commandOf(job))}</pre>
    <p class="does"><${State} ...${stateOf(job)} /> <span class="note">${took(job.created, job.ended)}${job.stale ? ", as last seen" : ""}</span>
      ${isOn && can("job.kill") && html`<button onClick=${kill("TERM")}>End it</button><button onClick=${kill("KILL")}>Kill it</button>`}
      ${!isOn && can("job.remove") && html`<button onClick=${remove}>Remove</button>`}</p>
    ${error && html`<${Fault} error=${error} again=${again} />`}
    ${cut && html`<p class="note">Only the end of the output is shown.</p>`}
    <${Printed} label="Output">${parts.map(([name, part]) => (name === "stderr" ? html`<span class="err">${part}</span>` : part))}${!parts.length && html`<span class="note">${isOn ? "Nothing printed yet" : "It printed nothing"}</span>`}<//>
    ${dropped && html`<p class="note">The rest was dropped by the daemon's limit.</p>`}
    <div class=${job.waiting ? "asks" : ""}>
    ${job.waiting && html`<p role="status">It waits for input${job.waiting.lines.length > 0 && html`: <span class="mono">${text(job.waiting.lines.at(-1))}</span>`}</p>`}
    ${
      isOn &&
      job.stdinOpen &&
      can("job.input") &&
      html`<form class="does" onSubmit=${send}><input name="line" type=${job.waiting?.secret ? "password" : "text"} class="mono find" aria-label="Input" placeholder="A line of input" autocomplete="off" /><button>Send</button>
      <button type="button" class="quiet" onClick=${doing(() => call("/job/input", { job: job.job, eof: true }))}>End the input</button></form>`
    }</div>
    <${Facts} facts=${[["Ended", job.ended && exact(job.ended)], ["Kept for", `${Math.round(job.keep / 3600)} hours after its end`], ["Id", html`<code>${job.job}</code>`]]} />
  `;
}

/** @param {string} [connection] */
async function start(connection) {
  await form({
    title: "Start a job",
    fields: [
      { name: "on", label: "On the machine", value: connection ? nameOf(connection) : "", required: true },
      { name: "command", label: "Command", required: true },
      { name: "name", label: "Name", hint: "To find it by; may be left out." },
      { name: "stdin", label: "Send it lines of input later", type: "checkbox", value: "open" },
    ],
    yes: "Start",
    work: async ({ on: wanted, command, name, stdin }) => {
      const { exact, rest } = search(
        wanted,
        [...store.connections.values()].filter((one) => one.usageCategory === "shell"),
      );
      const [found, ...others] = exact.length ? exact : rest;
      if (!found || others.length)
        throw new Error(
          found ? `${others.length + 1} machines are called so: write more of the name.` : "No machine is called so.",
        );
      // A job runs with the directory and variables of a shell.
      await call("/shell/start", { connection: found.connection });
      const { job, warning } = await call("/job/start", {
        connection: found.connection,
        command,
        stdin,
        ...(name && { name }),
      });
      if (warning) toast(text(warning));
      go(address("jobs", job));
    },
  });
}

register({ name: "Start a job", actions: ["job.start", "shell.start"], run: () => start() });
register({ name: "Start a job", on: "connection", actions: ["job.start", "shell.start"], run: start });

export default { component: Jobs };
