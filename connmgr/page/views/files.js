// Files of a machine: listed, moved in both directions, edited, renamed, removed, as the login's user or as another.

import { register } from "../core/palette.js";
import { go, useRoute } from "../core/router.js";
import { nameOf, useStore } from "../core/store.js";
import { ago, confirm, failed, form, Rows, text, toast } from "../core/ui.js";
import { html, useCallback, useEffect, useMemo, useReducer, useRef, useState } from "../vendor/htm-preact.js";
import { Chooser } from "./chooser.js";
import { Editor, NewFile } from "./files-edit.js";
import { above, crumbs, fromWire, join, modeText, percent, size, toWire } from "./files-names.js";
import { addressOf, ask, placeAt } from "./files-place.js";
import { archiveOf, download, dropped, queryOf, send } from "./files-transfer.js";

const SHOWN_NAMES = 8;
const HIDDEN_KEY = "connmgr.files.hidden";

/**
 * @typedef {import("./files-place.js").Place} Place
 * @typedef {{name: string, type: string, size: number, mode: string, modified: string, owner: string, group: string, target: string | null, leadsTo?: string}} Entry
 */

/** `#/files/CONNECTION/PATH?as=USER&edit`. */
function Files() {
  useRoute();
  useStore();
  const { connection, path, user, edit } = placeAt(location.hash);
  const place = useMemo(() => ({ connection, ...(user && { elevate: { user } }) }), [connection, user]);
  if (!connection) {
    return html`
      <section class="overview" aria-label="Files">
        <h1>Files</h1>
        <div class="chooser"><${Chooser} label="Files of …" choose=${(/** @type {string} */ id) => go(addressOf({ connection: id }, "~"))} /></div>
        <p class="note">Or open them from a machine in the hub.</p>
      </section>
    `;
  }
  if (edit) return html`<${Editor} key=${path} place=${place} path=${path} />`;
  return html`<${Directory} key=${connection + user} place=${place} path=${path} />`;
}

/** @param {{place: Place, path: string}} props */
function Directory({ place, path }) {
  const [listed, list] = useState(/** @type {{path: string, entries: Entry[]} | null} */ (null));
  const [problem, tell] = useState(/** @type {any} */ (null));
  const [order, sort] = useState({ by: "name", down: false });
  const [hidden, hide] = useState(localStorage.getItem(HIDDEN_KEY) === "shown");
  const [chosen, choose] = useState(/** @type {Set<string>} */ (new Set()));
  const [transfers, transfer] = useReducer(update, []);
  const [over, hover] = useState(false);
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));

  const load = useCallback(async () => {
    try {
      const answer = await ask("/fs/list", place, { path: toWire(path) });
      const entries = answer.entries.map((/** @type {any} */ one) => ({
        ...one,
        name: fromWire(one.name),
        target: one.target === null || one.target === undefined ? null : fromWire(one.target),
      }));
      list({ path, entries });
      tell(null);
    } catch (error) {
      tell(error);
    }
  }, [place, path]);
  useEffect(() => {
    choose(new Set());
    tell(null);
    load();
  }, [load]);

  const entries = useMemo(() => sorted(listed?.entries ?? [], order, hidden), [listed, order, hidden]);
  const names = useMemo(() => new Set((listed?.entries ?? []).map((one) => one.name)), [listed]);
  const current = listed?.path === path;
  const meant = () => entries.filter((one) => chosen.has(one.name));

  /** @param {Entry} one */
  const open = async (one) => {
    const target = join(path, one.name);
    let type = one.type;
    if (type === "link") {
      type = await ask("/fs/stat", place, { path: toWire(target) }).then(
        (found) => found.type,
        () => "link",
      );
    }
    if (type === "directory") go(addressOf(place, target));
    else if (type === "file") go(addressOf(place, target, true));
    else
      toast(
        `${text(one.name)} is ${one.type === "link" ? "a link that leads nowhere" : `a ${one.type}`}; it cannot be opened.`,
      );
  };

  /** @param {import("./files-transfer.js").Member[]} members */
  const upload = async (members) => {
    const tops = [...new Set(members.map((member) => member.path.split("/")[0]))];
    const there = tops.filter((name) => names.has(name));
    if (
      there.length &&
      !(await confirm({ title: "Replace what is there?", text: named(there), yes: "Replace", danger: true }))
    )
      return;
    const trees = members.filter((member) => !member.file || member.path.includes("/"));
    const files = members.filter((member) => member.file && !member.path.includes("/"));
    if (trees.length) {
      const title = tops
        .filter((name) => trees.some((member) => member.path.split("/")[0] === name))
        .map((name) => `${name}/`)
        .join(", ");
      run(title, "/fs/extract", { ...queryOf(place), path: percent(path, "/") }, archiveOf(trees));
    }
    for (const { path: name, file } of files) {
      const body = /** @type {File} */ (file);
      const query = {
        ...queryOf(place),
        path: percent(join(path, name), "/"),
        modified: percent(new Date(body.lastModified).toISOString()),
        // What somebody else has put there meanwhile is not replaced without a question.
        ...(!there.includes(name) && { create: "true" }),
      };
      run(name, "/fs/upload", query, body);
    }
  };

  /** @param {string} name @param {string} target @param {Record<string, string>} query @param {Blob} body */
  const run = async (name, target, query, body) => {
    const id = crypto.randomUUID();
    const control = new AbortController();
    transfer({ id, name, total: body.size, sent: 0, began: performance.now(), cancel: () => control.abort() });
    try {
      const answer = await send(target, query, body, (sent) => transfer({ id, sent }), control.signal);
      const failures = (answer.failed ?? []).map((/** @type {any} */ one) => `${fromWire(one.path)}: ${one.message}`);
      transfer({ id, done: true, why: failures.length ? `Not moved to their place: ${named(failures)}` : "" });
    } catch (error) {
      transfer({ id, done: true, why: /** @type {any} */ (error).message });
    }
    load();
  };

  const remove = async () => {
    const going = meant();
    const directories = going.filter((one) => one.type === "directory").length;
    const note = directories ? "\n\nDirectories go with all that is in them." : "";
    const names = going.map((one) => (one.type === "directory" ? `${one.name}/` : one.name));
    const title = `Remove ${going.length === 1 ? "this" : `${going.length} entries`} from ${nameOf(place.connection)}?`;
    if (!(await confirm({ title, text: `${named(names)}${note}`, yes: "Remove", danger: true }))) return;
    const problems = [];
    for (const one of going) {
      try {
        await ask("/fs/remove", place, { path: toWire(join(path, one.name)), recursive: one.type === "directory" });
      } catch (error) {
        problems.push(/** @type {any} */ (error).message);
      }
    }
    if (problems.length) toast(named(problems), { isFault: true });
    choose(new Set());
    load();
  };

  const rename = async () => {
    const [one] = meant();
    const given = await form({
      title: `Rename ${text(one.name)}`,
      fields: [{ name: "name", label: "New name, or a path", value: one.name, required: true }],
      yes: "Rename",
    });
    if (!given || given.name === one.name) return;
    const target = given.name.includes("/") ? given.name : join(path, given.name);
    await ask("/fs/move", place, { source: toWire(join(path, one.name)), target: toWire(target) }).then(
      () =>
        toast(`${text(one.name)} is now ${text(given.name)}.`, {
          undo: () =>
            ask("/fs/move", place, { source: toWire(target), target: toWire(join(path, one.name)) }).then(load, failed),
        }),
      failed,
    );
    choose(new Set());
    load();
  };

  const make = async () => {
    const given = await form({
      title: "New directory",
      fields: [{ name: "name", label: "Name", required: true }],
      yes: "Create",
    });
    if (!given) return;
    await ask("/fs/mkdir", place, { path: toWire(join(path, given.name)) }).catch(failed);
    load();
  };

  const change = async () => {
    const going = meant();
    const [one] = going;
    const given = await form({
      title: `Permissions of ${going.length === 1 ? text(one.name) : `${going.length} entries`}`,
      text: going.length === 1 ? modeText(one.type, one.mode) : "What is left empty stays as it is.",
      fields: [
        { name: "mode", label: "Mode, in octal", value: going.length === 1 ? one.mode : "", pattern: "[0-7]{3,4}" },
        { name: "owner", label: "Owner", value: going.length === 1 ? one.owner : "" },
        { name: "group", label: "Group", value: going.length === 1 ? one.group : "" },
      ],
      yes: "Change",
    });
    if (!given) return;
    for (const each of going) {
      const fields = {
        ...(given.mode && given.mode.padStart(4, "0") !== each.mode && { mode: given.mode.padStart(4, "0") }),
        ...(given.owner && given.owner !== each.owner && { owner: given.owner }),
        ...(given.group && given.group !== each.group && { group: given.group }),
      };
      if (!Object.keys(fields).length) continue;
      try {
        await ask("/fs/attributes", place, { path: toWire(join(path, each.name)), ...fields });
      } catch (error) {
        failed(error);
        break;
      }
    }
    load();
  };

  const fetch = async () => {
    const going = meant();
    try {
      const [one] = going;
      if (going.length === 1 && one.type !== "directory") {
        await ask("/fs/stat", place, { path: toWire(join(path, one.name)) });
        await download(place, toWire(join(path, one.name)), null);
      } else if (going.length === 1) await download(place, toWire(join(path, one.name)), []);
      else
        await download(
          place,
          toWire(path),
          going.map((each) => toWire(each.name)),
        );
    } catch (error) {
      failed(error);
    }
  };

  const as = async () => {
    const given = await form({
      title: "As which user?",
      text: "By sudo on the machine. Empty: the user of the login.",
      fields: [{ name: "user", label: "User", value: place.elevate?.user ?? "root" }],
      yes: "Switch",
    });
    if (given)
      go(addressOf({ connection: place.connection, ...(given.user && { elevate: { user: given.user } }) }, path));
  };

  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const one = chosen.size === 1;
    if (event.key === "Delete" && chosen.size) remove();
    else if (event.key === "F2" && one) rename();
    else if (event.key === "Backspace" || (event.altKey && event.key === "ArrowUp")) go(addressOf(place, above(path)));
    else return;
    event.preventDefault();
  };
  /** @param {DragEvent} event */
  const onDrop = (event) => {
    event.preventDefault();
    hover(false);
    if (event.dataTransfer) dropped(event.dataTransfer).then(upload, failed);
  };
  /** @param {DragEvent} event */
  const onDragOver = (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    hover(true);
  };

  return html`
    <section class=${over ? "view files over" : "view files"} aria-label=${`Files of ${text(nameOf(place.connection))}`}
      onKeyDown=${onKeyDown} onDrop=${onDrop} onDragOver=${onDragOver} onDragLeave=${() => hover(false)}>
      <h1 class="unseen">Files</h1>
      <header>
        <nav class="crumbs" aria-label="Path">
          <strong>${text(nameOf(place.connection))}</strong>
          ${!path.startsWith("/") && html`<a href=${addressOf(place, "/")}>/</a>`}
          ${path.startsWith("/") && html`<a href=${addressOf(place, "~")} title="Home">~</a>`}
          ${crumbs(path).map(
            (step, index, all) => html`
            <a class=${step.path === "/" ? "" : "step"} href=${addressOf(place, step.path)} aria-current=${index === all.length - 1 ? "page" : undefined}>${text(step.name)}</a>`,
          )}
        </nav>
        <button class=${place.elevate ? "as elevated" : "as"} onClick=${as}>as ${text(place.elevate?.user ?? "login user")}</button>
      </header>
      <div class="tools" role="toolbar" aria-label="Files">
        <button class="primary" onClick=${() => input.current?.click()}>Upload</button>
        <input ref=${input} type="file" multiple hidden aria-label="Files to upload" onChange=${(
          /** @type {any} */ event,
        ) => {
          upload([...event.target.files].map((file) => ({ path: file.name, file })));
          event.target.value = "";
        }} />
        <button onClick=${make}>New directory</button>
        <${NewFile} place=${place} path=${path} />
        <span class="gap"></span>
        <button disabled=${!chosen.size} onClick=${fetch}>Download</button>
        <button disabled=${chosen.size !== 1} title="F2" onClick=${rename}>Rename</button>
        <button disabled=${!chosen.size} onClick=${change}>Permissions</button>
        <button disabled=${!chosen.size} title="Delete" class="danger" onClick=${remove}>Remove</button>
        <label><input type="checkbox" checked=${hidden} onChange=${() => {
          localStorage.setItem(HIDDEN_KEY, hidden ? "" : "shown");
          hide(!hidden);
        }} /> Hidden</label>
      </div>
      ${problem && html`<p class="how" role="alert">${text(problem.message)} <button onClick=${load}>Try again</button></p>`}
      ${
        current &&
        html`<${Entries} entries=${entries} all=${listed?.entries.length ?? 0} path=${path} place=${place}
        order=${order} sort=${sort} chosen=${chosen} choose=${choose} open=${open} />`
      }
      <${Transfers} transfers=${transfers} />
    </section>
  `;
}

/** @param {Entry[]} entries @param {{by: string, down: boolean}} order @param {boolean} hidden */
function sorted(entries, order, hidden) {
  const collator = new Intl.Collator(undefined, { numeric: true });
  const compare = /** @type {Record<string, (a: Entry, b: Entry) => number>} */ ({
    name: (a, b) => collator.compare(a.name, b.name),
    size: (a, b) => a.size - b.size,
    modified: (a, b) => (a.modified < b.modified ? -1 : a.modified > b.modified ? 1 : 0),
    owner: (a, b) => collator.compare(a.owner, b.owner),
  })[order.by];
  const rank = (/** @type {Entry} */ one) => (one.type === "directory" ? 0 : 1);
  const sign = order.down ? -1 : 1;
  return entries
    .filter((one) => hidden || !one.name.startsWith("."))
    .sort((a, b) => rank(a) - rank(b) || sign * compare(a, b) || collator.compare(a.name, b.name));
}

/** Some names, and how many more. @param {string[]} names */
function named(names) {
  const more = names.length - SHOWN_NAMES;
  return [...names.slice(0, SHOWN_NAMES).map(text), ...(more > 0 ? [`and ${more} more`] : [])].join("\n");
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
  const row = (one) => html`
    <span class="name">
      <input type="checkbox" tabindex="-1" aria-label=${`Select ${text(one.name)}`} checked=${chosen.has(one.name)} onChange=${() => toggle(one)} />
      <a href=${addressOf(place, join(path, one.name), one.type !== "directory")} tabindex="-1" class=${one.type} onClick=${(
        /** @type {MouseEvent} */ event,
      ) => {
        if (event.ctrlKey || event.metaKey || event.button) return;
        event.preventDefault();
        open(one);
      }}>${text(one.name)}${one.type === "directory" ? "/" : ""}</a>
      ${one.target !== null && html`<span class="note"> → ${text(one.target)}</span>`}
    </span>
    <span class="size">${one.type === "directory" ? "" : size(one.size)}</span>
    <span class="time">${ago(one.modified)}</span>
    <span class="owner">${text(one.owner)}<span class="note"> ${text(one.group)}</span></span>
    <code class="mode">${modeText(one.type, one.mode)}</code>
  `;
  const everything = entries.length > 0 && chosen.size === entries.length;
  return html`
    <div class="entries">
      <div class="heads" role="group" aria-label="Order">
        ${COLUMNS.map(
          ([by, label]) => html`
          <span class=${by}>
            ${
              by === "name" &&
              html`<input type="checkbox" aria-label="Select all" checked=${everything}
              onChange=${() => choose(new Set(everything ? [] : entries.map((/** @type {Entry} */ one) => one.name)))} />`
            }
            <button class="quiet" aria-pressed=${order.by === by} aria-label=${`By ${label.toLowerCase()}${order.by === by ? (order.down ? ", descending" : ", ascending") : ""}`}
              onClick=${() => sort({ by, down: order.by === by && !order.down })}>${label}${order.by === by ? (order.down ? " ↓" : " ↑") : ""}</button>
          </span>`,
        )}
        <span class="mode">Mode</span>
      </div>
      ${
        entries.length
          ? html`<${Rows} items=${entries} keyOf=${(/** @type {Entry} */ one) => one.name} row=${row} open=${open} toggle=${toggle} label="Entries" />`
          : html`<p class="empty">${all ? "All entries are hidden: their names begin with a dot." : "The directory is empty. Drop files here to upload them."}</p>`
      }
    </div>
  `;
}

/** @param {any[]} transfers @param {any} news */
function update(transfers, news) {
  if (news.forget) return transfers.filter((one) => one.id !== news.forget);
  if (!transfers.some((one) => one.id === news.id)) return [...transfers, news];
  return transfers.map((one) => (one.id === news.id ? { ...one, ...news } : one));
}

/** @param {{transfers: any[]}} props */
function Transfers({ transfers }) {
  const under = transfers.filter((one) => !one.done).length;
  useEffect(() => {
    if (!under) return undefined;
    // A reload would break them off.
    const stay = (/** @type {BeforeUnloadEvent} */ event) => event.preventDefault();
    addEventListener("beforeunload", stay);
    return () => removeEventListener("beforeunload", stay);
  }, [under > 0]);
  if (!transfers.length) return null;
  return html`
    <ul class="transfers" aria-label="Uploads">
      ${transfers.map((one) => {
        const seconds = (performance.now() - one.began) / 1000;
        return html`
          <li key=${one.id}>
            <span>${text(one.name)}</span>
            ${
              one.done
                ? html`<span class=${one.why ? "bad" : "good"} role="status">${one.why ? text(one.why) : `${size(one.total)} uploaded`}</span>`
                : html`
                  <progress max=${one.total || 1} value=${one.sent} aria-label=${`Upload of ${text(one.name)}`}></progress>
                  <span>${size(one.sent)} of ${size(one.total)}${seconds > 1 ? `, ${size(one.sent / seconds)}/s` : ""}</span>
                  <button class="quiet" onClick=${one.cancel}>Cancel</button>`
            }
          </li>
        `;
      })}
    </ul>
  `;
}

register({
  name: "Open files",
  actions: ["fs.list"],
  on: "connection",
  run: (/** @type {string} */ connection) => go(addressOf({ connection }, "~")),
});

export default { component: Files };
