// The palette (Ctrl-K) and the keys: every command of every view by its name, and every connection by its own.

import { html, useLayoutEffect, useMemo, useState } from "../vendor/htm-preact.js";
import { fold } from "./names.js";
import { address, go } from "./router.js";
import { can, matching, nameOf, qualified, store, useChoice, useStore } from "./store.js";
import { failed, openDialog, Rows, text } from "./ui.js";

/**
 * @typedef {object} Command
 * @property {string} name what it does, as a verb with its noun
 * @property {string[]} [actions] those of the API that it needs
 * @property {"connection"} [on] given where it is about one connection, whose id `run` gets
 * @property {(connection: any) => boolean} [fits] whether it applies to a connection of the store
 * @property {string} [key] a key that runs it, such as `/` or `g h`
 * @property {string} [hint] a few words more
 * @property {(connection?: any) => unknown} run
 */

/** @type {Set<Command>} */
const commands = new Set();

/** Adds a command, and returns what takes it away. @param {Command} command */
export function register(command) {
  commands.add(command);
  return () => {
    commands.delete(command);
  };
}

/** The commands about a connection that the session may use. @param {any} connection of the store */
export const commandsOn = (connection) =>
  [...commands].filter(
    (one) =>
      one.on && can(...(one.actions ?? [])) && (one.fits ? one.fits(connection) : connection.usageCategory === "shell"),
  );

const general = () =>
  [...commands]
    .filter((one) => !one.on && can(...(one.actions ?? [])))
    .sort((one, other) => one.name.localeCompare(other.name, "en"));

/** Runs a command, and tells of its failure. @param {Command} command @param {string} [connection] */
export async function run(command, connection) {
  try {
    await command.run(connection);
  } catch (error) {
    failed(error);
  }
}

/** Opens the palette: of all commands, or of those about one connection. @param {any} [connection] of the store */
export function openPalette(connection) {
  return openDialog(
    { label: connection ? `Commands on ${text(nameOf(connection.connection))}` : "Commands", kind: "palette" },
    (close) => html`<${Palette} connection=${connection} close=${close} />`,
  );
}

/** @param {any} props */
function Palette({ connection, close }) {
  const [wanted, want] = useState("");
  const [on, choose] = useState(connection);
  const [active, move] = useState(0);
  const { connections } = useStore();
  const items = useMemo(() => found(wanted, on), [wanted, on, connections, connections.size]);
  /** @param {any} item */
  const open = (item) => {
    if (item.connection && !item.command && commandsOn(item.connection).length) {
      choose(item.connection);
      want("");
      move(0);
      return;
    }
    close();
    if (item.command) run(item.command, on?.connection);
    else go(address("hub", item.connection.connection));
  };
  const choice = useChoice(() => items[active] && open(items[active]));
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
    if (by) {
      event.preventDefault();
      move(Math.max(0, Math.min(items.length - 1, active + by)));
    } else if (event.key === "Enter") {
      event.preventDefault();
      // A command that the arrows have chosen is not meant to wait for machines.
      if (active === 0 && !on) choice.make();
      else if (items[active]) open(items[active]);
    } else if (event.key === "Backspace" && !wanted && on && !connection) choose(undefined);
  };
  return html`
    <label class="wanted">
      ${on && html`<span class="on">${text(nameOf(on.connection))}</span>`}
      <input type="search" role="combobox" aria-expanded="true" aria-controls="palette-items" aria-activedescendant=${items.length ? `palette-items-${active}` : undefined}
        aria-label=${on ? "Command" : "Command or machine"} placeholder=${on ? "Command" : "Go to a machine, or run a command"} value=${wanted} autofocus
        onKeyDown=${onKeyDown}
        onInput=${(/** @type {any} */ event) => {
          want(event.target.value);
          move(0);
          choice.forget();
        }} />
    </label>
    ${
      items.length
        ? html`<${Rows} id="palette-items" items=${items} label="Commands" active=${active} keyOf=${(/** @type {any} */ item) => item.key} open=${open} row=${line} height=${36} isPassive />`
        : html`<p class="empty">${choice.isReady ? "Nothing is called so." : "Reading the connections …"}</p>`
    }
  `;
}

/** @param {any} item */
const line = (item) => html`
  <span class="name">${item.command ? item.command.name : text(item.connection.name.join("/"))}</span>
  <span class="note">${item.command ? item.command.hint : text(item.connection.category.join("/"))}</span>
  ${item.command?.key && html`<kbd>${item.command.key}</kbd>`}
`;

/** @param {string} wanted @param {any} on */
function found(wanted, on) {
  const words = fold(wanted.trim()).split(/\s+/u);
  const named = (on ? [goTo(on), ...commandsOn(on)] : general())
    .filter((command) => words.every((word) => fold(command.name).includes(word)))
    .map((command) => ({ key: command.name, command }));
  if (on) return named;
  const machines = (wanted.trim() ? matching(wanted) : [...store.connections.values()]).map((connection) => ({
    key: connection.connection,
    connection,
  }));
  return wanted.trim() ? [...machines.slice(0, 3), ...named, ...machines.slice(3)] : [...named, ...machines];
}

/** @param {any} connection @returns {Command} */
const goTo = (connection) => ({
  name: "Show in the hub",
  hint: qualified(connection),
  run: () => go(address("hub", connection.connection)),
});

/** Shows all keys. */
function openKeys() {
  const keys = [
    ...general()
      .filter((one) => one.key)
      .map((one) => [one.key, one.name]),
  ];
  const more = [
    ["Ctrl K", "Commands and machines"],
    ["?", "These keys"],
    ["↑ ↓ Home End", "Move in a list"],
    ["Enter", "Open"],
    [".", "Commands on the connection in the list"],
    ["Esc", "Close, or leave the search"],
  ];
  return openDialog(
    { title: "Keys" },
    () => html`
    <dl class="keys">${[...more, ...keys].map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
  `,
  );
}

const CHORD_MS = 1000;

/** Listens to the keys of the page, while it is shown. */
export function useKeys() {
  useLayoutEffect(() => {
    let before = "";
    let at = 0;
    /** @param {KeyboardEvent} event */
    const pressed = (event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
        // In a terminal Ctrl-K is the shell's: there Command-K, or the button, opens the palette.
        if (target.closest(".xterm") && !event.metaKey) return;
        event.preventDefault();
        if (!document.querySelector("dialog[open]")) openPalette();
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (
        document.querySelector("dialog[open]") ||
        target.closest("input, textarea, select, .xterm, [contenteditable]")
      )
        return;
      const chord = event.timeStamp - at < CHORD_MS && before ? `${before} ${event.key}` : event.key;
      at = event.timeStamp;
      before = event.key;
      const command = general().find((one) => one.key === chord) ?? general().find((one) => one.key === event.key);
      if (!command && event.key !== "?") return;
      event.preventDefault();
      before = "";
      if (command) run(command);
      else openKeys();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
