// The fields of a connection type, made from the JSON Schema that the API gives of its data. What is secret is written
// and never shown; a stored secret goes back as it came, sealed, unless somebody types another, or says where it is
// fetched from at each login.

import { infoOf, matching, nameOf, qualified, store } from "./store.js";
import { hooks, html, Labeled, text } from "./ui.js";

const { useState } = hooks;

/** @typedef {Record<string, any>} Schema */

/** Fields that most people fill in; the others wait behind "More" until they have a value. */
const COMMON = ["host", "port", "user", "password", "identity", "gateway"];

/** What a field is: how it is shown and read. @param {string} name @param {Schema} schema */
function kindOf(name, schema) {
  const types = [schema.type].flat();
  if (schema["x-connmgr-reference"]) return "reference";
  if (schema["x-connmgr-secret"]) return /key$/i.test(name) ? "longSecret" : "secret";
  if (schema.enum) return "choice";
  if (types.includes("boolean")) return schema.default === undefined ? "maybe" : "check";
  if (types.includes("integer") || types.includes("number")) return "number";
  if (types.includes("array")) return "lines";
  if (types.includes("object") && types.includes("string")) return "textOrGroup";
  if (types.includes("object")) return schema.properties ? "group" : "pairs";
  return schema.maxLength > 4096 ? "long" : "text";
}

/** `hostKeyChecking` as `Host key checking`. @param {string} name */
export const labelOf = (name) =>
  name[0].toUpperCase() + name.slice(1).replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

/**
 * The fields of an object. `value` is never changed; `change` gets the whole new one. Of an object that may be left out
 * and `isAbsent`, nothing is required.
 * @param {{schema: Schema, value: Record<string, any>, change: (value: any) => void, isNested?: boolean, isAbsent?: boolean, type?: string}} props
 */
export function Fields({ schema, value, change, isNested = false, isAbsent = false }) {
  const names = Object.keys(schema.properties ?? {}).filter(
    (name) => name !== "type" || schema.properties.type.const === undefined,
  );
  const required = schema.required ?? [];
  const [had] = useState(() => new Set(Object.keys(value)));
  const isShown = (/** @type {string} */ name) =>
    isNested || required.includes(name) || COMMON.includes(name) || names.length <= 7 || had.has(name);
  /** @param {string} name @param {any} given */
  const set = (name, given) => {
    const next = { ...value };
    if (given === undefined) delete next[name];
    else next[name] = given;
    change(next);
  };
  const order = [...names].sort((one, other) => Number(required.includes(other)) - Number(required.includes(one)));
  const field = (/** @type {string} */ name) => html`
    <${Field} key=${name} name=${name} schema=${schema.properties[name]} value=${value[name]} required=${!isAbsent && required.includes(name)} set=${(/** @type {any} */ given) => set(name, given)} />
  `;
  const more = order.filter((name) => !isShown(name));
  return html`
    ${order.filter(isShown).map(field)}
    ${more.length > 0 && html`<details><summary>More settings</summary>${more.map(field)}</details>`}
  `;
}

/** @param {any} props */
function Field({ name, schema, value, required, set }) {
  const kind = kindOf(name, schema);
  const label = labelOf(name);
  const typed = (/** @type {any} */ event) => set(event.target.value === "" ? undefined : event.target.value);
  if (kind === "textOrGroup") {
    if (typeof value === "object")
      return html`<${Field} ...${{ name, value, required, set }} schema=${{ ...schema, type: "object" }} />`;
    const asText = { type: "string", description: schema.description, maxLength: 65536 };
    return html`
      <${Field} ...${{ name, value, required, set }} schema=${asText} />
      <button type="button" class="link" onClick=${() => set({})}>Fill in the parts of an object instead</button>
    `;
  }
  if (kind === "group") {
    return html`
      <details open=${value !== undefined}>
        <summary>${label}${schema.description && ` – ${schema.description}`}</summary>
        <${Fields} schema=${schema} value=${value ?? {}} isNested isAbsent=${value === undefined && !required} change=${(/** @type {any} */ given) => set(Object.keys(given).length ? given : undefined)} />
      </details>
    `;
  }
  if (kind === "check") {
    return html`<label class="check"><input type="checkbox" checked=${value ?? schema.default} onChange=${(/** @type {any} */ event) => set(event.target.checked)} />
      <span>${label}<br /><small>${schema.description}</small></span></label>`;
  }
  if (kind === "secret" || kind === "longSecret")
    return html`<${Secret} ...${{ label, schema, value, required, set }} isLong=${kind === "longSecret"} />`;
  /** @type {(tied: any) => any} */
  let control;
  if (kind === "reference")
    control = (tied) =>
      html`<${Reference} ...${tied} value=${typeof value === "object" ? value?.storeId : value} required=${required} set=${set} />`;
  else if (kind === "choice" || kind === "maybe") {
    /** @type {[any, string][]} */
    const choices =
      kind === "maybe"
        ? [
            [true, "Yes"],
            [false, "No"],
          ]
        : schema.enum.map((/** @type {any} */ one) => [one, labelOf(String(one))]);
    control = (tied) => html`
      <select ...${tied} value=${value === undefined ? "" : String(value)} required=${required} onChange=${(
        /** @type {any} */ event,
      ) => set(choices.find(([one]) => String(one) === event.target.value)?.[0])}>
        ${!required && html`<option value="">${schema.default === undefined ? "As usual" : `${labelOf(String(schema.default))} (default)`}</option>`}
        ${choices.map(([one, said]) => html`<option key=${said} value=${String(one)}>${said}</option>`)}
      </select>`;
  } else if (kind === "number") {
    control = (
      tied,
    ) => html`<input ...${tied} type="number" min=${schema.minimum} max=${schema.maximum} step=${[schema.type].flat().includes("integer") ? 1 : "any"} required=${required}
      placeholder=${schema.default ?? ""} value=${value ?? ""} onInput=${(/** @type {any} */ event) => set(event.target.value === "" ? undefined : Number(event.target.value))} />`;
  } else if (kind === "lines") {
    control = (tied) =>
      html`<textarea ...${tied} rows="3" spellcheck=${false} onInput=${(/** @type {any} */ event) => {
        const given = event.target.value.split("\n").filter((/** @type {string} */ line) => line !== "");
        set(given.length ? given : undefined);
      }}>${(value ?? []).join("\n")}</textarea>`;
  } else if (kind === "long" || kind === "pairs") {
    const shown =
      kind === "pairs"
        ? Object.entries(value ?? {})
            .map(([one, given]) => `${one}=${given}`)
            .join("\n")
        : (value ?? "");
    control = (tied) =>
      html`<textarea ...${tied} rows="3" class="mono" spellcheck=${false} onInput=${
        kind === "long"
          ? typed
          : (/** @type {any} */ event) => {
              const pairs = event.target.value
                .split("\n")
                .filter(Boolean)
                .map((/** @type {string} */ line) => line.split(/=(.*)/s).slice(0, 2));
              set(pairs.length ? Object.fromEntries(pairs) : undefined);
            }
      }>${shown}</textarea>`;
  } else {
    control = (
      tied,
    ) => html`<input ...${tied} value=${value ?? ""} required=${required} minlength=${schema.minLength} maxlength=${schema.maxLength} placeholder=${schema.default ?? ""}
      autocomplete="off" autocapitalize="off" spellcheck=${false} onInput=${typed} />`;
  }
  const hint = schema.description && `${schema.description}${kind === "lines" ? " One a line." : ""}`;
  return html`<${Labeled} label=${label} hint=${hint}>${control}<//>`;
}

/** A secret: typed, kept as it is, taken away, or fetched from elsewhere. @param {any} props */
function Secret(props) {
  if (props.value?.from) return html`<${Elsewhere} ...${props} />`;
  const { label, schema, value, required, set, isLong } = props;
  const [stored] = useState(typeof value === "object" && value !== null && !value.from ? value : null);
  const isKept = stored !== null && value === stored;
  const typed = (/** @type {any} */ event) =>
    set(event.target.value === "" ? (stored ?? undefined) : event.target.value);
  const shown = {
    autocomplete: "new-password",
    spellcheck: false,
    onInput: typed,
    placeholder: isKept ? "Stored; type to replace it" : "",
  };
  const hint = html`${schema.description} Kept sealed, never shown.
    ${stored !== null && html` <button type="button" class="link" onClick=${() => set(value === undefined ? stored : undefined)}>${value === undefined ? "Keep it after all" : "Remove it"}</button>`}
    ${stored !== null && value === undefined && " It will be removed."}
    ${store.sources.size > 0 && html` <button type="button" class="link" onClick=${() => set({ from: { source: firstSource() } })}>Fetch it from elsewhere</button>`}`;
  return html`
    <${Labeled} label=${label} hint=${hint}>${(/** @type {any} */ tied) =>
      isLong
        ? html`<textarea ...${tied} class="secret" rows="3" ...${shown}>${typeof value === "string" ? value : ""}</textarea>`
        : html`<input ...${tied} type="password" required=${required && !stored} value=${typeof value === "string" ? value : ""} ...${shown} />`}<//>
  `;
}

const firstSource = () => (store.sources.has("pass") ? "pass" : [...store.sources.keys()][0]);

/** Where a secret is fetched from: the source, and the members that its schema has. @param {any} props */
function Elsewhere({ label, value, set }) {
  const { source, ...members } = value.from;
  const found = store.sources.get(source);
  const hint = html`${found ? text(found.description) : "No installed plugin offers this source."} The daemon fetches it at
    each login, and keeps it nowhere. <button type="button" class="link" onClick=${() => set(undefined)}>Type it instead</button>`;
  const names = [...new Set([...store.sources.keys(), source])];
  return html`
    <fieldset class="elsewhere">
      <${Labeled} label=${`${label} from`} hint=${hint}>${(/** @type {any} */ tied) => html`
        <select ...${tied} value=${source} onChange=${(/** @type {any} */ event) => set({ from: { source: event.target.value } })}>
          ${names.map((name) => html`<option key=${name} value=${name}>${text(name)}</option>`)}</select>`}<//>
      ${found && html`<${Fields} key=${source} schema=${found.schema} value=${members} isNested change=${(/** @type {any} */ given) => set({ from: { source, ...given } })} />`}
    </fieldset>
  `;
}

const MOST = 50;

/** A connection, chosen by its name. @param {any} props */
function Reference({ value, required, set, ...tied }) {
  const [typed, type] = useState(
    value ? (store.connections.has(value) ? qualified(/** @type {any} */ (store.connections.get(value))) : value) : "",
  );
  const [id] = useState(() => `connections-${crypto.randomUUID()}`);
  const some = matching(typed).slice(0, MOST);
  /** @param {any} event */
  const onInput = ({ target }) => {
    type(target.value);
    const [found, other] = matching(target.value);
    const isOne =
      found && (qualified(found) === target.value || (!other && found.folded.endsWith(target.value.toLowerCase())));
    target.setCustomValidity(target.value === "" || isOne ? "" : "No single connection is called so.");
    set(isOne ? found.connection : undefined);
  };
  return html`
    <input ...${tied} list=${id} value=${typed} required=${required} autocomplete="off" spellcheck=${false} placeholder="A connection's name" onInput=${onInput} />
    <datalist id=${id}>${some.map((one) => html`<option key=${one.connection} value=${qualified(one)}>${text(one.type)}</option>`)}</datalist>
  `;
}

/** What is stored, as names and texts for people; nothing secret. @param {Record<string, any>} data @param {Schema | undefined} schema */
export function described(data, schema) {
  /** @type {{name: string, said: string, connection?: string, isSecret?: boolean}[]} */
  const all = [];
  for (const [name, value] of Object.entries(data)) {
    const field = schema?.properties?.[name] ?? {};
    if (name === "type" || value === null || value === undefined) continue;
    if (field["x-connmgr-reference"]) {
      const connection = typeof value === "object" ? value.storeId : value;
      all.push({ name: labelOf(name), said: nameOf(connection), connection });
    } else if (field["x-connmgr-secret"] && value.from) {
      // Without its members: one of them may be a secret itself.
      all.push({ name: labelOf(name), said: `fetched from ${value.from.source}`, isSecret: true });
    } else if (field["x-connmgr-secret"] || value.encryptedToken)
      all.push({ name: labelOf(name), said: "stored, sealed", isSecret: true });
    else if (Array.isArray(value)) all.push({ name: labelOf(name), said: value.join(", ") });
    else if (typeof value === "object")
      all.push(
        ...described(value, field).map((one) => ({ ...one, name: `${labelOf(name)}: ${one.name.toLowerCase()}` })),
      );
    else if (value !== field.default) {
      // Of a key the kind and the end tell it from another.
      const said = name === "hostKey" ? String(value).replace(/^(\S+ .{10}).{20,}(.{8})$/, "$1 … $2") : String(value);
      all.push({ name: labelOf(name), said: value === true ? "yes" : value === false ? "no" : said });
    }
  }
  return all;
}

/** Where a connection leads, in a few words: the row's second column. @param {string} id */
export function placeOf(id) {
  /** @type {Record<string, any> | undefined} */
  const data = infoOf(id)?.rawData;
  if (!data) return "";
  if (typeof data.host === "string" && !store.connections.has(data.host)) {
    return `${data.user ? `${data.user}@` : ""}${data.host}${data.port && data.port !== 22 ? `:${data.port}` : ""}`;
  }
  const over = data.host?.storeId ?? data.host;
  const what =
    data.containerName ??
    data.pod ??
    data.directory ??
    (data.remotePort && `${data.remoteHost ?? data.address ?? "port"}:${data.remotePort}`) ??
    data.user ??
    "";
  return over ? [what, `on ${nameOf(over)}`].filter(Boolean).join(" ") : String(what);
}
