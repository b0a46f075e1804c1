// Forms, all made from JSON Schemas: those that the API gives of connection types and sources of secrets, and those that
// views write. What is secret is written and never shown; a stored secret goes back as it came, sealed, unless somebody
// types another, or says where it is fetched from at each login.

import { matching, qualified, store } from "./store.js";
import { Fault, html, labelOf, openDialog, text, useState, Waiting } from "./ui.js";

/** Fields that most people fill in; the others wait behind "More settings" until they have a value. */
const COMMON = ["host", "port", "user", "password", "identity", "gateway"];

let lastField = 0;

/**
 * A field with its label and a hint; `children` makes the control, and gets what ties it to both.
 * @param {{label: any, hint?: any, children: (tied: {id: string, "aria-describedby"?: string}) => any}} props
 */
function Labeled({ label, hint, children }) {
  const [id] = useState(() => {
    lastField += 1;
    return `field-${lastField}`;
  });
  const control = children({ id, "aria-describedby": hint ? `${id}-hint` : undefined });
  return html`<div class="field"><label for=${id}>${label}</label>${control}${hint && html`<small id=${`${id}-hint`}>${hint}</small>`}</div>`;
}

/**
 * Asks for the fields of a schema, and resolves to them, or null if nobody gave any. With `work` the dialog stays open
 * until that has succeeded with them, and what it returns takes their place.
 * @param {{title: string, text?: any, properties: Record<string, Schema>, required?: string[], value?: Record<string, any>, yes?: string, work?: (values: any) => unknown}} question
 * @returns {Promise<any>}
 */
export const form = ({ title, ...question }) =>
  openDialog({ title }, (close) => html`<${Asked} ...${question} close=${close} />`);

/** @param {any} props */
function Asked({ text: said, properties, required = Object.keys(properties), value = {}, yes = "OK", work, close }) {
  const [values, change] = useState(value);
  const submit = async () => {
    close((await work?.(values)) ?? values);
  };
  return html`
    <${Form} yes=${yes} cancel=${close} submit=${submit}>
      ${said && html`<p class="said">${said}</p>`}
      <${Fields} schema=${{ properties, required }} value=${values} change=${change} isWhole />
    <//>
  `;
}

/** A form of a dialog: it tells why `submit` failed, and stays. @param {any} props */
export function Form({ submit, cancel, yes, busy, children }) {
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isBusy, setBusy] = useState(false);
  /** @param {SubmitEvent} event */
  const onSubmit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await submit();
    } catch (error) {
      setError(/** @type {Error} */ (error));
    } finally {
      setBusy(false);
    }
  };
  return html`
    <form onSubmit=${onSubmit} autocomplete="off">
      <div class="body">${children}</div>
      ${error && html`<${Fault} error=${error} />`}
      ${isBusy && busy && html`<${Waiting} reason=${busy} />`}
      <footer>
        <button type="button" onClick=${() => cancel()}>Cancel</button>
        <button class="primary" disabled=${isBusy}>${yes}</button>
      </footer>
    </form>
  `;
}

/**
 * The fields of an object. `value` is never changed; `change` gets the whole new one. Of an object that may be left out
 * and `isAbsent`, nothing is required. One that `isWhole` hides no field, and changes no order.
 * @param {{schema: Schema, value: Record<string, any>, change: (value: any) => void, isWhole?: boolean, isAbsent?: boolean}} props
 */
export function Fields({
  schema: { properties = {}, required = [] },
  value,
  change,
  isWhole = false,
  isAbsent = false,
}) {
  const names = Object.keys(properties).filter((name) => name !== "type" || properties.type.const === undefined);
  const [had] = useState(() => new Set(Object.keys(value)));
  const isShown = (/** @type {string} */ name) =>
    isWhole || required.includes(name) || COMMON.includes(name) || names.length <= 7 || had.has(name);
  const order = isWhole
    ? names
    : names.sort((one, other) => Number(required.includes(other)) - Number(required.includes(one)));
  const field = (/** @type {string} */ name) => html`
    <${Field} key=${name} name=${name} schema=${properties[name]} value=${value[name]} required=${!isAbsent && required.includes(name)} set=${(
      given,
    ) => {
      const { [name]: _, ...others } = value;
      change(given === undefined ? others : { ...others, [name]: given });
    }} />
  `;
  const more = order.filter((name) => !isShown(name));
  return html`
    ${order.filter(isShown).map(field)}
    ${more.length > 0 && html`<details><summary>More settings</summary>${more.map(field)}</details>`}
  `;
}

const INPUTS = ["password", "datetime-local"];

/** @param {Schema} schema */
function kindOf(schema) {
  const types = [schema.type].flat();
  if (schema["x-connmgr-reference"]) return "reference";
  if (schema["x-connmgr-secret"]) return "secret";
  if (schema.format in WRITTEN) return schema.format;
  if (schema.enum || schema.choices) return types.includes("array") ? "several" : "choice";
  if (types.includes("boolean")) return schema.default === undefined ? "maybe" : "check";
  if (types.includes("integer") || types.includes("number")) return "number";
  if (types.includes("array")) return "lines";
  if (types.includes("object") && types.includes("string")) return "textOrGroup";
  if (types.includes("object")) return schema.properties ? "group" : "pairs";
  return schema.maxLength > 4096 ? "long" : "text";
}

/**
 * How a value is written as text, and read back. @type {Record<string, [(value: any) => string, (given: string) => any]>}
 */
const WRITTEN = {
  lines: [(some) => some.join("\n"), (given) => given.split("\n").filter(Boolean)],
  argv: [(some) => some.join("\n"), (given) => given.replace(/\n$/, "").split("\n")],
  words: [(some) => some.join(" "), (given) => given.split(/[\s,]+/).filter(Boolean)],
  pairs: [
    (pairs) =>
      Object.entries(pairs)
        .map(([name, value]) => `${name}=${value}`)
        .join("\n"),
    (given) =>
      Object.fromEntries(
        given
          .split("\n")
          .filter((line) => line.trim())
          .map((line) => line.split(/=(.*)/s))
          .map(([name, value = ""]) => [name.trim(), value.trim()]),
      ),
  ],
  json: [(value) => JSON.stringify(value, null, 2), JSON.parse],
};

/** @param {any} props */
function Field({ name, schema, value, required, set }) {
  const kind = kindOf(schema);
  const { title: label = labelOf(name), description, default: usual } = schema;
  if (kind === "textOrGroup") {
    const given = { name, value, required, set };
    if (typeof value === "object") return html`<${Field} ...${given} schema=${{ ...schema, type: "object" }} />`;
    return html`
      <${Field} ...${given} schema=${{ type: "string", description, maxLength: 65536 }} />
      <button type="button" class="link" onClick=${() => set({})}>Fill in the parts of an object instead</button>
    `;
  }
  if (kind === "group")
    return html`
      <details open=${value !== undefined}>
        <summary>${label}${description && ` – ${description}`}</summary>
        <${Fields} schema=${schema} value=${value ?? {}} isWhole isAbsent=${value === undefined && !required} change=${(given) => set(Object.keys(given).length ? given : undefined)} />
      </details>
    `;
  if (kind === "check")
    return html`<label class="check"><input type="checkbox" checked=${value ?? usual} onChange=${(event) => set(event.target.checked)} />
      <span>${label}<br /><small>${description}</small></span></label>`;
  if (kind === "several")
    return html`<${Several} label=${label} choices=${schema.choices} value=${value ?? usual ?? []} set=${set} />`;
  if (kind === "secret") return html`<${Secret} ...${{ name, label, schema, value, required, set }} />`;
  const control = (/** @type {any} */ tied) => {
    if (kind === "reference")
      return html`<${Reference} ...${tied} value=${typeof value === "object" ? value?.storeId : value} required=${required} set=${set} />`;
    if (kind === "choice" || kind === "maybe")
      return html`<${Choice} ...${{ tied, schema, kind, value, required, set }} />`;
    const shared = {
      ...tied,
      required,
      placeholder: schema.examples?.[0] ?? usual ?? "",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: false,
    };
    if (kind === "number")
      return html`<input ...${shared} type="number" min=${schema.minimum} max=${schema.maximum} step=${[schema.type].flat().includes("integer") ? 1 : "any"}
        value=${value ?? ""} onInput=${(event) => set(event.target.value === "" ? undefined : Number(event.target.value))} />`;
    const [write, read] = WRITTEN[kind] ?? [String, String];
    const typed = (/** @type {any} */ { target }) => {
      target.setCustomValidity("");
      try {
        const given = target.value && read(target.value);
        // Nothing but blanks is no list.
        set(given === "" || (typeof given === "object" && !Object.keys(given ?? {}).length) ? undefined : given);
      } catch (error) {
        target.setCustomValidity(`Not ${kind}: ${/** @type {Error} */ (error).message}`);
      }
    };
    // What is read and written again may look otherwise than it was typed.
    const held = kind in WRITTEN ? { defaultValue: value === undefined ? "" : write(value) } : { value: value ?? "" };
    if (kind === "long" || (kind in WRITTEN && kind !== "words"))
      return html`<textarea ...${shared} ...${held} rows=${schema.rows ?? 3} class=${kind === "lines" ? "" : "mono"} onInput=${typed}></textarea>`;
    return html`<input ...${shared} ...${held} type=${INPUTS.includes(schema.format) ? schema.format : "text"} autocomplete=${schema.autocomplete ?? "off"}
      minlength=${schema.minLength} maxlength=${schema.maxLength} pattern=${schema.pattern} onInput=${typed} />`;
  };
  const hint = description && html`${description}${kind === "lines" && " One a line."}`;
  return html`<${Labeled} label=${label} hint=${hint}>${control}<//>`;
}

/** @param {any} props */
function Choice({ tied, schema, kind, value, required, set }) {
  /** @type {[any, string][]} */
  const choices =
    kind === "maybe"
      ? [
          [true, "Yes"],
          [false, "No"],
        ]
      : (schema.choices ?? schema.enum.map((/** @type {any} */ one) => [one, labelOf(String(one))]));
  const usual = schema.default === undefined ? "As usual" : `${labelOf(String(schema.default))} (default)`;
  return html`
    <select ...${tied} value=${String(value ?? "")} required=${required} onChange=${(event) => set(choices.find(([one]) => String(one) === event.target.value)?.[0])}>
      ${!required && !choices.some(([one]) => one === "") && html`<option value="">${usual}</option>`}
      ${choices.map(([one, said]) => html`<option key=${one} value=${String(one)}>${said}</option>`)}
    </select>
  `;
}

/**
 * Any of some choices, each a value, what is said of it, and perhaps a note; `children` stand above them.
 * @param {{label: string, choices: any[][], value: any[], set: (value: any[]) => void, children?: any}} props
 */
export function Several({ label, choices, value, set, children }) {
  const all = choices.map(([one]) => one);
  const toggle = (/** @type {any} */ one) => set(all.filter((other) => value.includes(other) !== (other === one)));
  return html`
    <fieldset><legend>${label}</legend>${children}<div class="choices">${choices.map(
      ([one, said, note]) => html`
        <label class="check" key=${one}><input type="checkbox" checked=${value.includes(one)} onChange=${() => toggle(one)} />
        <span>${said}${note && html`<br /><small class="mono">${note}</small>`}</span></label>`,
    )}</div></fieldset>
  `;
}

/** @param {any} props */
function Secret(props) {
  const { name, label, schema, value, required, set } = props;
  const [stored] = useState(typeof value === "object" && value !== null && !value.from ? value : null);
  if (value?.from) return html`<${Elsewhere} ...${props} />`;
  const isGone = stored !== null && value === undefined;
  const hint = html`${schema.description} Kept sealed, never shown.
    ${stored !== null && html` <button type="button" class="link" onClick=${() => set(isGone ? stored : undefined)}>${isGone ? "Keep it after all" : "Remove it"}</button>`}
    ${isGone && " It will be removed."}
    ${store.sources.size > 0 && html` <button type="button" class="link" onClick=${() => set({ from: { source: store.sources.has("pass") ? "pass" : [...store.sources.keys()][0] } })}>Fetch it from elsewhere</button>`}`;
  return html`
    <${Labeled} label=${label} hint=${hint}>${(tied) => {
      const shown = {
        ...tied,
        autocomplete: "new-password",
        spellcheck: false,
        placeholder: stored !== null && value === stored ? "Stored; type to replace it" : "",
        onInput: (/** @type {any} */ event) => set(event.target.value || (stored ?? undefined)),
      };
      const typed = typeof value === "string" ? value : "";
      return /key$/i.test(name)
        ? html`<textarea ...${shown} class="secret" rows="3">${typed}</textarea>`
        : html`<input ...${shown} type="password" required=${required && !stored} value=${typed} />`;
    }}<//>
  `;
}

/** Where a secret is fetched from: the source, and the members that its schema has. @param {any} props */
function Elsewhere({ label, value, set }) {
  const { source, ...members } = value.from;
  const found = store.sources.get(source);
  const hint = html`${found ? text(found.description) : "No installed plugin offers this source."} The daemon fetches it at
    each login, and keeps it nowhere. <button type="button" class="link" onClick=${() => set(undefined)}>Type it instead</button>`;
  const choices = [...new Set([...store.sources.keys(), source])].map((name) => [name, text(name)]);
  return html`
    <fieldset class="elsewhere">
      <${Labeled} label=${`${label} from`} hint=${hint}>${(tied) => html`
        <${Choice} tied=${tied} schema=${{ choices }} value=${source} required set=${(given) => set({ from: { source: given } })} />`}<//>
      ${found && html`<${Fields} key=${source} schema=${found.schema} value=${members} isWhole change=${(given) => set({ from: { source, ...given } })} />`}
    </fieldset>
  `;
}

const MOST = 50;

/** @param {any} props */
function Reference({ value, required, set, ...tied }) {
  const [typed, type] = useState(() => {
    const known = store.connections.get(value);
    return known ? qualified(known) : (value ?? "");
  });
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
    <input ...${tied} list=${`${tied.id}-list`} value=${typed} required=${required} autocomplete="off" spellcheck=${false} placeholder="A connection's name" onInput=${onInput} />
    <datalist id=${`${tied.id}-list`}>${matching(typed)
      .slice(0, MOST)
      .map((one) => html`<option key=${one.connection} value=${qualified(one)}>${text(one.type)}</option>`)}</datalist>
  `;
}
