// What goes on without this page: jobs, and tunnels.

import { call } from "../core/api.js";
import { form } from "../core/forms.js";
import { fold, search } from "../core/names.js";
import { address, go, register } from "../core/navigate.js";
import { can, infoOf, machines, nameOf, refresh, store, useStore } from "../core/store.js";
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
import { described, Labels } from "./connection.js";
import { bytes, Details, Listing, Printed, plain, removal, took, useTick } from "./listing.js";

// Jobs: commands that outlive the page and the daemon; their states, and their output as it grows.

const JOB_KINDS = /** @type {Record<string, string>} */ ({ starting: "busy", running: "busy", exited: "up" });
const WAIT_SECONDS = 25;
/** Bytes of output that are kept in the page, at its end. */
const MOST = 200_000;

const isUnderWay = (/** @type {JobInfo} */ job) => job.state === "starting" || job.state === "running";
/** @param {Omit<JobInfo, "command"> & {command: any}} job */
const commandOf = ({ locked, command }) =>
  locked ? "(locked)" : Array.isArray(command) ? command.join(" ") : (command ?? "");
/** @param {JobInfo} job */
const stateOfJob = (job) =>
  job.waiting
    ? { kind: "busy", word: "waits for input" }
    : job.exitCode
      ? { kind: "lost", word: `${job.state === "exited" ? "exit" : job.state} ${job.exitCode}` }
      : { kind: JOB_KINDS[job.state] ?? "lost", word: job.state === "exited" ? "done" : job.state };

/** @type {Column<JobInfo>[]} */
const JOB_COLUMNS = [
  ["State", "9rem", stateOfJob],
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
  return html`<${Listing} view="jobs" id="job" ...${{ path, error, again }} items=${jobs} columns=${JOB_COLUMNS} begin=${START} isFound=${isAny}
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
  return html`<${Details} title=${job.name ?? "Job"} note=${`on ${text(nameOf(job.connection))}, ${exact(job.created)}`} state=${stateOfJob(job)}
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
      const { exact, rest } = search(on, machines());
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

// Tunnels: which ports lead where, what state they are in, and the switch.

const TUNNEL_KINDS = /** @type {Record<string, string>} */ ({ stopped: "off", open: "up", failed: "lost" });
const stateOfTunnel = (/** @type {Tunnel} */ { state }) => ({ kind: TUNNEL_KINDS[state] ?? "busy", word: state });

/** Ports of web servers; those at others have the label `web`. */
const WEB = /** @type {Record<number, string>} */ ({ 80: "http", 8080: "http", 443: "https", 8443: "https" });

/** How a browser reaches what a tunnel leads to; empty where that is nothing for a browser. @param {ConnectionInfo} info */
const schemeOf = ({ labels = {}, rawData }) =>
  labels.web === undefined ? (WEB[rawData.remotePort] ?? "") : /^https?$/.test(labels.web) ? labels.web : "";

/** The port of a tunnel on this machine, or an empty text. @param {Tunnel} one */
const portOf = (one) =>
  one.state === "open" && store.connections.get(one.connection)?.type !== "sshRemoteTunnel"
    ? (/^(?:127\.0\.0\.1|localhost|\[::1\]):\d+$/.exec(one.address ?? "")?.[0] ?? "")
    : "";

/** @type {Command} */
const ADD = {
  name: "Add a tunnel",
  actions: ["connection.add"],
  run: async () => {
    const found = [...store.types.values()].find((one) => one.usageCategory === "tunnel");
    const { addConnection } = await import("./hub-add.js");
    return addConnection("", found?.type);
  },
};
register(ADD);

/** @type {Column<Tunnel>[]} */
const TUNNEL_COLUMNS = [
  ["State", "7rem", stateOfTunnel],
  ["Name", 1.5, (one) => nameOf(one.connection)],
  ["Listens at", 1, (one) => one.address, "mono"],
  ["Streams", "5rem", (one) => one.streams || "", "number"],
  ["Since", "6rem", (one) => ago(one.since), "note"],
];

/** @param {{path: string[]}} props */
function Tunnels({ path }) {
  const { tunnels } = useStore();
  const { error, again, answer } = useAnswer(() => refresh("tunnels").then(() => "read"), []);
  const items =
    answer && [...tunnels.values()].sort((one, other) => (nameOf(one.connection) < nameOf(other.connection) ? -1 : 1));
  return html`<${Listing} view="tunnels" id="connection" ...${{ path, items, error, again }} columns=${TUNNEL_COLUMNS} begin=${ADD}
    details=${(one) => html`<${TunnelDetails} one=${one} />`}
    empty=${["No tunnels yet", "A tunnel makes a port here lead to a service that only a machine can reach, such as its database, and reopens when its link breaks."]} />`;
}

/** @param {{one: Tunnel}} props */
function TunnelDetails({ one }) {
  const { connection } = one;
  const info = infoOf(connection);
  const scheme = info && schemeOf(info);
  const port = portOf(one);
  const isStopped = one.state === "stopped";
  const toggle = async () => {
    await call("/connection/toggle", { connection, state: isStopped });
    await refresh("tunnels");
  };
  return html`<${Details} title=${nameOf(connection)} state=${stateOfTunnel(one)} deeds=${[[isStopped ? "Open" : "Close", "connection.toggle", toggle]]}
    links=${port && scheme && html`<a class="button" href=${`${scheme}://${port}/`} target="_blank" rel="noopener noreferrer">Open in a new tab</a>`}
    facts=${[
      ["Listens at", one.address && html`<code>${text(one.address)}</code>`],
      ["Since", ago(one.since)],
      ...(info ? described(info.rawData, store.types.get(info.type)?.schema) : []).map(({ name, said }) => [
        name,
        text(said),
      ]),
      ["Labels", html`<${Labels} connection=${connection} />`],
      ["Next attempt", one.nextRetry && html`${ago(one.nextRetry)}, after ${one.retries}`],
      ["Dialled by", one.relay && text(one.relay)],
      ["Streams", `${one.streams}${one.waiting ? `, ${one.waiting} wait` : ""}`],
      ["Received", bytes(one.bytesIn)],
      ["Sent", bytes(one.bytesOut)],
      ["Connection", html`<a href=${address("hub", connection)}>in the hub</a>`],
    ]}>
    ${port && scheme === "" && html`<p class="note">Not known as a web server: set the label <code>web=http</code> or <code>web=https</code> if it is one.</p>`}
    ${one.lastError && html`<p class="fault">${text(one.lastError.message)}</p>`}
  <//>`;
}

export default { jobs: { component: Jobs }, tunnels: { component: Tunnels } };
