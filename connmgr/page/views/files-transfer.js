// Files of machines as the API has them: their paths, which are bytes; where they are; and what is sent and fetched.

import { ApiError, answerOf, authorization, call } from "../core/api.js";
import { form } from "../core/forms.js";
import { nameOf } from "../core/store.js";
import { lines } from "../core/ui.js";

// A path is a string here, in which a byte that is not part of UTF-8 is a lone surrogate U+DC80 to U+DCFF, so that such a
// file too can be opened, renamed and removed.

const LOW = 0xdc00;
const FIRST = 0xdc80;
const LAST = 0xdcff;

/** @typedef {string | {base64: string}} Wire */

/** @param {Uint8Array} bytes @returns {string} */
export function fromBytes(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    // Byte by byte, with each longest valid sequence as its character.
    let text = "";
    for (let at = 0; at < bytes.length; ) {
      const size = [1, 2, 3, 4].find((count) => isCharacter(bytes.subarray(at, at + count), count));
      text += size ? new TextDecoder().decode(bytes.subarray(at, at + size)) : String.fromCharCode(LOW + bytes[at]);
      at += size ?? 1;
    }
    return text;
  }
}

/** @param {Uint8Array} bytes @param {number} count */
function isCharacter(bytes, count) {
  if (bytes.length < count) return false;
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return [...text].length === 1;
  } catch {
    return false;
  }
}

/** @param {string} text @returns {Uint8Array} */
export function toBytes(text) {
  /** @type {number[]} */
  const bytes = [];
  const encoder = new TextEncoder();
  for (const each of text) {
    const code = each.charCodeAt(0);
    if (each.length === 1 && code >= FIRST && code <= LAST) bytes.push(code - LOW);
    else bytes.push(...encoder.encode(each));
  }
  return Uint8Array.from(bytes);
}

/** @param {string} text @returns {Wire} */
export function toWire(text) {
  if (!/[\udc80-\udcff]/.test(text.replace(/[\ud800-\udbff][\udc00-\udfff]/g, ""))) return text;
  return { base64: btoa(String.fromCharCode(...toBytes(text))) };
}

/** @param {Wire} wire @returns {string} */
export function fromWire(wire) {
  if (typeof wire === "string") return wire;
  return fromBytes(Uint8Array.from(atob(wire.base64), (each) => each.charCodeAt(0)));
}

/** A path for an address or a query, by its bytes; slashes stay where `keep` has them. @param {string} text */
export function percent(text, keep = "") {
  return [...toBytes(text)]
    .map((byte) => {
      const each = String.fromCharCode(byte);
      return /[A-Za-z0-9._~-]/.test(each) || keep.includes(each)
        ? each
        : `%${byte.toString(16).padStart(2, "0").toUpperCase()}`;
    })
    .join("");
}

/** @param {string} text */
export function unpercent(text) {
  const bytes = [];
  const given = new TextEncoder().encode(text);
  for (let at = 0; at < given.length; at++) {
    const code =
      given[at] === 0x25 ? Number.parseInt(String.fromCharCode(given[at + 1], given[at + 2]), 16) : Number.NaN;
    if (Number.isNaN(code)) bytes.push(given[at]);
    else {
      bytes.push(code);
      at += 2;
    }
  }
  return fromBytes(Uint8Array.from(bytes));
}

/** @param {string} directory @param {string} name */
export function join(directory, name) {
  return directory.endsWith("/") ? directory + name : `${directory}/${name}`;
}

/** The directory above, `/` at the top. @param {string} path */
export function above(path) {
  const trimmed = path.length > 1 ? path.replace(/\/+$/, "") : path;
  if (trimmed === "~" || trimmed === "") return "~/..";
  if (trimmed.endsWith("/..")) return `${trimmed}/..`;
  const cut = trimmed.lastIndexOf("/");
  return cut <= 0 ? "/" : trimmed.slice(0, cut);
}

/** The steps of a path, each with the path that leads to it. @param {string} path */
export function crumbs(path) {
  const parts = path.split("/").filter((part) => part);
  const absolute = path.startsWith("/");
  const steps = parts.map((name, index) => ({
    name,
    path: (absolute ? "/" : "") + parts.slice(0, index + 1).join("/"),
  }));
  return absolute ? [{ name: "/", path: "/" }, ...steps] : steps;
}

// A place: a machine, and the user as whom files are read and written.

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
      text: lines(error.message),
      properties: { password: { format: "password" } },
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

// Neither an upload nor a download holds a file in memory: an upload's body is the file itself, or an archive that is put
// together from files by reference, and a download is a link that the browser stores by itself.

const BLOCK = 512;
const LONGEST_NAME = 100;
const MAX_SIZE = 8 * 1024 ** 3 - 1;

/**
 * @typedef {{path: string, file: File | null}} Member a file, or a directory, by its path in what was dropped
 */

/** Has the browser download a file, or `members` of a directory as an archive. */
export async function download(
  /** @type {Place} */ place,
  /** @type {any} */ path,
  /** @type {any[] | null} */ members,
) {
  const archive = members !== null;
  const { ticket, name } = await call("/fs/ticket", { ...place, path, archive, ...(members?.length && { members }) });
  const link = document.createElement("a");
  link.href = `/fs/download?ticket=${ticket}`;
  link.download = name;
  link.click();
  return name;
}

/**
 * Sends a body to `/fs/upload` or `/fs/extract`; resolves to the answer, or rejects with the error of the API.
 * @param {string} path @param {Record<string, string>} query percent-encoded @param {Blob} body
 * @param {(sent: number) => void} progress @param {AbortSignal} signal
 * @returns {Promise<any>}
 */
export function send(path, query, body, progress, signal) {
  return new Promise((resolve, reject) => {
    // fetch does not tell how much of a body has been sent.
    const request = new XMLHttpRequest();
    const parts = Object.entries(query).map(([name, value]) => `${name}=${value}`);
    request.open("POST", `${path}?${parts.join("&")}`);
    request.setRequestHeader("Authorization", authorization().Authorization);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = (event) => progress(event.loaded);
    request.onload = () => {
      try {
        resolve(answerOf(request.status, request.responseText));
      } catch (error) {
        reject(error);
      }
    };
    request.onerror = () =>
      reject(new ApiError({ code: "unreachable", message: "The connection to the daemon broke off." }, 0));
    request.onabort = () => reject(new ApiError({ code: "cancelled", message: "Cancelled." }, 0));
    signal.addEventListener("abort", () => request.abort());
    request.send(body);
  });
}

/** @param {Place} place */
export function queryOf(place) {
  return { connection: place.connection, ...(place.elevate && { elevate: percent(place.elevate.user) }) };
}

/**
 * What was dropped: its files and directories, by their paths.
 * @param {DataTransfer} transfer @returns {Promise<Member[]>}
 */
export async function dropped(transfer) {
  // Entries are valid only until this event is over, so all are taken before the first is waited for.
  const entries = [...transfer.items]
    .filter((item) => item.kind === "file")
    .map((item) => item.webkitGetAsEntry() ?? item.getAsFile());
  /** @type {Member[]} */
  const members = [];
  for (const entry of entries) {
    // A file that no directory has, such as one that another page has made, has no entry.
    if (entry instanceof File) members.push({ path: entry.name, file: entry });
    else if (entry) await collect(entry, "", members);
  }
  return members;
}

/** @param {any} entry @param {string} above @param {Member[]} members */
async function collect(entry, above, members) {
  const path = above + entry.name;
  if (entry.isFile) {
    members.push({ path, file: await new Promise((resolve, reject) => entry.file(resolve, reject)) });
    return;
  }
  members.push({ path, file: null });
  const reader = entry.createReader();
  for (;;) {
    // A reader gives a hundred at a time.
    const batch = /** @type {any[]} */ (await new Promise((resolve, reject) => reader.readEntries(resolve, reject)));
    if (!batch.length) return;
    for (const each of batch) await collect(each, `${path}/`, members);
  }
}

/** @param {Member[]} members */
export function archiveOf(members) {
  /** @type {BlobPart[]} */
  const parts = [];
  for (const { path, file } of members) {
    const name = toBytes(file ? path : `${path}/`);
    const size = file?.size ?? 0;
    const records = [];
    if (name.length > LONGEST_NAME) records.push(record("path", name));
    if (size > MAX_SIZE) records.push(record("size", toBytes(String(size))));
    if (records.length) {
      const extended = joined(records);
      parts.push(header(toBytes("pax"), extended.length, "x", 0), extended, padding(extended.length));
    }
    const seconds = Math.floor((file?.lastModified ?? Date.now()) / 1000);
    parts.push(header(name.subarray(0, LONGEST_NAME), size, file ? "0" : "5", seconds));
    if (file) parts.push(file, padding(size));
  }
  parts.push(new Uint8Array(2 * BLOCK));
  return new Blob(parts);
}

/** @param {Uint8Array} name @param {number} size @param {string} type @param {number} seconds */
function header(name, size, type, seconds) {
  const block = new Uint8Array(BLOCK);
  const put = (/** @type {number} */ at, /** @type {string} */ text) => block.set(toBytes(text), at);
  const octal = (/** @type {number} */ value, /** @type {number} */ digits) => value.toString(8).padStart(digits, "0");
  block.set(name, 0);
  put(100, octal(type === "5" ? 0o755 : 0o644, 7));
  put(108, octal(0, 7));
  put(116, octal(0, 7));
  // A size beyond eleven octal digits is in the extended header.
  put(124, octal(Math.min(size, MAX_SIZE), 11));
  put(136, octal(Math.max(0, seconds), 11));
  put(148, "        ");
  put(156, type);
  put(257, "ustar\u000000");
  put(
    148,
    `${octal(
      block.reduce((sum, byte) => sum + byte, 0),
      6,
    )}\0 `,
  );
  return block;
}

/** A record of an extended header, whose length counts its own digits. @param {string} name @param {Uint8Array} value */
function record(name, value) {
  const rest = joined([toBytes(` ${name}=`), value, toBytes("\n")]);
  let length = rest.length;
  while (length !== rest.length + String(length).length) length = rest.length + String(length).length;
  return joined([toBytes(String(length)), rest]);
}

/** @param {Uint8Array[]} parts */
function joined(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** @param {number} size */
function padding(size) {
  return new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);
}
