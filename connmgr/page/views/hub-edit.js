// Adding and changing a connection, by a form that its type's schema makes; and adding a category.

import { ApiError, call } from "../core/api.js";
import { Fields, Form, form } from "../core/forms.js";
import { address, go } from "../core/navigate.js";
import { infoOf, refresh, store } from "../core/store.js";
import { doing, html, openDialog, text, toast, useState } from "../core/ui.js";

/** Types that most people look for, before the others. */
const FIRST = ["ssh", "local", "shellEnvironment", "docker", "podman"];

/** @param {string} [category] @param {string} [type] that is offered first */
export const addConnection = (category = "", type = store.types.has("ssh") ? "ssh" : [...store.types.keys()][0]) =>
  openDraft({
    title: "Add a connection",
    yes: "Add",
    isNew: true,
    before: { name: "", data: { type }, category },
    submit: async ({ name, data, ...more }) => {
      const request = { name: name || data.host || data.containerName || data.type, data, ...more };
      const { connection, added } = await call("/connection/add", request);
      await refresh("connections");
      go(address("hub", connection));
      toast(added ? `${text(request.name)} is added.` : "The same connection is stored already; here it is.");
    },
  });

/** @param {string} connection @returns {Promise<unknown>} */
export async function editConnection(connection) {
  const [info] = (await call("/connection/info", { connections: [connection] })).infos;
  const name = info.name[info.name.length - 1];
  const path = info.category.join("/");
  const category = [...store.categories.values()].find((one) => one.name.join("/") === path)?.category ?? "";
  const before = { name, data: info.rawData, category, labels: info.labels ?? {} };
  // What somebody else has saved meanwhile is not overwritten, also not by taking this back.
  let { lastModified } = info;
  const stored = async (/** @type {any} */ { category, labels = {}, ...values }) => {
    await call("/connection/update", { connection, labels, lastModified, ...values, ...(category && { category }) });
    store.infos.delete(connection);
    infoOf(connection);
    await refresh("connections");
  };
  return openDraft({
    title: `Edit ${name}`,
    yes: "Save",
    before,
    anew: () => editConnection(connection),
    submit: async (values) => {
      await stored(values);
      [{ lastModified }] = (await call("/connection/info", { connections: [connection] })).infos;
      toast(`${text(values.name)} is saved.`, { undo: () => stored(before) });
    },
  });
}

const openDraft = (/** @type {Draft} */ draft) =>
  openDialog({ title: draft.title }, (close) => html`<${Draft} ...${draft} close=${close} />`);

/** @param {Draft & {close: () => void}} props */
function Draft({ yes, isNew = false, before, submit, anew, close }) {
  const [{ data, ...rest }, change] = useState(before);
  const [isOverrun, setOverrun] = useState(false);
  const { host, type } = data;
  const schema = store.types.get(type)?.schema;
  const types = [...store.types.values()]
    .sort((one, other) => rank(one.type) - rank(other.type))
    .map((one) => [one.type, `${text(one.type)} – ${text(one.description)}`]);
  const setData = (/** @type {any} */ data) => change({ ...rest, data });
  const own = {
    required: isNew ? [] : ["name"],
    properties: {
      name: {
        maxLength: 255,
        examples: [
          isNew ? (typeof host === "string" && !store.connections.has(host) && host) || "As it shall be called" : "",
        ],
      },
      category: {
        choices: [
          ["", isNew ? "The default one, or that of the connection it is in" : "As it is"],
          ...[...store.categories.values()].map((one) => [one.category, text(one.name.join(" / "))]),
        ],
      },
      labels: {
        format: "pairs",
        description: "One a line, as name=value; commands choose machines by them.",
        examples: ["env=prod"],
      },
      validate: {
        title: "Test it first",
        type: "boolean",
        default: false,
        description: `Connect, and ${isNew ? "add" : "change"} nothing if that fails.`,
      },
    },
  };
  const asked = async () => {
    const { category, ...others } = rest;
    try {
      await submit({ data, ...others, ...(category && { category }) });
    } catch (error) {
      setOverrun(error instanceof ApiError && error.code === "connection_changed");
      throw error;
    }
    close();
  };
  const openAnew = doing(async () => {
    close();
    await anew?.();
  });
  return html`
    <${Form} yes=${yes} cancel=${close} submit=${asked} busy=${rest.validate && "Connecting, to see whether it works"}>
      ${isNew && html`<${Fields} schema=${{ required: ["type"], properties: { type: { choices: types } } }} value=${data} change=${({ type }) => setData({ type })} />`}
      ${
        schema
          ? html`<${Fields} key=${type} schema=${schema} value=${data} change=${setData} />`
          : html`<p class="fault">No installed plugin offers the type ${text(type)}; its data stays as it is.</p>`
      }
      <${Fields} schema=${own} value=${rest} change=${(given) => change({ data, ...given })} isWhole />
      ${
        isOverrun &&
        html`<p class="note">Somebody else has saved this connection since the form was opened, and what they saved stays.
          What you wrote is still here; opening the form anew discards it. <button type="button" onClick=${openAnew}>Open it anew</button></p>`
      }
    <//>
  `;
}

const rank = (/** @type {string} */ type) => FIRST.indexOf(type) + 1 || FIRST.length + 1;

/** @param {string} [parent] */
export function addCategory(parent = store.root) {
  const above = store.categories.get(parent);
  return form({
    title: `New category${above ? ` in ${above.name.join("/")}` : ""}`,
    properties: { name: {} },
    yes: "Create",
    work: async ({ name }) => {
      await call("/category/add", { name, parent });
      await refresh("categories");
    },
  });
}
