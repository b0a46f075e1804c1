// Where files are: a machine, and the user as whom they are read and written.

import { ApiError, call } from "../core/api.js";
import { nameOf } from "../core/store.js";
import { form } from "../core/ui.js";
import { percent, unpercent } from "./files-names.js";

/** @typedef {{connection: string, elevate?: {user: string}}} Place */

/** The places whose shell this page has seen running. @type {Set<string>} */
const started = new Set();

/** Sends a request about files; starts the shell that does the work, and asks for a password that sudo wants. */
export async function ask(
  /** @type {string} */ path,
  /** @type {Place} */ place,
  /** @type {any} */ fields,
  /** @type {(path: string, data: object) => Promise<any>} */ send = call,
) {
  const key = `${place.connection} ${place.elevate?.user ?? ""}`;
  if (!started.has(key)) {
    // A shell that runs is left as it is.
    await start(place);
    started.add(key);
  }
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

/**
 * The address of a directory, or of a file in the editor: `#/files/CONNECTION` is the home directory, and what follows is
 * the path, `~/…` below the home directory.
 * @param {Place} place @param {string} path
 */
export function addressOf(place, path, edit = false) {
  const query = [place.elevate && `as=${percent(place.elevate.user)}`, edit && "edit"].filter(Boolean).join("&");
  const shown = path.startsWith("/") ? percent(path, "/").replace(/^\/~/, "/%7E") : `/${percent(path, "/")}`;
  return `#/files/${place.connection}${shown}${query && `?${query}`}`;
}

/** What an address means, as it is written: a path may have bytes that are not UTF-8. @param {string} hash */
export function placeAt(hash) {
  const [, connection = "", rest = "", query = ""] = /^#\/files\/([^/?]*)([^?]*)\??(.*)$/s.exec(hash) ?? [];
  const options = new Map(
    query.split("&").map((each) => /** @type {[string, string]} */ ([...each.split("="), ""].slice(0, 2))),
  );
  const path = rest === "" ? "~" : rest.startsWith("/~") ? unpercent(rest.slice(1)) : unpercent(rest);
  return { connection, path, user: unpercent(options.get("as") ?? ""), edit: options.has("edit") };
}
