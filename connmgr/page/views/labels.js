// The labels of a connection, changed where they stand.

import { call } from "../core/api.js";
import { can, infoOf, reread } from "../core/store.js";
import { doing, failed, html, text, toast } from "../core/ui.js";

/** Set or taken away one by one, each with a way back. @param {{connection: string}} props */
export function Labels({ connection }) {
  const labels = /** @type {Record<string, string>} */ (infoOf(connection)?.labels ?? {});
  const all = Object.entries(labels);
  const change = async (/** @type {object} */ request) => {
    await call("/connection/label", { connections: [connection], ...request });
    await reread(connection);
  };
  const remove = (/** @type {string} */ name) =>
    doing(async () => {
      const value = labels[name];
      await change({ remove: [name] });
      toast(`The label ${text(name)} is removed.`, { undo: () => change({ labels: { [name]: value } }) });
    });
  /** @param {SubmitEvent} event */
  const add = (event) => {
    event.preventDefault();
    const field = /** @type {HTMLInputElement} */ (/** @type {HTMLFormElement} */ (event.currentTarget).elements[0]);
    const [name, value = ""] = field.value.split(/=(.*)/s);
    change({ labels: { [name.trim()]: value.trim() } }).then(() => (field.value = ""), failed);
  };
  if (!can("connection.label")) return all.map(([name, value]) => html`<code>${text(name)}=${text(value)}</code> `);
  return html`
    <ul class="labels">${all.map(([name, value]) => html`<li key=${name}><code>${text(name)}=${text(value)}</code><button class="quiet" aria-label=${`Remove the label ${text(name)}`} onClick=${remove(name)}>×</button></li>`)}
      <li><form onSubmit=${add}><input name="label" class="mono" aria-label="New label" placeholder="env=prod" required autocomplete="off" spellcheck=${false} /></form></li></ul>
  `;
}
