// Ways to places: addresses, each view's below `#/`, which can be kept, sent and gone back to; and commands, which the
// palette (Ctrl-K) and the keys run.

import { can } from "./store.js";
import { failed, useLayoutEffect, useState } from "./ui.js";

/** The address of a view, such as `#/hub/default/web%201`. @param {string} view @param {...string} path */
export function address(view, ...path) {
  return `#/${[view, ...path].map(encodeURIComponent).join("/")}`;
}

/** Goes to an address; `replace` leaves no step to go back to. @param {string} hash @param {{replace?: boolean}} [options] */
export function go(hash, { replace = false } = {}) {
  if (!replace) location.hash = hash;
  else {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** @returns {Route} */
export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [view, ...rest] = path.split("/").map(decoded);
  return { view, path: rest.filter((segment) => segment !== ""), query: new URLSearchParams(query) };
}

/** @param {string} segment */
function decoded(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    // Typed by hand: a percent sign that stands for itself.
    return segment;
  }
}

export function useRoute() {
  const [now, set] = useState(route);
  // Not by useEffect, here and wherever a component listens: it runs some frames later, and what happens until then would
  // be lost.
  useLayoutEffect(() => {
    const changed = () => set(route());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return now;
}

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

/** The other ones. */
export const general = () =>
  [...commands]
    .filter((one) => !one.on && can(...(one.actions ?? [])))
    .sort((one, other) => one.name.localeCompare(other.name, "en"));

/** @param {Command} command @param {any} [given] the id of its connection, or what reads a list again */
export async function run(command, given) {
  try {
    await command.run(given);
  } catch (error) {
    failed(error);
  }
}

/** @param {any} [connection] of the store */
export const openPalette = async (connection) => (await import("./palette.js")).openPalette(connection);

const CHORD_MS = 1000;

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
      if (document.querySelector("dialog[open]")) return;
      // A field of a dialog that was closed just now has the focus until the next frame.
      if (target.closest(":is(input, textarea, select, .xterm, [contenteditable]):not(dialog *)")) return;
      const chord = event.timeStamp - at < CHORD_MS && before ? `${before} ${event.key}` : event.key;
      at = event.timeStamp;
      before = event.key;
      const command = general().find((one) => one.key === chord) ?? general().find((one) => one.key === event.key);
      if (!command && event.key !== "?") return;
      event.preventDefault();
      before = "";
      if (command) run(command);
      else import("./palette.js").then(({ openKeys }) => openKeys(), failed);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
