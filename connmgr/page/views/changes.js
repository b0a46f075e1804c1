// Changes: what tokens have changed in files, and putting it back where nobody else has changed it since.

import { call } from "../core/api.js";
import { can, nameOf } from "../core/store.js";
import { ago, confirm, counted, doing, Empty, exact, html, State, text, toast, useAnswer } from "../core/ui.js";
import { bytes, Facts, Listing } from "./listing.js";

/** @typedef {import("../contract.d.ts").ChangeInfo} Change */
/** @typedef {import("../contract.d.ts").FileStateInfo} FileState */

const WORDS = /** @type {Record<string, string>} */ ({
  "fs.attributes": "mode or owner",
  "fs.mkdir": "new directory",
  "fs.move": "moved",
  "fs.remove": "removed",
  "fs.write": "written",
  "undo.restore": "put back",
});

const pathOf = (/** @type {Change} */ one) =>
  typeof one.path === "string" ? one.path : `base64:${/** @type {any} */ (one.path).base64}`;
const isDone = (/** @type {Change} */ one) => one.undoneBy !== null;

/** @param {Change} one */
function stateOf(one) {
  if (isDone(one)) return { kind: "off", word: "undone" };
  if (one.notKept) return { kind: "lost", word: "not kept" };
  return one.after ? { kind: "up", word: "kept" } : { kind: "busy", word: "unknown" };
}

/** @param {FileState | null} state */
const said = (state) =>
  state &&
  (state.kind === "absent"
    ? "nothing"
    : `${state.kind}${state.kind === "file" && state.size !== null ? `, ${bytes(state.size)}` : ""}${state.mode ? `, ${state.mode}` : ""}`);

/** @param {Change} one @param {() => void} again */
const restore = (one, again) =>
  doing(async () => {
    const request = { connection: one.connection, changes: [one.change] };
    const [planned] = (await call("/undo/restore", { ...request, dryRun: true })).results;
    if (planned.state !== "restorable")
      return toast(`${text(pathOf(one))}: ${text(planned.message)}`, { isFault: true });
    const is = await confirm({
      title: `Put back ${text(pathOf(one))}?`,
      text: `There will be: ${said(one.before)}. What is there now is kept as a change, too.`,
      yes: "Put back",
    });
    if (!is) return;
    const [done] = (await call("/undo/restore", request)).results;
    toast(`${text(pathOf(one))}: ${text(done.message ?? done.state)}`, { isFault: done.state !== "restored" });
    again();
  });

/** @param {{path: string[]}} props */
function Changes({ path }) {
  const { answer, error, again } = useAnswer(() => call("/undo/query", {}, { quiet: true }), []);
  const items = /** @type {Change[] | undefined} */ (answer?.changes);
  return html`<${Listing} view="changes" title="Changes" items=${items} error=${error} again=${again} reading="Reading the changes"
    keyOf=${(/** @type {Change} */ one) => one.change} one=${items?.find((one) => one.change === path[0])}
    columns=${[["State", "7rem"], ["By", "minmax(0, 1fr)"], ["File", "minmax(0, 2.5fr)"], ["What", "8rem"], ["On", "minmax(0, 1.5fr)"], ["When", "6rem"]]}
    row=${(/** @type {Change} */ one, /** @type {boolean} */ isNarrow) => {
      const state = html`<${State} ...${stateOf(one)} />`;
      const file = html`<span class="mono">${text(pathOf(one))}</span>`;
      return isNarrow
        ? html`${file}${state}`
        : html`${state}<span>${text(one.by)}</span>${file}<span>${text(WORDS[one.action] ?? one.action)}</span><span>${text(nameOf(one.connection))}</span><span class="note">${ago(one.at)}</span>`;
    }}
    tools=${items?.length ? html`<span class="note">${counted(items.length, "change")}</span>` : null}
    details=${(/** @type {Change} */ one) => html`<${Details} one=${one} again=${again} />`}
    empty=${html`<${Empty} title="No token has changed a file"><p>What a token changes by requests for files is kept before, and listed here.</p><//>`} />`;
}

/** @param {{one: Change, again: () => void}} props */
function Details({ one, again }) {
  return html`
    <header><div><h2>${text(pathOf(one))}</h2><p class="note">${exact(one.at)}</p></div></header>
    <p><${State} ...${stateOf(one)} /></p>
    ${can("undo.restore") && !one.notKept && html`<div class="does"><button onClick=${restore(one, again)}>Put back</button></div>`}
    ${one.notKept && html`<p class="fault">It cannot be put back: ${text(one.notKept)}.</p>`}
    <${Facts} facts=${[
      ["On", html`<a href=${`#/hub/${one.connection}`}>${text(nameOf(one.connection))}</a>`],
      ["By", text(one.by)],
      ["What", text(WORDS[one.action] ?? one.action)],
      ["Before", said(one.before)],
      ["Afterwards", said(one.after) ?? "not known"],
      ["Undone by", one.undoneBy && html`<a href=${`#/changes/${one.undoneBy}`}>${one.undoneBy}</a>`],
      ["Has undone", one.undoes && html`<a href=${`#/changes/${one.undoes}`}>${one.undoes}</a>`],
    ]} />
  `;
}

export default { component: Changes };
