// Where files are: a machine, and the user as whom they are read and written.

import { ApiError, call } from "../core/api.js";
import { nameOf } from "../core/store.js";
import { form } from "../core/ui.js";
import { percent } from "./files-names.js";

/** @typedef {{connection: string, elevate?: {user: string}}} Place */

/** Sends a request about files; starts the shell that does the work, and asks for a password that sudo wants. */
export async function ask(/** @type {string} */ path, /** @type {Place} */ place, /** @type {any} */ fields, send = call) {
  try {
    return await send(path, { ...place, ...fields });
  } catch (error) {
    if (!(error instanceof ApiError) || !["no_shell", "shell_lost"].includes(error.code)) throw error;
    await start(place);
    return send(path, { ...place, ...fields });
  }
}

/** @param {Place} place */
async function start(place) {
  try {
    await call("/shell/start", place);
  } catch (error) {
    if (!place.elevate || !(error instanceof ApiError) || error.code !== "elevation_failed") throw error;
    const given = await form({
      title: `Password for sudo on ${nameOf(place.connection)}`,
      text: error.message,
      fields: [{ name: "password", label: "Password", type: "password", required: true }],
      yes: "Continue",
    });
    if (!given) throw error;
    // The daemon keeps it in memory for this connection, and types it at the prompt.
    await call("/shell/start", { ...place, elevate: { ...place.elevate, password: given.password } });
  }
}

/** The address of a directory. @param {Place} place @param {string} path */
export function addressOf(place, path, edit = false) {
  const query = [place.elevate && `as=${percent(place.elevate.user)}`, edit && "edit"].filter(Boolean).join("&");
  return `#/files/${place.connection}/${percent(path, "/")}${query && `?${query}`}`;
}
