// What was done: the audit log, what each token did, and the changes of files that can be taken back.

import { ApiError, call } from "../core/api.js";
import { address, go, register } from "../core/navigate.js";
import { can, nameOf } from "../core/store.js";
import {
  ago,
  confirm,
  counted,
  doing,
  Empty,
  exact,
  Fault,
  html,
  lines,
  State,
  text,
  toast,
  useAnswer,
  useEffect,
  useRef,
  useState,
  Waiting,
} from "../core/ui.js";
import { bytes, Details, Filters, Listing } from "./listing.js";

// The audit log: who did what, where and when; and whether nobody has changed it.

const SHORT_TIME = new Intl.DateTimeFormat("en-GB", {
  day: "2-digit",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});

/** A time for a column: without its year. @param {string} time */
const brief = (time) => SHORT_TIME.format(new Date(time));

/** The moment that an address names, for the API, which refuses what is none. @param {string} [said] */
const momentOf = (said) => (said && !Number.isNaN(Date.parse(said)) ? new Date(said).toISOString() : said);

const PAGE = 200;
const FILTERS = [
  ["connection", "Connection", "name or id"],
  ["action", "Action", "shell.exec"],
  ["token", "Token", "name or id"],
  ["caller", "Client", "name"],
  ["code", "Refused with", "policy_denied"],
];

/** @param {any} entry */
function subjectOf(entry) {
  const named =
    entry.connectionName ??
    entry.connectionNames?.join(", ") ??
    entry.categoryName ??
    entry.categoryNames?.join(", ") ??
    entry.name ??
    entry.subject ??
    entry.user;
  return [named, entry.command ?? entry.file ?? entry.saved].filter(Boolean).join(": ");
}

/** @param {any} entry */
function outcomeOf({ event, code, status, exitCode }) {
  if (event) return { kind: "off", word: event };
  if (code) return { kind: status === 403 ? "lost" : "busy", word: code };
  return exitCode ? { kind: "busy", word: `exit ${exitCode}` } : { kind: "up", word: "done" };
}

/** @type {Column<any>[]} */
const ENTRY_COLUMNS = [
  ["Time", "9rem", ({ time }) => brief(time), "note number"],
  ["Action", "minmax(0, 10rem)", (entry) => entry.action ?? entry.event],
  ["About", 2, subjectOf],
  ["By", 1, ({ tokenName, token, client }) => tokenName ?? token ?? (client && `owner, ${client}`), "note"],
  ["Outcome", "minmax(0, 9rem)", outcomeOf],
  ["Took", "5rem", ({ ms }) => (ms === undefined ? "" : `${Math.round(ms)} ms`), "note number"],
];

/** @param {any} entry */
const narrowEntry = (entry) => html`
  <span>${text(entry.action ?? entry.event)} <span class="note">${text(subjectOf(entry))}</span></span>
  <span class="note">${ago(entry.time)}</span><${State} ...${outcomeOf(entry)} />
`;

/**
 * The entries that a request finds, newest first: `more` reads on, and `again` begins anew.
 * @param {object} request @param {string} key by which requests differ
 */
function useEntries(request, key) {
  const [entries, setEntries] = useState(/** @type {any[]} */ ([]));
  const [error, setError] = useState(/** @type {Error | undefined} */ (undefined));
  const [isDone, setDone] = useState(false);
  /** Where to go on: undefined while nothing was read, null at the end. @type {{current: number | null | undefined}} */
  const next = useRef(undefined);
  const turn = useRef(0);
  const isReading = useRef(false);
  const more = async () => {
    if (isReading.current || next.current === null) return;
    const own = turn.current;
    isReading.current = true;
    try {
      const page = { limit: PAGE, ...(next.current && { before: next.current }) };
      const answer = await call("/audit/query", { ...request, ...page }, { quiet: true });
      if (own !== turn.current) return;
      next.current = answer.next;
      setEntries((before) => [...before, ...answer.entries]);
      setDone(answer.next === null);
      setError(undefined);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (own === turn.current) setError(error);
    } finally {
      if (own === turn.current) isReading.current = false;
    }
  };
  const again = () => {
    turn.current += 1;
    isReading.current = false;
    next.current = undefined;
    setEntries([]);
    setDone(false);
    more();
  };
  useEffect(again, [key]);
  // An answer may have fewer entries than asked for, even none, where few match in a long log.
  useEffect(() => {
    if (!isDone && !error && entries.length < PAGE && next.current) more();
  }, [entries, isDone]);
  return { items: entries.length || isDone ? entries : undefined, error, more, again };
}

/** @param {{path: string[], query: URLSearchParams}} props */
function Audit({ path, query }) {
  const { since, ...asked } = Object.fromEntries([...query].filter(([, value]) => value));
  const { items, error, more, again } = useEntries({ ...asked, since: momentOf(since) }, `${query}`);
  /** @param {any} event */
  const filter = (event) => {
    event.preventDefault();
    const given = [...new FormData(event.currentTarget)].map(([name, value]) => [name, String(value).trim()]);
    const kept = new URLSearchParams(given.filter(([, value]) => value));
    go(`#/audit${kept.size ? `?${kept}` : ""}`);
  };
  return html`<${Listing} view="audit" id="seq" ...${{ path, items, error, again }} columns=${ENTRY_COLUMNS} narrow=${narrowEntry} onEnd=${more} suffix=${query.size ? `?${query}` : ""}
    tools=${html`<button onClick=${again}>Read again</button>${can("audit.verify") && html`<button onClick=${doing(verify)}>Verify</button>`}`}
    filters=${html`<${Filters} label="Filter" isOpen=${query.size > 0}><form class="filters" role="search" onSubmit=${filter} key=${`${query}`}>
      ${FILTERS.map(([name, label, hint]) => html`<label key=${name}>${label}<input name=${name} placeholder=${hint} defaultValue=${query.get(name) ?? ""} spellcheck=${false} /></label>`)}
      <label>Since<input type="datetime-local" name="since" defaultValue=${since ?? ""} /></label>
      <button>Filter</button>${query.size > 0 && html`<button type="button" class="quiet" onClick=${() => go("#/audit")}>All</button>`}
    </form><//>`}
    details=${(
      one,
    ) => html`<${Details} title=${one.action ?? one.event} note=${`Entry ${one.seq}, ${exact(one.time)}`} state=${outcomeOf(one)}
      facts=${Object.entries(one).map(([name, value]) => [text(name), html`<span class="mono">${value !== null && typeof value === "object" ? text(JSON.stringify(value)) : lines(value)}</span>`])} />`}
    empty=${["No entry is like that", "The log has an entry for each request that changes or runs something."]} />`;
}

async function verify() {
  const { sound, number, entries, first, last, anchored, faults, remarks, logs } = await call("/audit/verify");
  await confirm({
    title: sound ? "The log is complete and unchanged" : `${counted(number, "fault")} found`,
    text: html`
      <p>${counted(entries, "entry", "entries")}${first === null ? "" : `, number ${first} to ${last}`}.${anchored === null ? "" : ` The vault knows of entry ${anchored}.`}</p>
      ${faults.length > 0 && html`<table><caption>Faults</caption><tbody>${faults.map((one, index) => html`<tr key=${index}><td>${text(one.kind)}</td><td>${text(one.message)}</td></tr>`)}</tbody></table>`}
      ${remarks.map((one) => html`<p class="note">${text(one)}</p>`)}
      <table><caption>Logs of this vault</caption><tbody>${logs.map((log) => html`<tr key=${log.trail}><td>${text(log.host)}</td><td class="mono">${text(log.directory)}</td><td>${text(log.state)}</td></tr>`)}</tbody></table>
    `,
    yes: "Close",
    no: "",
  });
}

register({ name: "Verify the audit log", actions: ["audit.verify"], run: verify });

// A token's record: what it did, step by step, with what jobs and terminals printed, and the files that it changed.

/** @param {{path: string[]}} props */
function Record({ path: [token = "", since] }) {
  const { answer, error, isOld, again } = useAnswer(
    async () => (token ? call("/audit/record", { token, since: momentOf(since) }, { quiet: true }) : undefined),
    [token, since],
  );
  const steps = isOld ? undefined : answer?.steps;
  /** @param {SubmitEvent} event */
  const open = (event) => {
    event.preventDefault();
    const given = new FormData(/** @type {HTMLFormElement} */ (event.currentTarget));
    const [name, from] = ["token", "since"].map((member) => String(given.get(member) ?? "").trim());
    go(address("record", name, ...(from ? [from] : [])));
  };
  return html`
    <div class="view">
      <header><h1>Record</h1>${steps && html`<button onClick=${again}>Read again</button>`}</header>
      <form class="filters" role="search" onSubmit=${open} key=${[token, since].join(" ")}>
        <label>Token<input name="token" required placeholder="name or id" defaultValue=${token} spellcheck=${false} /></label>
        <label>Since<input type="datetime-local" name="since" defaultValue=${since ?? ""} /></label>
        <button>Show</button>
      </form>
      ${error && html`<${Fault} error=${error} again=${again} />`}
      ${!token && html`<${Empty} title="Whose record?"><p>Name a token to see what it did: commands and what they printed, approvals, changed files.</p><//>`}
      ${token && !steps && !error && html`<${Waiting} reason="Reading the log and what was printed" />`}
      ${steps && !steps.length && html`<${Empty} title="It did nothing in this time"><p>Requests that only look at what there is are in the audit log.</p><//>`}
      ${
        steps &&
        steps.length > 0 &&
        html`<div class="scroll steps"><p class="note">${counted(steps.length, "step")}${answer?.complete ? "" : ", the newest ones"}. As one file: <code>connmgr audit export --token ${text(token)}</code></p>
        ${steps.map((step) => html`<${Told} key=${step.seq} step=${step} />`)}</div>`
      }
    </div>
  `;
}

/** @param {{step: Step}} props */
function Told({ step }) {
  const state = step.code
    ? { kind: "lost", word: step.code }
    : step.exitCode
      ? { kind: "busy", word: `exit ${step.exitCode}` }
      : { kind: "up", word: "done" };
  return html`
    <section>
      <h2>${text(step.action)} <span class="note">${text(step.where.join(", "))}, <time title=${exact(step.at)}>${ago(step.at)}</time></span></h2>
      <p><${State} ...${state} />
        ${step.approval && html` <span class="note">approved${step.decidedBy ? ` by ${text(step.decidedBy)}` : ""}</span>`}
        ${step.changes.map((id, index, all) => html` <a key=${id} href=${address("changes", id)}>the file before${all.length > 1 && ` (${index + 1} of ${all.length})`}</a>`)}
        ${step.terminal && html` <a href=${address("recordings", step.terminal)}>the recording</a>`}</p>
      ${step.what && html`<pre class="printed">${lines(step.what)}</pre>`}
      ${[step.stdout, step.stderr].map((said, index) => said && html`<pre key=${index} class="printed">${lines(said)}</pre>`)}
      ${step.notShown && html`<p class="note">${text(step.notShown)}</p>`}
    </section>
  `;
}

// Changes: what tokens have changed in files, and putting it back where nobody else has changed it since.

const WORDS = /** @type {Record<string, string>} */ ({
  "fs.attributes": "mode or owner",
  "fs.mkdir": "new directory",
  "fs.move": "moved",
  "fs.remove": "removed",
  "fs.write": "written",
  "undo.restore": "put back",
});

const pathOf = (/** @type {{path: any}} */ { path }) =>
  text(path.base64 === undefined ? path : `base64:${path.base64}`);

/** @param {Change} one */
function stateOfChange(one) {
  if (one.undoneBy !== null) return { kind: "off", word: "undone" };
  if (one.notKept) return { kind: "lost", word: "not kept" };
  return one.after ? { kind: "up", word: "kept" } : { kind: "busy", word: "unknown" };
}

/** @param {Change["before"] | null} state */
const said = (state) =>
  state &&
  (state.kind === "absent"
    ? "nothing"
    : [state.kind, state.kind === "file" && state.size !== null && bytes(state.size ?? 0), state.mode]
        .filter(Boolean)
        .join(", "));

/** Puts back what was there before a change; that is a change, too, by which it is undone. @param {Change} one @param {() => void} again */
const restore =
  (one, again) =>
  async (change = one.change) => {
    const [done] = (await call("/undo/restore", { connection: one.connection, changes: [change] })).results;
    const { state, message, restoredAs } = done;
    toast(`${pathOf(one)}: ${text(message ?? state)}`, {
      isFault: state !== "restored",
      undo: restoredAs === null ? undefined : () => restore(one, again)(restoredAs),
    });
    again();
  };

/** @type {Column<Change>[]} */
const CHANGE_COLUMNS = [
  ["State", "7rem", stateOfChange],
  ["By", 1, (one) => one.by],
  ["File", 2.5, pathOf, "mono"],
  ["What", "8rem", ({ action }) => WORDS[action] ?? action],
  ["On", 1.5, (one) => nameOf(one.connection)],
  ["When", "6rem", (one) => ago(one.at), "note"],
];

/** @param {{path: string[]}} props */
function Changes({ path }) {
  const { answer, error, again } = useAnswer(() => call("/undo/query", {}, { quiet: true }), []);
  const items = answer?.changes;
  const link = (/** @type {string | null} */ change) =>
    change && html`<a href=${address("changes", change)}>${change}</a>`;
  return html`<${Listing} view="changes" id="change" ...${{ path, items, error, again }} columns=${CHANGE_COLUMNS} narrow=${[2, 0]}
    tools=${items && items.length > 0 && html`<span class="note">${counted(items.length, "change")}</span>`}
    details=${(/** @type {Change} */ one) => html`
      <${Details} title=${pathOf(one)} note=${exact(one.at)} state=${stateOfChange(one)} deeds=${[!one.notKept && ["Put back", "undo.restore", () => restore(one, again)()]]}
        facts=${[
          ["On", html`<a href=${address("hub", one.connection)}>${text(nameOf(one.connection))}</a>`],
          ["By", text(one.by)],
          ["What", text(WORDS[one.action] ?? one.action)],
          ["Before", said(one.before)],
          ["Afterwards", said(one.after) ?? "not known"],
          ["Undone by", link(one.undoneBy)],
          ["Has undone", link(one.undoes)],
        ]}>${one.notKept && html`<p class="fault">It cannot be put back: ${text(one.notKept)}.</p>`}<//>`}
    empty=${["No token has changed a file", "What a token changes by requests for files is kept before, and listed here."]} />`;
}

export default {
  audit: { component: Audit },
  record: { component: Record },
  changes: { component: Changes },
};
