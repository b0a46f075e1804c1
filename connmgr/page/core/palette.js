// The palette: every command of every view by its name, and every connection by its own.

import { fold } from "./names.js";
import { address, commandsOn, general, go, run } from "./navigate.js";
import { matching, nameOf, qualified, store, useChoice, useStore } from "./store.js";
import { html, openDialog, Rows, text, useMemo, useState } from "./ui.js";

/** @param {any} [connection] of the store */
export function openPalette(connection) {
  // Its key may have been pressed again while this module was loaded.
  if (document.querySelector("dialog[open]")) return;
  const label = connection ? `Commands on ${nameOf(connection.connection)}` : "Commands";
  return openDialog(
    { label, kind: "palette" },
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
        onInput=${(event) => {
          want(event.target.value);
          move(0);
          choice.forget();
        }} />
    </label>
    ${
      items.length
        ? html`<${Rows} id="palette-items" items=${items} label="Commands" active=${active} keyOf=${(item) => item.key} open=${open} row=${line} height=${36} isPassive />`
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

export function openKeys() {
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
