// Files of a machine: listed, moved in both directions, edited, renamed, removed, as the login's user or as another.

import { ApiError, fetched, token } from "../core/api.js";
import { form } from "../core/forms.js";
import { go, register, useRoute } from "../core/navigate.js";
import { nameOf, useStore } from "../core/store.js";
import {
  ago,
  confirm,
  counted,
  doing,
  Fault,
  failed,
  html,
  Rows,
  text,
  toast,
  useAnswer,
  useEffect,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "../core/ui.js";
import {
  above,
  addressOf,
  archiveOf,
  ask,
  crumbs,
  download,
  dropped,
  fromWire,
  join,
  percent,
  placeAt,
  queryOf,
  send,
  toWire,
} from "./files-transfer.js";
import { bytes, Chooser } from "./listing.js";

const SHOWN_NAMES = 8;
const HIDDEN_KEY = "connmgr.files.hidden";

/**
 * @typedef {import("./files-transfer.js").Place} Place
 * @typedef {{name: string, type: string, size: number, mode: string, modified: string, owner: string, group: string, target: string | null}} Entry
 */

const size = (/** @type {number} */ count) => bytes(count, 1000);

/** `#/files/CONNECTION/PATH?as=USER&edit`. */
function Files() {
  useRoute();
  useStore();
  const { connection, path, user, edit } = placeAt(location.hash);
  const place = useMemo(() => ({ connection, ...(user && { elevate: { user } }) }), [connection, user]);
  if (!connection)
    return html`
      <section class="overview" aria-label="Files">
        <h1>Files</h1>
        <div class="chooser"><${Chooser} label="Files of …" choose=${(connection) => go(addressOf({ connection }, "~"))} /></div>
        <p class="note">Or open them from a machine in the hub.</p>
      </section>
    `;
  const key = `${connection} ${user}`;
  if (edit) return html`<${Editor} key=${`${key} ${path}`} place=${place} path=${path} />`;
  return html`<${Directory} key=${key} place=${place} path=${path} />`;
}

/** @param {{place: Place, path: string}} props */
function Directory({ place, path }) {
  const [order, sort] = useState({ by: "name", down: false });
  const [hidden, hide] = useState(localStorage.getItem(HIDDEN_KEY) === "shown");
  const [chosen, choose] = useState(/** @type {Set<string>} */ (new Set()));
  const [transfers, transfer] = useReducer(update, []);
  const [over, hover] = useState(false);
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const machine = nameOf(place.connection);
  const wire = (/** @type {string} */ name) => toWire(join(path, name));

  const {
    answer: listed,
    error,
    isOld,
    again,
  } = useAnswer(async () => {
    const { entries } = await ask("/fs/list", place, { path: toWire(path) });
    return entries.map((/** @type {any} */ one) => ({
      ...one,
      name: fromWire(one.name),
      target: one.target ? fromWire(one.target) : null,
    }));
  }, [place, path]);
  useLayoutEffect(() => choose(new Set()), [place, path]);

  const all = /** @type {Entry[]} */ ((!isOld && listed) || []);
  const entries = useMemo(() => sorted(all, order, hidden), [listed, isOld, order, hidden]);
  const meant = entries.filter((one) => chosen.has(one.name));
  const [first] = meant;
  const title = meant.length === 1 ? text(first?.name) : `${meant.length} entries`;
  /** Does something with what is chosen, and lists what is there then. @param {() => Promise<unknown>} work */
  const then = (work) =>
    doing(async () => {
      try {
        await work();
      } finally {
        again();
      }
    });

  /** @param {Entry} one */
  const open = ({ name, type }) =>
    doing(async () => {
      const target = join(path, name);
      const found =
        type === "link"
          ? await ask("/fs/stat", place, { path: toWire(target) }).then(
              (there) => there.type,
              (error) => {
                if (error.code !== "no_such_file") throw error;
                return "link that leads nowhere";
              },
            )
          : type;
      if (found === "directory" || found === "file") go(addressOf(place, target, found === "file"));
      else toast(`${text(name)} is a ${found}; it cannot be opened.`);
    })();

  /** @param {import("./files-transfer.js").Member[]} members */
  const upload = async (members) => {
    const topOf = (/** @type {{path: string}} */ member) => member.path.split("/")[0];
    const names = new Set(all.map((one) => one.name));
    const there = [...new Set(members.map(topOf))].filter((name) => names.has(name));
    const question = { title: "Replace what is there?", text: named(there), yes: "Replace", danger: true };
    if (there.length && !(await confirm(question))) return;
    const trees = members.filter((member) => !member.file || member.path.includes("/"));
    if (trees.length) {
      const tops = [...new Set(trees.map(topOf))].map((name) => `${name}/`).join(", ");
      run(tops, "/fs/extract", { ...queryOf(place), path: percent(path, "/") }, archiveOf(trees));
    }
    for (const { path: name, file } of members) {
      if (!file || name.includes("/")) continue;
      const query = {
        ...queryOf(place),
        path: percent(join(path, name), "/"),
        modified: percent(new Date(file.lastModified).toISOString()),
        // What somebody else has put there meanwhile is not replaced without a question.
        ...(!there.includes(name) && { create: "true" }),
      };
      run(name, "/fs/upload", query, file);
    }
  };

  /** @param {string} name @param {string} target @param {Record<string, string>} query @param {Blob} body */
  const run = async (name, target, query, body) => {
    const id = crypto.randomUUID();
    const control = new AbortController();
    transfer({ id, name, total: body.size, sent: 0, began: performance.now(), cancel: () => control.abort() });
    try {
      const { failed = [] } = await send(target, query, body, (sent) => transfer({ id, sent }), control.signal);
      const why = failed.map((/** @type {any} */ one) => `${fromWire(one.path)}: ${one.message}`);
      transfer({ id, done: true, why: why.length ? `Not moved to their place: ${named(why)}` : "" });
    } catch (error) {
      transfer({ id, done: true, why: /** @type {Error} */ (error).message });
    }
    again();
  };

  const remove = then(async () => {
    const names = meant.map((one) => (one.type === "directory" ? `${one.name}/` : one.name));
    const isDeep = meant.some((one) => one.type === "directory");
    const isMeant = await confirm({
      title: `Remove ${meant.length === 1 ? "this" : title} from ${machine}?`,
      text: `${named(names)}${isDeep ? "\n\nDirectories go with all that is in them." : ""}`,
      yes: "Remove",
      danger: true,
    });
    if (!isMeant) return;
    const problems = /** @type {string[]} */ ([]);
    for (const { name, type } of meant)
      await ask("/fs/remove", place, { path: wire(name), recursive: type === "directory" }).catch((error) =>
        problems.push(error.message),
      );
    choose(new Set());
    if (problems.length) toast(named(problems), { isFault: true });
  });

  const rename = then(async () => {
    const given = await form({
      title: `Rename ${title}`,
      properties: { name: { title: "New name, or a path" } },
      value: { name: first.name },
      yes: "Rename",
    });
    if (!given || given.name === first.name) return;
    const [source, target] = [wire(first.name), given.name.includes("/") ? toWire(given.name) : wire(given.name)];
    choose(new Set());
    await ask("/fs/move", place, { source, target });
    toast(`${title} is now ${text(given.name)}.`, {
      undo: () => ask("/fs/move", place, { source: target, target: source }).then(again),
    });
  });

  const make = then(() =>
    form({
      title: "New directory",
      properties: { name: {} },
      yes: "Create",
      work: ({ name }) => ask("/fs/mkdir", place, { path: wire(name) }),
    }),
  );

  const makeFile = doing(async () => {
    const given = await form({ title: "New file", properties: { name: {} }, yes: "Create" });
    if (!given) return;
    await write(place, join(path, given.name), "", { create: true });
    go(addressOf(place, join(path, given.name), true));
  });

  const change = then(async () => {
    const isOne = meant.length === 1;
    const given = await form({
      title: `Permissions of ${title}`,
      text: isOne ? modeText(first.type, first.mode) : "What is left empty stays as it is.",
      properties: { mode: { title: "Mode, in octal", pattern: "[0-7]{3,4}" }, owner: {}, group: {} },
      required: [],
      value: isOne ? { mode: first.mode, owner: first.owner, group: first.group } : {},
      yes: "Change",
    });
    if (!given) return;
    const wanted = { ...given, ...(given.mode && { mode: given.mode.padStart(4, "0") }) };
    const names = /** @type {const} */ (["mode", "owner", "group"]);
    const before = /** @type {object[]} */ ([]);
    const set = (/** @type {object} */ attributes) => ask("/fs/attributes", place, attributes);
    const undo = async () => {
      for (const attributes of before) await set(attributes);
      again();
    };
    try {
      for (const one of meant) {
        const some = names.filter((name) => wanted[name] && wanted[name] !== one[name]);
        const of = (/** @type {any} */ from) => ({
          path: wire(one.name),
          ...Object.fromEntries(some.map((name) => [name, from[name]])),
        });
        if (!some.length) continue;
        await set(of(wanted));
        before.push(of(one));
      }
    } finally {
      // Also where only some of them could be changed.
      if (before.length)
        toast(`The permissions of ${counted(before.length, "entry", "entries")} are changed.`, { undo });
    }
  });

  const fetch = doing(async () => {
    if (meant.length > 1)
      return download(
        place,
        toWire(path),
        meant.map((one) => toWire(one.name)),
      );
    if (first.type === "directory") return download(place, wire(first.name), []);
    await ask("/fs/stat", place, { path: wire(first.name) });
    return download(place, wire(first.name), null);
  });

  const as = doing(async () => {
    const given = await form({
      title: "As which user?",
      text: "By sudo on the machine. Empty: the user of the login.",
      properties: { user: {} },
      required: [],
      value: { user: place.elevate?.user ?? "root" },
      yes: "Switch",
    });
    if (given)
      go(addressOf({ connection: place.connection, ...(given.user && { elevate: { user: given.user } }) }, path));
  });

  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (event.key === "Delete" && meant.length) remove();
    else if (event.key === "F2" && meant.length === 1) rename();
    else if (event.key === "Backspace" || (event.altKey && event.key === "ArrowUp")) go(addressOf(place, above(path)));
    else return;
    event.preventDefault();
  };
  /** @param {DragEvent} event */
  const onDrop = (event) => {
    event.preventDefault();
    hover(false);
    if (event.dataTransfer) dropped(event.dataTransfer).then(upload).catch(failed);
  };
  /** @param {DragEvent} event */
  const onDragOver = (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    hover(true);
  };

  return html`
    <section class=${over ? "view files over" : "view files"} aria-label=${`Files of ${text(machine)}`}
      onKeyDown=${onKeyDown} onDrop=${onDrop} onDragOver=${onDragOver} onDragLeave=${() => hover(false)}>
      <h1 class="unseen">Files</h1>
      <header>
        <nav class="crumbs" aria-label="Path">
          <strong>${text(machine)}</strong>
          ${path.startsWith("/") ? html`<a href=${addressOf(place, "~")} title="Home">~</a>` : html`<a href=${addressOf(place, "/")}>/</a>`}
          ${crumbs(path).map(
            (step, index, all) => html`
            <a class=${step.path === "/" ? "" : "step"} href=${addressOf(place, step.path)} aria-current=${index === all.length - 1 ? "page" : undefined}>${text(step.name)}</a>`,
          )}
        </nav>
        <button class=${place.elevate ? "as elevated" : "as"} onClick=${as}>as ${text(place.elevate?.user ?? "login user")}</button>
      </header>
      <div class="tools" role="toolbar" aria-label="Files">
        <button class="primary" onClick=${() => input.current?.click()}>Upload</button>
        <input ref=${input} type="file" multiple hidden aria-label="Files to upload" onChange=${({ target }) => {
          upload([...target.files].map((file) => ({ path: file.name, file })));
          target.value = "";
        }} />
        <button onClick=${make}>New directory</button>
        <button onClick=${makeFile}>New file</button>
        <span class="gap"></span>
        <button disabled=${!meant.length} onClick=${fetch}>Download</button>
        <button disabled=${meant.length !== 1} title="F2" onClick=${rename}>Rename</button>
        <button disabled=${!meant.length} onClick=${change}>Permissions</button>
        <button disabled=${!meant.length} title="Delete" class="danger" onClick=${remove}>Remove</button>
        <label><input type="checkbox" checked=${hidden} onChange=${() => {
          localStorage.setItem(HIDDEN_KEY, hidden ? "" : "shown");
          hide(!hidden);
        }} /> Hidden</label>
      </div>
      ${error && html`<${Fault} error=${error} again=${again} />`}
      ${listed && !isOld && html`<${Entries} ...${{ entries, path, place, order, sort, chosen, choose, open }} all=${all.length} />`}
      <${Transfers} transfers=${transfers} />
    </section>
  `;
}

const NAMES = new Intl.Collator(undefined, { numeric: true });
const ORDERS = /** @type {Record<string, (one: Entry, other: Entry) => number>} */ ({
  name: (one, other) => NAMES.compare(one.name, other.name),
  size: (one, other) => one.size - other.size,
  modified: (one, other) => Date.parse(one.modified) - Date.parse(other.modified),
  owner: (one, other) => NAMES.compare(one.owner, other.owner),
});

/** @param {Entry[]} entries @param {{by: string, down: boolean}} order @param {boolean} hidden */
function sorted(entries, { by, down }, hidden) {
  const rank = (/** @type {Entry} */ one) => (one.type === "directory" ? 0 : 1);
  const compare = (/** @type {Entry} */ one, /** @type {Entry} */ other) => (down ? -1 : 1) * ORDERS[by](one, other);
  return entries
    .filter((one) => hidden || !one.name.startsWith("."))
    .sort((one, other) => rank(one) - rank(other) || compare(one, other) || ORDERS.name(one, other));
}

/** @param {string[]} names */
function named(names) {
  const more = names.length - SHOWN_NAMES;
  return [...names.slice(0, SHOWN_NAMES).map(text), ...(more > 0 ? [`and ${more} more`] : [])].join("\n");
}

const LETTERS = /** @type {Record<string, string>} */ ({
  file: "-",
  directory: "d",
  link: "l",
  fifo: "p",
  socket: "s",
  character: "c",
  block: "b",
});

/** The mode as ls shows it. @param {string} type @param {string} mode octal */
function modeText(type, mode) {
  const bits = Number.parseInt(mode, 8);
  const special = [
    [0o4000, 2, "s"],
    [0o2000, 5, "s"],
    [0o1000, 8, "t"],
  ];
  const shown = [..."rwxrwxrwx"].map((letter, index) => (bits & (0o400 >> index) ? letter : "-"));
  for (const [bit, at, letter] of /** @type {[number, number, string][]} */ (special)) {
    if (bits & bit) shown[at] = shown[at] === "-" ? letter.toUpperCase() : letter;
  }
  return (LETTERS[type] ?? "?") + shown.join("");
}

const COLUMNS = [
  ["name", "Name"],
  ["size", "Size"],
  ["modified", "Changed"],
  ["owner", "Owner"],
];

/** @param {any} props */
function Entries({ entries, all, path, place, order, sort, chosen, choose, open }) {
  const toggle = (/** @type {Entry} */ one) => {
    const next = new Set(chosen);
    if (!next.delete(one.name)) next.add(one.name);
    choose(next);
  };
  /** @param {Entry} one */
  const row = (one) => {
    const isDirectory = one.type === "directory";
    return html`
      <span class="name">
        <input type="checkbox" tabindex="-1" aria-label=${`Select ${text(one.name)}`} checked=${chosen.has(one.name)} onChange=${() => toggle(one)} />
        <a href=${addressOf(place, join(path, one.name), !isDirectory)} tabindex="-1" class=${one.type} onClick=${(
          event,
        ) => {
          if (event.ctrlKey || event.metaKey || event.button) return;
          event.preventDefault();
          open(one);
        }}>${text(one.name)}${isDirectory ? "/" : ""}</a>
        ${one.target !== null && html`<span class="note"> → ${text(one.target)}</span>`}
      </span>
      <span class="size">${isDirectory ? "" : size(one.size)}</span>
      <span class="time">${ago(one.modified)}</span>
      <span class="owner">${text(one.owner)}<span class="note"> ${text(one.group)}</span></span>
      <code class="mode">${modeText(one.type, one.mode)}</code>
    `;
  };
  const isEverything = entries.length > 0 && chosen.size === entries.length;
  return html`
    <div class="entries">
      <div class="heads" role="group" aria-label="Order">
        ${COLUMNS.map(([by, label]) => {
          const isBy = order.by === by;
          return html`
          <span class=${by}>
            ${
              by === "name" &&
              html`<input type="checkbox" aria-label="Select all" checked=${isEverything}
              onChange=${() => choose(new Set(isEverything ? [] : entries.map((/** @type {Entry} */ one) => one.name)))} />`
            }
            <button class="quiet" aria-pressed=${isBy} aria-label=${`By ${label.toLowerCase()}${isBy ? (order.down ? ", descending" : ", ascending") : ""}`}
              onClick=${() => sort({ by, down: isBy && !order.down })}>${label}${isBy ? (order.down ? " ↓" : " ↑") : ""}</button>
          </span>`;
        })}
        <span class="mode">Mode</span>
      </div>
      ${
        entries.length
          ? html`<${Rows} items=${entries} keyOf=${(one) => one.name} row=${row} open=${open} toggle=${toggle} label="Entries" />`
          : html`<p class="empty">${all ? "All entries are hidden: their names begin with a dot." : "The directory is empty. Drop files here to upload them."}</p>`
      }
    </div>
  `;
}

/** @param {any[]} transfers @param {any} news of one of them */
const update = (transfers, news) =>
  transfers.some((one) => one.id === news.id)
    ? transfers.map((one) => (one.id === news.id ? { ...one, ...news } : one))
    : [...transfers, news];

/** Has the browser ask before the page is left, while that would lose something. @param {boolean} isOf */
function useStay(isOf) {
  useEffect(() => {
    if (!isOf) return undefined;
    const stay = (/** @type {BeforeUnloadEvent} */ event) => event.preventDefault();
    addEventListener("beforeunload", stay);
    return () => removeEventListener("beforeunload", stay);
  }, [isOf]);
}

/** @param {{transfers: any[]}} props */
function Transfers({ transfers }) {
  // A reload would break them off.
  useStay(transfers.some((one) => !one.done));
  if (!transfers.length) return null;
  return html`
    <ul class="transfers" aria-label="Uploads">
      ${transfers.map(({ id, name, done, why, total, sent, began, cancel }) => {
        const seconds = (performance.now() - began) / 1000;
        return html`
          <li key=${id}>
            <span>${text(name)}</span>
            ${
              done
                ? html`<span class=${why ? "bad" : "good"} role="status">${why ? text(why) : `${size(total)} uploaded`}</span>`
                : html`
                  <progress max=${total || 1} value=${sent} aria-label=${`Upload of ${text(name)}`}></progress>
                  <span>${size(sent)} of ${size(total)}${seconds > 1 ? `, ${size(sent / seconds)}/s` : ""}</span>
                  <button class="quiet" onClick=${cancel}>Cancel</button>`
            }
          </li>
        `;
      })}
    </ul>
  `;
}

// A text file in an editor. It is saved only over the content that was read, unless the person decides otherwise.

const MAX_BYTES = 2 << 20;

/** @typedef {{text: string, sha256: string, endings: string}} Content */

/** What an editor was left with, while somebody goes back to it. @type {{address: string, content: Content, typed: string} | null} */
let draft = null;

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
function Editor({ place, path }) {
  const [content, open] = useState(/** @type {Content | null} */ (null));
  const [problem, tell] = useState(/** @type {any} */ (null));
  const [changed, change] = useState(false);
  const [saving, save] = useState(false);
  const [typed, type] = useState("");
  /** Whether it was asked for once more while it was under way. */
  const isWanted = useRef(false);
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const address = addressOf(place, path, true);
  /** @param {Content} content @param {string} [typed] */
  const begin = (content, typed = content.text) => {
    open(content);
    type(typed);
    change(typed !== content.text);
  };
  useEffect(() => {
    if (draft?.address === address) begin(draft.content, draft.typed);
    else read(place, path).then(begin, tell);
    draft = null;
  }, []);
  useStay(changed);
  /** What would be lost with this editor. @type {{current: Content | null}} */
  const unsaved = useRef(null);
  unsaved.current = changed && !saving ? content : null;
  /** @param {Content} content @param {string} typed */
  const leave = (content, typed) => {
    // Whoever has logged out has no way back.
    if (token() === null) return;
    toast(`${text(path)} was left without saving.`, {
      undo: () => {
        draft = { address, content, typed };
        go(address);
      },
    });
  };
  useLayoutEffect(
    () => () => {
      if (unsaved.current && field.current) leave(unsaved.current, field.current.value);
    },
    [],
  );
  const store = async () => {
    isWanted.current = saving;
    if (!field.current || !content || saving) return;
    save(true);
    const given = field.current.value;
    /** @param {string} replaces the checksum of what is there */
    const put = async (replaces) => {
      const sha256 = await write(place, path, given.replaceAll("\n", content.endings), { replaces });
      open({ ...content, text: given, sha256 });
      change(field.current?.value !== given);
      toast(`${text(path)} is saved.`);
    };
    try {
      await put(content.sha256).catch(async (error) => {
        if (!(error instanceof ApiError) || error.code !== "file_changed") throw error;
        const now = await read(place, path);
        const isMeant = await confirm({
          title: "Somebody changed this file meanwhile",
          text: "Replace their content by yours? Without that, yours stays in the editor, and nothing is written.",
          yes: "Replace theirs",
          danger: true,
        });
        if (isMeant) await put(now.sha256);
      });
    } catch (error) {
      failed(error);
      // It was left while it was being saved.
      if (!field.current) leave(content, given);
    } finally {
      save(false);
    }
  };
  useLayoutEffect(() => {
    if (!saving && isWanted.current) store();
  }, [saving]);
  if (problem)
    return html`
      <section class="view files" aria-label="Editor">
        <h1 class="unseen">Editor</h1>
        <p class="how" role="alert">
          ${text(problem.message)}
          ${problem instanceof Unfit && html`<button class="primary" onClick=${doing(() => download(place, toWire(path), null))}>Download</button>`}
          <a href=${addressOf(place, above(path))}>Back</a>
        </p>
      </section>
    `;
  if (!content) return null;
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key !== "s") return;
    event.preventDefault();
    store();
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
          <a class="button" href=${addressOf(place, above(path))}>Close</a>
        </div>
      </header>
      <textarea ref=${field} class="mono" aria-label="Content" spellcheck=${false} autocapitalize="off" wrap="off"
        defaultValue=${typed} onInput=${() => change(field.current?.value !== content.text)}></textarea>
    </section>
  `;
}

register({
  name: "Open files",
  actions: ["fs.list"],
  on: "connection",
  run: (connection) => go(addressOf({ connection }, "~")),
});

export default { files: { component: Files } };
