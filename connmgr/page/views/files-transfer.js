// Uploads and downloads. Neither holds a file in memory: an upload's body is the file itself, or an archive that is
// put together from files by reference, and a download is a link that the browser stores by itself.

import { ApiError, answerOf, authorization, call } from "../core/api.js";
import { percent, toBytes } from "./files-names.js";

const BLOCK = 512;
const LONGEST_NAME = 100;
const MAX_SIZE = 8 * 1024 ** 3 - 1;

/**
 * @typedef {import("./files-place.js").Place} Place
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

/** An archive of members, which refers to the files and does not contain them. @param {Member[]} members */
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
