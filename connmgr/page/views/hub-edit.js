// Adding and changing a connection, by a form that its type's schema makes.

import { call } from "../core/api.js";
import { address, go } from "../core/router.js";
import { Fields } from "../core/schema-form.js";
import { infoOf, refresh, store } from "../core/store.js";
import { Form, hooks, html, Labeled, openDialog, text, toast } from "../core/ui.js";

const { useState } = hooks;

/** Types that most people look for, before the others. */
const FIRST = ["ssh", "local", "shellEnvironment", "docker", "podman"];

/** @typedef {{title: string, yes: string, name: string, data: Record<string, any>, category: string, labels: Record<string, string>, isNew: boolean, submit: (values: any) => Promise<unknown>}} Draft */

/** Asks for a new connection, and adds it. @param {string} [category] @param {string} [type] that is offered first */
export function addConnection(category, type = store.types.has("ssh") ? "ssh" : [...store.types.keys()][0]) {
  const draft = {
    title: "Add a connection",
    yes: "Add",
    name: "",
    data: { type: type ?? "" },
    category: category ?? "",
    labels: {},
    isNew: true,
    submit: async (/** @type {any} */ { name, data, category, labels, validate }) => {
      const request = {
        name: name || data.host || data.containerName || data.type,
        data,
        validate,
        ...(category && { category }),
        ...(Object.keys(labels).length && { labels }),
      };
      const { connection, added } = await call("/connection/add", request);
      await refresh("connections");
      go(address("hub", connection));
      toast(added ? `${text(request.name)} is added.` : "The same connection is stored already; here it is.");
    },
  };
  return openDraft(draft);
}

/** Asks for changes of a connection, and stores them. @param {string} connection */
export async function editConnection(connection) {
  const { infos } = await call("/connection/info", { connections: [connection] });
  const [info] = infos;
  const last = info.name[info.name.length - 1];
  const category =
    [...store.categories.values()].find((one) => one.name.join("/") === info.category.join("/"))?.category ?? "";
  const before = { name: last, data: info.rawData, ...(category && { category }), labels: info.labels ?? {} };
  const stored = async (/** @type {any} */ values) => {
    await call("/connection/update", { connection, ...values });
    store.infos.delete(connection);
    infoOf(connection);
    await refresh("connections");
  };
  return openDraft({
    title: `Edit ${text(last)}`,
    yes: "Save",
    ...before,
    category,
    isNew: false,
    submit: async (/** @type {any} */ { name, data, category, labels, validate }) => {
      await stored({ name, data, validate, labels, ...(category && { category }) });
      toast(`${text(name)} is saved.`, { undo: () => stored(before) });
    },
  });
}

/** @param {Draft} draft */
function openDraft(draft) {
  return openDialog({ title: draft.title }, (close) => html`<${Draft} draft=${draft} close=${close} />`);
}

/** @param {{draft: Draft, close: () => void}} props */
function Draft({ draft, close }) {
  const [data, setData] = useState(draft.data);
  const [name, setName] = useState(draft.name);
  const [category, setCategory] = useState(draft.category);
  const [labels, setLabels] = useState(
    Object.entries(draft.labels)
      .map(([label, value]) => `${label}=${value}`)
      .join("\n"),
  );
  const [validate, setValidate] = useState(false);
  const schema = store.types.get(data.type)?.schema;
  const types = [...store.types.values()].sort((one, other) => rank(one.type) - rank(other.type));
  const submit = async () => {
    const pairs = labels
      .split("\n")
      .map((line) => line.trim())
      .filter(Boolean)
      .map((line) => line.split(/=(.*)/s));
    await draft.submit({
      name,
      data,
      category,
      validate,
      labels: Object.fromEntries(pairs.map(([label, value = ""]) => [label.trim(), value.trim()])),
    });
    close();
  };
  return html`
    <${Form} yes=${draft.yes} cancel=${() => close()} submit=${submit} busy=${validate ? "Connecting, to see whether it works" : undefined}>
      ${
        draft.isNew &&
        html`
        <${Labeled} label="Type">${(
          /** @type {any} */ tied,
        ) => html`<select ...${tied} value=${data.type} onChange=${(/** @type {any} */ event) => setData({ type: event.target.value })}>
            ${types.map((one) => html`<option key=${one.type} value=${one.type}>${text(one.type)} – ${text(one.description)}</option>`)}
          </select>`}<//>`
      }
      ${
        schema
          ? html`<${Fields} key=${data.type} schema=${schema} value=${data} change=${setData} />`
          : html`<p class="fault">No installed plugin offers the type ${text(data.type)}; its data stays as it is.</p>`
      }
      <${Labeled} label="Name">${(
        /** @type {any} */ tied,
      ) => html`<input ...${tied} value=${name} maxlength="255" required=${!draft.isNew} placeholder=${draft.isNew ? (data.host && typeof data.host === "string" && !store.connections.has(data.host) ? data.host : "As it shall be called") : ""}
          autocomplete="off" spellcheck=${false} onInput=${(/** @type {any} */ event) => setName(event.target.value)} />`}<//>
      <${Labeled} label="Category">${(
        /** @type {any} */ tied,
      ) => html`<select ...${tied} value=${category} onChange=${(/** @type {any} */ event) => setCategory(event.target.value)}>
          <option value="">${draft.isNew ? "The default one, or that of the connection it is in" : "As it is"}</option>
          ${[...store.categories.values()].map((one) => html`<option key=${one.category} value=${one.category}>${text(one.name.join(" / "))}</option>`)}
        </select>`}<//>
      <details open=${labels !== ""}><summary>Labels</summary>
        <${Labeled} label="Labels" hint="One a line, as name=value; commands choose machines by them.">${(/** @type {any} */ tied) => html`<textarea ...${tied} rows="2" class="mono" placeholder="env=prod" spellcheck=${false} onInput=${(/** @type {any} */ event) => setLabels(event.target.value)}>${labels}</textarea>`}<//></details>
      <label class="check"><input type="checkbox" checked=${validate} onChange=${(/** @type {any} */ event) => setValidate(event.target.checked)} />
        <span>Test it first<br /><small>Connect, and ${draft.isNew ? "add" : "change"} nothing if that fails.</small></span></label>
    <//>
  `;
}

/** @param {string} type */
const rank = (type) => FIRST.indexOf(type) + 1 || FIRST.length + 1;
