// A token's record: what it did, step by step, with what jobs and terminals printed, and the files that it changed.

import { call } from "../core/api.js";
import { address, go } from "../core/router.js";
import { ago, counted, Empty, exact, Fault, html, lines, State, text, useAnswer, Waiting } from "../core/ui.js";

/** @typedef {import("../contract.d.ts").AuditStep} Step */

/** @param {{path: string[]}} props */
function Record({ path: [token = "", since = ""] }) {
  const asked = { token, ...(since && { since: new Date(since).toISOString() }) };
  const { answer, error, again } = useAnswer(
    () => (token ? call("/audit/record", asked, { quiet: true }) : Promise.resolve(undefined)),
    [token, since],
  );
  const steps = /** @type {Step[] | undefined} */ (answer?.steps);
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
      <form class="filters" role="search" onSubmit=${open} key=${`${token} ${since}`}>
        <label>Token<input name="token" required placeholder="name or id" value=${token} spellcheck=${false} /></label>
        <label>Since<input type="datetime-local" name="since" value=${since} /></label>
        <button>Show</button>
      </form>
      ${error && html`<${Fault} error=${error} again=${again} />`}
      ${!token && html`<${Empty} title="Whose record?"><p>Name a token to see what it did: commands and what they printed, approvals, changed files.</p><//>`}
      ${token && !answer && !error && html`<${Waiting} reason="Reading the log and what was printed" />`}
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
        ${step.changes.map((id) => html` <a key=${id} href=${address("changes", id)}>the file before</a>`)}
        ${step.terminal && html` <a href=${address("recordings", step.terminal)}>the recording</a>`}</p>
      ${step.what && html`<pre class="printed">${lines(step.what)}</pre>`}
      ${[step.stdout, step.stderr].map((said, index) => said && html`<pre key=${index} class="printed">${lines(said)}</pre>`)}
      ${step.notShown && html`<p class="note">${text(step.notShown)}</p>`}
    </section>
  `;
}

export default { component: Record };
