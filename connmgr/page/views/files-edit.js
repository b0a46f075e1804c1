// A text file in an editor. It is saved only over the content that was read, unless the person decides otherwise.

import { ApiError } from "../core/api.js";
import { go } from "../core/router.js";
import { nameOf } from "../core/store.js";
import { confirm, failed, form, text, toast } from "../core/ui.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/htm-preact.js";
import { above, join, size, toWire } from "./files-names.js";
import { addressOf, ask } from "./files-place.js";
import { download } from "./files-transfer.js";
import { fetched } from "./raw.js";

const MAX_BYTES = 2 << 20;

/** @typedef {import("./files-place.js").Place} Place */
/** @typedef {{text: string, sha256: string, endings: string}} Content */

/** Why a file is not edited here, as a sentence. */
class Unfit extends Error {}

/** @param {Place} place @param {string} path @returns {Promise<Content>} */
async function read(place, path) {
  const found = await ask("/fs/stat", place, { path: toWire(path) });
  if (found.type !== "file") throw new Unfit(`This is a ${found.type}, not a file.`);
  if (found.size > MAX_BYTES)
    throw new Unfit(`The file has ${size(found.size)}; files of up to ${size(MAX_BYTES)} are edited here.`);
  const response = await ask("/fs/read", place, { path: toWire(path) }, fetched);
  const bytes = await response.arrayBuffer();
  let content;
  try {
    content = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new Unfit("The file is not text in UTF-8.");
  }
  if (content.includes("\0")) throw new Unfit("The file is not text: it has NUL bytes.");
  // A field of the page has only LF. Text with both kinds would not come back as it was.
  const [all, pairs] = [content.match(/\r\n?|\n/g) ?? [], content.match(/\r\n/g) ?? []];
  if (content.replaceAll("\r\n", "").includes("\r") || (pairs.length && pairs.length !== all.length)) {
    throw new Unfit("The lines of the file end in different ways, which an editor in a page cannot keep.");
  }
  return {
    text: content.replaceAll("\r\n", "\n"),
    sha256: await digest(place, path, bytes),
    endings: pairs.length ? "\r\n" : "\n",
  };
}

/** @param {Place} place @param {string} path @param {ArrayBuffer} bytes */
async function digest(place, path, bytes) {
  if (!globalThis.crypto?.subtle) {
    // Browsers have it only for pages of this machine or by https.
    const { entries } = await ask("/fs/checksum", place, { path: toWire(path) });
    return entries[0].sha256;
  }
  const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...sum].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {Place} place @param {string} path @param {string} content @param {any} check */
async function write(place, path, content, check) {
  const bytes = new TextEncoder().encode(content);
  const { blob } = await (await fetched("/fs/blob", new Blob([bytes]))).json();
  await ask("/fs/write", place, { path: toWire(path), blob, ...check });
  return digest(place, path, bytes.buffer);
}

/** @param {{place: Place, path: string}} props */
export function Editor({ place, path }) {
  const [content, open] = useState(/** @type {Content | null} */ (null));
  const [problem, tell] = useState(/** @type {any} */ (null));
  const [changed, change] = useState(false);
  const [saving, save] = useState(false);
  /** Whether it was asked for once more while it was under way. */
  const isWanted = useRef(false);
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const load = () =>
    read(place, path).then((found) => {
      open(found);
      change(false);
      tell(null);
      if (field.current) field.current.value = found.text;
    }, tell);
  useEffect(() => {
    load();
  }, []);
  useEffect(() => {
    if (!changed) return undefined;
    const stay = (/** @type {BeforeUnloadEvent} */ event) => event.preventDefault();
    addEventListener("beforeunload", stay);
    return () => removeEventListener("beforeunload", stay);
  }, [changed]);
  const store = async () => {
    isWanted.current = saving;
    if (!field.current || !content || saving) return;
    save(true);
    const given = field.current.value;
    const written = given.replaceAll("\n", content.endings);
    try {
      const sha256 = await write(place, path, written, { replaces: content.sha256 });
      open({ ...content, text: given, sha256 });
      change(field.current.value !== given);
      toast(`${text(path)} is saved.`);
    } catch (error) {
      if (error instanceof ApiError && error.code === "file_changed") await conflict(given, written);
      else failed(error);
    } finally {
      save(false);
    }
  };
  /** @param {string} given @param {string} written */
  const conflict = async (given, written) => {
    if (!content) return;
    const now = await read(place, path).catch((error) => failed(error));
    if (!now) return;
    const question = {
      title: "Somebody changed this file meanwhile",
      text: "Replace their content by yours? Without that, yours stays in the editor, and nothing is written.",
      yes: "Replace theirs",
      danger: true,
    };
    if (!(await confirm(question))) return;
    try {
      const sha256 = await write(place, path, written, { replaces: now.sha256 });
      open({ ...content, text: given, sha256 });
      change(field.current?.value !== given);
    } catch (error) {
      failed(error);
    }
  };
  useLayoutEffect(() => {
    if (!saving && isWanted.current) store();
  }, [saving]);
  if (problem) {
    return html`
      <section class="view files" aria-label="Editor">
        <h1 class="unseen">Editor</h1>
        <p class="how" role="alert">
          ${text(problem.message)}
          ${problem instanceof Unfit && html`<button class="primary" onClick=${() => download(place, toWire(path), null).catch(failed)}>Download</button>`}
          <a href=${addressOf(place, above(path))}>Back</a>
        </p>
      </section>
    `;
  }
  if (!content) return null;

  const leave = async () => {
    if (changed && !(await confirm({ title: "Leave without saving?", text: text(path), yes: "Leave", danger: true })))
      return;
    go(addressOf(place, above(path)));
  };
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      store();
    }
  };
  return html`
    <section class="view files editor" aria-label=${`Editor of ${text(path)}`} onKeyDown=${onKeyDown}>
      <h1 class="unseen">Editor</h1>
      <header>
        <nav class="crumbs" aria-label="Path"><strong>${text(nameOf(place.connection))}</strong> <span>${text(path)}</span></nav>
        ${place.elevate && html`<span class="as elevated">as ${text(place.elevate.user)}</span>`}
        <div class="tools" role="toolbar" aria-label="Editor">
          <span class="note" role="status">${changed ? "not saved" : ""}</span>
          <button class="primary" disabled=${!changed || saving} title="Ctrl+S" onClick=${store}>${saving ? "Saving …" : "Save"}</button>
          <button onClick=${leave}>Close</button>
        </div>
      </header>
      <textarea ref=${field} class="mono" aria-label="Content" spellcheck=${false} autocapitalize="off" wrap="off"
        defaultValue=${content.text} onInput=${() => change(field.current?.value !== content.text)}></textarea>
    </section>
  `;
}

/** @param {{place: Place, path: string}} props */
export function NewFile({ place, path }) {
  const make = async () => {
    const given = await form({
      title: "New file",
      fields: [{ name: "name", label: "Name", required: true }],
      yes: "Create",
    });
    if (!given) return;
    try {
      await write(place, join(path, given.name), "", { create: true });
      go(addressOf(place, join(path, given.name), true));
    } catch (error) {
      failed(error);
    }
  };
  return html`<button onClick=${make}>New file</button>`;
}
