// Jobs: commands that outlive the page and the daemon; their states, and their output as it grows.

import { call } from "../core/api.js";
import { form } from "../core/forms.js";
import { fold, search } from "../core/names.js";
import { address, go, register } from "../core/navigate.js";
import { can, nameOf, store, useStore } from "../core/store.js";
import {
  ago,
  doing,
  exact,
  Fault,
  failed,
  html,
  lines,
  text,
  toast,
  useAnswer,
  useEffect,
  useState,
} from "../core/ui.js";
import { Details, Listing, Printed, plain, removal, took, useTick } from "./listing.js";

const KINDS = /** @type {Record<string, string>} */ ({ starting: "busy", running: "busy", exited: "up" });
const WAIT_SECONDS = 25;
/** Bytes of output that are kept in the page, at its end. */
const MOST = 200_000;

const isUnderWay = (/** @type {JobInfo} */ job) => job.state === "starting" || job.state === "running";
/** @param {Omit<JobInfo, "command"> & {command: any}} job */
const commandOf = ({ locked, command }) =>
  locked ? "(locked)" : Array.isArray(command) ? command.join(" ") : (command ?? "");
/** @param {JobInfo} job */
const stateOf = (job) =>
  job.waiting
    ? { kind: "busy", word: "waits for input" }
    : job.exitCode
      ? { kind: "lost", word: `${job.state === "exited" ? "exit" : job.state} ${job.exitCode}` }
      : { kind: KINDS[job.state] ?? "lost", word: job.state === "exited" ? "done" : job.state };

/** @type {Column<JobInfo>[]} */
const COLUMNS = [
  ["State", "9rem", stateOf],
  ["Command", 2, (job) => (job.name ? text(job.name) : html`<span class="mono">${text(commandOf(job))}</span>`)],
  ["On", 1, (job) => nameOf(job.connection)],
  ["Took", "6rem", (job) => took(job.created, job.ended), "number"],
  ["Started", "6rem", (job) => ago(job.created), "note"],
];

/** @param {{path: string[]}} props */
function Jobs({ path }) {
  useStore();
  const { answer, error, again } = useAnswer(
    async () => (await call("/job/query", {}, { quiet: true })).jobs.reverse(),
    [],
    { kind: "job" },
  );
  const [wanted, want] = useState("");
  const words = fold(wanted).split(/\s+/u);
  const jobs = answer?.filter((job) => {
    const said = fold([job.name, commandOf(job), job.state, nameOf(job.connection)].join(" "));
    return words.every((word) => said.includes(word));
  });
  useTick(1, Boolean(jobs?.some(isUnderWay)));
  const isAny = Boolean(answer?.length);
  return html`<${Listing} view="jobs" id="job" ...${{ path, error, again }} items=${jobs} columns=${COLUMNS} begin=${START} isFound=${isAny}
    one=${answer?.find(({ job }) => job === path[0])} details=${(job) => html`<${Job} ...${{ job, again }} />`}
    tools=${isAny && html`<input type="search" class="find" aria-label="Search jobs" placeholder="Search" value=${wanted} onInput=${(event) => want(event.target.value)} />`}
    empty=${isAny ? ["No job is like that"] : ["No jobs yet", "A job is a command that goes on when this page, the daemon or the connection ends. Its output is kept on its machine."]} />`;
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
    const first = parts.findIndex(([of]) => of === name);
    size -= parts[first][1].length;
    parts.splice(first, 1);
    cut = true;
  }
  return { ...before, parts, cut };
}

/** @param {{job: JobInfo, again: () => void}} props */
function Job({ job, again }) {
  const { parts, cut, dropped, error, again: followAgain } = useOutput(job.job);
  const isOn = isUnderWay(job);
  const kill = (/** @type {string} */ signal) => () => call("/job/kill", { job: job.job, signal });
  const send = (/** @type {any} */ event) => {
    event.preventDefault();
    const field = event.currentTarget.elements.line;
    const data = field.value;
    // At once: what is typed until the answer comes is the next line.
    field.value = "";
    call("/job/input", { job: job.job, data: `${data}\n` }).catch((error) => {
      field.value ||= data;
      failed(error);
    });
  };
  return html`<${Details} title=${job.name ?? "Job"} note=${`on ${text(nameOf(job.connection))}, ${exact(job.created)}`} state=${stateOf(job)}
    deeds=${[isOn && ["End it", "job.kill", kill("TERM")], isOn && ["Kill it", "job.kill", kill("KILL")], !isOn && removal("jobs", "job", { job: job.job }, job.name ?? "The job", "so will its output on its machine", again)]}
    facts=${[
      ["Took", `${took(job.created, job.ended)}${job.stale ? ", as last seen" : ""}`],
      ["Ended", job.ended && exact(job.ended)],
      ["Kept for", `${Math.round(job.keep / 3600)} hours after its end`],
      ["Id", html`<code>${job.job}</code>`],
    ]}>
    <pre class="printed">${lines(commandOf(job))}</pre>
    ${error && html`<${Fault} error=${error} again=${followAgain} />`}
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
  <//>`;
}

/** @param {string} [connection] */
async function start(connection) {
  await form({
    title: "Start a job",
    required: ["on", "command"],
    value: connection ? { on: nameOf(connection) } : {},
    properties: {
      on: { title: "On the machine" },
      command: {},
      name: { description: "To find it by; may be left out." },
      isOpen: { title: "Send it lines of input later", type: "boolean", default: false },
    },
    yes: "Start",
    work: async ({ on, command, name, isOpen }) => {
      const machines = [...store.connections.values()].filter((one) => one.usageCategory === "shell");
      const { exact, rest } = search(on, machines);
      const [found, ...others] = exact.length ? exact : rest;
      if (!found) throw new Error("No machine is called so.");
      if (others.length) throw new Error(`${others.length + 1} machines are called so: write more of the name.`);
      // A job runs with the directory and variables of a shell.
      const target = { connection: found.connection };
      await call("/shell/start", target);
      const { job, warning } = await call("/job/start", {
        ...target,
        command,
        name,
        stdin: isOpen ? "open" : undefined,
      });
      if (warning) toast(text(warning));
      go(address("jobs", job));
    },
  });
}

/** @type {Command} */
const START = { name: "Start a job", actions: ["job.start", "shell.start"], run: () => start() };
register(START);
register({ ...START, on: "connection", run: start });

export default { jobs: { component: Jobs } };
