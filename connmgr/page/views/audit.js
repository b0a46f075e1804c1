// The audit log: who did what, where and when; and whether nobody has changed it.

import { ApiError, call } from "../core/api.js";
import { register } from "../core/palette.js";
import { address, go } from "../core/router.js";
import { can } from "../core/store.js";
import {
  ago,
  brief,
  counted,
  doing,
  Empty,
  exact,
  Fault,
  hooks,
  html,
  lines,
  openDialog,
  Rows,
  State,
  text,
  useNarrow,
  Waiting,
} from "../core/ui.js";

const { useEffect, useRef, useState } = hooks;

const PAGE = 200;
const FILTERS = /** @type {[string, string, string][]} */ ([
  ["connection", "Connection", "name or id"],
  ["action", "Action", "shell.exec"],
  ["token", "Token", "name or id"],
  ["caller", "Client", "name"],
  ["code", "Refused with", "policy_denied"],
]);

/** What an entry is about, in a few words. @param {any} entry */
function subjectOf(entry) {
  const named =
    entry.connectionName ??
    entry.connectionNames?.join(", ") ??
    entry.categoryName ??
    entry.categoryNames?.join(", ") ??
    entry.name ??
    entry.subject ??
    entry.user ??
    "";
  return [named, entry.command ?? entry.file ?? entry.saved ?? ""].filter(Boolean).join(": ");
}

/** @param {any} entry */
function outcomeOf(entry) {
  if (entry.event) return { kind: "off", word: entry.event };
  if (entry.code) return { kind: entry.status === 403 ? "lost" : "busy", word: entry.code };
  if (entry.exitCode) return { kind: "busy", word: `exit ${entry.exitCode}` };
  return { kind: "up", word: "done" };
}

/** @param {{path: string[], query: URLSearchParams}} props */
function Audit({ path, query }) {
  const isNarrow = useNarrow();
  const asked = FILTERS.map(([name]) => [name, query.get(name) ?? ""])
    .concat([["since", query.get("since") ?? ""]])
    .filter(([, value]) => value);
  const key = JSON.stringify(asked);
  const [entries, setEntries] = useState(/** @type {any[]} */ ([]));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isDone, setDone] = useState(false);
  /** Where to go on; undefined while nothing was read. */
  const next = useRef(/** @type {any} */ (undefined));
  const turn = useRef(0);
  const isReading = useRef(false);

  const read = async () => {
    if (isReading.current || next.current === null) return;
    const own = turn.current;
    isReading.current = true;
    try {
      const since = query.get("since");
      const request = {
        ...Object.fromEntries(asked),
        ...(since && { since: new Date(since).toISOString() }),
        limit: PAGE,
        ...(next.current && { before: next.current }),
      };
      const answer = await call("/audit/query", request, { quiet: true });
      if (own !== turn.current) return;
      next.current = answer.next;
      setEntries((before) => [...before, ...answer.entries]);
      setDone(answer.next === null);
      setError(null);
    } catch (error) {
      if (!(error instanceof ApiError || error instanceof RangeError)) throw error;
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
    read();
  };
  useEffect(again, [key]);
  // An answer may have fewer entries than asked for, even none, where few match in a long log.
  useEffect(() => {
    if (!isDone && !error && entries.length < PAGE && next.current) read();
  }, [entries, isDone]);

  /** @param {SubmitEvent} event */
  const filter = (event) => {
    event.preventDefault();
    const given = new URLSearchParams(
      [...new FormData(/** @type {HTMLFormElement} */ (event.currentTarget))]
        .map(([name, value]) => [name, String(value).trim()])
        .filter(([, value]) => value),
    );
    go(`#/audit${given.size ? `?${given}` : ""}`);
  };
  const suffix = query.size ? `?${query}` : "";
  const one = entries.find((entry) => String(entry.seq) === path[0]);
  /** @param {any} entry */
  const row = (entry) =>
    isNarrow
      ? html`<span class="name">${text(entry.action ?? entry.event)} <span class="note">${text(subjectOf(entry))}</span></span><span class="note">${ago(entry.time)}</span><${State} ...${outcomeOf(entry)} />`
      : html`<span class="note number">${brief(entry.time)}</span><span>${text(entry.action ?? "")}</span><span>${text(subjectOf(entry))}</span>
      <span class="note">${text(entry.tokenName ?? (entry.token ? entry.token : entry.client ? `owner, ${entry.client}` : ""))}</span><span><${State} ...${outcomeOf(entry)} /></span><span class="note number">${entry.ms === undefined ? "" : `${Math.round(entry.ms)} ms`}</span>`;
  const filters = html`
    <form class="filters" role="search" onSubmit=${filter} key=${key}>
        ${FILTERS.map(([name, label, hint]) => html`<label key=${name}>${label}<input name=${name} placeholder=${hint} value=${query.get(name) ?? ""} spellcheck=${false} /></label>`)}
        <label>Since<input type="datetime-local" name="since" value=${query.get("since") ?? ""} /></label>
        <button>Filter</button>${query.size > 0 && html`<button type="button" class="quiet" onClick=${() => go("#/audit")}>All</button>`}
      </form>
  `;
  return html`
    <div class=${`view table audit ${one ? "with-one" : ""}`} style=${{ "--columns": isNarrow ? "minmax(0, 1fr) auto" : "10rem minmax(0, 10rem) minmax(0, 2fr) minmax(0, 1fr) minmax(0, 9rem) 5rem" }}>
      <header><h1>Audit</h1><button onClick=${again}>Read again</button>${can("audit.verify") && html`<button onClick=${doing(verify)}>Verify</button>`}</header>
      ${isNarrow ? html`<details class="narrow" open=${query.size > 0}><summary>Filter</summary>${filters}</details>` : filters}
      <div class="split">
        <section class="aside-list">
          ${!isNarrow && entries.length > 0 && html`<div class="columns" aria-hidden="true"><span>Time</span><span>Action</span><span>About</span><span>By</span><span>Outcome</span><span class="number">Took</span></div>`}
          ${error && html`<${Fault} error=${error} again=${again} />`}
          ${!entries.length && !error && (isDone ? html`<${Empty} title="No entry is like that"><p>The log has an entry for each request that changes or runs something.</p><//>` : html`<${Waiting} reason="Searching the log" />`)}
          ${
            entries.length > 0 &&
            html`<${Rows} items=${entries} label="Entries" keyOf=${(/** @type {any} */ entry) => `${entry.trail ?? ""}${entry.seq}`} row=${row} onEnd=${read}
            classOf=${(/** @type {any} */ entry) => (entry === one ? "chosen" : "")}
            open=${(/** @type {any} */ entry) => go(entry === one ? `#/audit${suffix}` : `${address("audit", String(entry.seq))}${suffix}`)} />`
          }
        </section>
        ${
          one &&
          html`
          <aside class="details" aria-label=${`Entry ${one.seq}`}>
            <header><div><h2>${text(one.action ?? one.event)}</h2><p class="note">Entry ${one.seq}, ${exact(one.time)}</p></div><a class="button close" href=${`#/audit${suffix}`} aria-label="Close">×</a></header>
            <dl>${Object.entries(one).map(([name, value]) => html`<div key=${name}><dt>${text(name)}</dt><dd class="mono">${value !== null && typeof value === "object" ? text(JSON.stringify(value)) : lines(value)}</dd></div>`)}</dl>
          </aside>`
        }
      </div>
    </div>
  `;
}

async function verify() {
  const answer = await call("/audit/verify");
  await openDialog(
    { title: answer.sound ? "The log is complete and unchanged" : `${counted(answer.number, "fault")} found` },
    (close) => html`
    <div class="body">
      <p>${counted(answer.entries, "entry", "entries")}${answer.first === null ? "" : `, number ${answer.first} to ${answer.last}`}.${answer.anchored === null ? "" : ` The vault knows of entry ${answer.anchored}.`}</p>
      ${answer.faults.length > 0 && html`<table><caption>Faults</caption><tbody>${answer.faults.map((/** @type {any} */ one, /** @type {number} */ index) => html`<tr key=${index}><td>${text(one.kind)}</td><td>${text(one.message)}</td></tr>`)}</tbody></table>`}
      ${answer.remarks.map((/** @type {string} */ one) => html`<p class="note">${text(one)}</p>`)}
      <table><caption>Logs of this vault</caption><tbody>${answer.logs.map((/** @type {any} */ log) => html`<tr key=${log.trail}><td>${text(log.host)}</td><td class="mono">${text(log.directory)}</td><td>${text(log.state)}</td></tr>`)}</tbody></table>
    </div>
    <footer><button class="primary" autofocus onClick=${() => close()}>Close</button></footer>
  `,
  );
}

register({ name: "Verify the audit log", actions: ["audit.verify"], run: verify });

export default { component: Audit };
