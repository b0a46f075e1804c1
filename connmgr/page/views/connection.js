// A connection: what is stored of it, its labels, its state, and what can be done with it.

import { call } from "../core/api.js";
import { address, commandsOn, go, register, run } from "../core/navigate.js";
import {
  can,
  infoOf,
  nameOf,
  qualified,
  readShells,
  refresh,
  reread,
  stateOf,
  store,
  useStore,
} from "../core/store.js";
import {
  ago,
  confirm,
  counted,
  doing,
  Facts,
  failed,
  html,
  labelOf,
  State,
  text,
  toast,
  useEffect,
} from "../core/ui.js";

const MOST_NAMED = 12;
/** The daemon's own machine, which cannot be removed. */
const LOCAL = "f0ec68aa-63f5-405c-b178-9a4454556d6b";

/**
 * What is stored, as names and texts for people; nothing secret.
 * @param {Record<string, any>} data @param {any} [schema] @returns {{name: string, said: string, connection?: string, isSecret?: boolean}[]}
 */
export const described = (data, schema) =>
  Object.entries(data).flatMap(([key, value]) => {
    const field = schema?.properties?.[key] ?? {};
    const name = labelOf(key);
    if (key === "type" || value === null || value === undefined || value === field.default) return [];
    if (field["x-connmgr-reference"]) {
      const connection = value.storeId ?? value;
      return [{ name, said: nameOf(connection), connection }];
    }
    // Without the members of a source: one of them may be a secret itself.
    if (field["x-connmgr-secret"] || value.encryptedToken)
      return [{ name, said: value.from ? `fetched from ${value.from.source}` : "stored, sealed", isSecret: true }];
    if (Array.isArray(value)) return [{ name, said: value.join(", ") }];
    if (typeof value === "object")
      return described(value, field).map((one) => ({ ...one, name: `${name}: ${one.name.toLowerCase()}` }));
    if (typeof value === "boolean") return [{ name, said: value ? "yes" : "no" }];
    // Of a key the kind and the end tell it from another.
    return [{ name, said: key === "hostKey" ? value.replace(/^(\S+ .{10}).{20,}(.{8})$/, "$1 … $2") : `${value}` }];
  });

/** The labels of a connection, set or taken away one by one, each with a way back. @param {{connection: string}} props */
export function Labels({ connection }) {
  const labels = infoOf(connection)?.labels ?? {};
  const all = Object.entries(labels).map(([name, value]) => ({
    name,
    said: html`<code>${text(name)}=${text(value)}</code>`,
  }));
  if (!can("connection.label")) return all.map(({ said }) => html`${said} `);
  const change = async (/** @type {object} */ request) => {
    await call("/connection/label", { connections: [connection], ...request });
    await reread(connection);
  };
  const remove = (/** @type {string} */ name) => async () => {
    await change({ remove: [name] });
    toast(`The label ${text(name)} is removed.`, { undo: () => change({ labels: { [name]: labels[name] } }) });
  };
  /** @param {any} event */
  const add = (event) => {
    event.preventDefault();
    const [field] = event.currentTarget.elements;
    const [name, value = ""] = field.value.split(/=(.*)/s);
    change({ labels: { [name.trim()]: value.trim() } }).then(() => (field.value = ""), failed);
  };
  return html`
    <ul class="labels">${all.map(({ name, said }) => html`<li key=${name}>${said}<button class="quiet" aria-label=${`Remove the label ${text(name)}`} onClick=${doing(remove(name))}>×</button></li>`)}
      <li><form onSubmit=${add}><input name="label" class="mono" aria-label="New label" placeholder="env=prod" required autocomplete="off" spellcheck=${false} /></form></li></ul>
  `;
}

/** @param {{one: Connection}} props */
export function Pane({ one }) {
  useStore();
  const { connection, category, name } = one;
  const info = infoOf(connection);
  const type = store.types.get(one.type);
  const { kind, word } = stateOf(connection);
  const shells = store.shells.get(connection) ?? [];
  const tunnel = store.tunnels.get(connection);
  const isUntold = shells.some((shell) => shell.state === "busy" && !shell.running);
  useEffect(() => {
    if (isUntold && can("shell.list")) readShells(connection).catch(failed);
  }, [isUntold]);
  const commands = commandsOn(one).sort((a, b) => rankOf(a) - rankOf(b));
  const button = (/** @type {Command} */ command, /** @type {string} */ look) =>
    html`<button key=${command.name} class=${look} onClick=${() => run(command, connection)}>${command.name}</button>`;
  const facts = info ? described(info.rawData, type?.schema) : [];
  return html`
    <aside class="details" aria-label=${text(name.join("/"))}>
      <a class="button close" href="#/hub" aria-label="Close">×</a>
      <header><div><h2>${text(name.at(-1))}</h2><p class="note">${text([...category, ...name.slice(0, -1)].join(" / "))}</p></div></header>
      <p><${State} kind=${kind} word=${word || "not connected"} /></p>
      <div class="does">${commands.filter((command) => !LAST.includes(command)).map((command, index) => button(command, index ? "" : "primary"))}</div>
      <${Facts} facts=${[
        [
          "Type",
          html`${text(one.type)} <small>${type?.description ?? "No installed plugin offers this type."}</small>`,
        ],
        ...facts.map((fact) => [
          fact.name,
          html`<span class=${fact.isSecret ? "note" : "mono"}>${fact.connection && store.connections.has(fact.connection) ? html`<a href=${address("hub", fact.connection)}>${text(fact.said)}</a>` : text(fact.said)}</span>`,
        ]),
        ...(info
          ? [
              ["Labels", html`<${Labels} connection=${connection} />`],
              ["Last used", ago(info.lastUsed)],
              ["Changed", ago(info.lastModified)],
            ]
          : []),
        ["Id", html`<code>${connection}</code>`],
      ]} />
      ${
        tunnel &&
        html`<h3>Tunnel</h3><${Facts} facts=${[
          ["Listens at", html`<code>${text(tunnel.address ?? "–")}</code>`],
          ["Streams", tunnel.streams],
          ["Last error", tunnel.lastError && text(tunnel.lastError.message)],
        ]} />`
      }
      ${
        shells.length > 0 &&
        html`<h3>Shells</h3><ul class="shells">${shells.map(
          ({ connection: id, session, state, running, since }) => html`
          <li key=${id + (session ?? "")}><${State} kind=${state === "idle" ? "up" : state} word=${running ? text(running.command).slice(0, 80) : state} />
          <span class="note">${text(session ?? (id === connection ? "own shell" : nameOf(id)))} · ${ago(since)}</span></li>`,
        )}</ul>`
      }
      <div class="does last">${commands.filter((command) => LAST.includes(command)).map((command) => button(command, "quiet"))}</div>
    </aside>
  `;
}

/** Starts the shell, which is what a test of a connection is. @param {string} connection */
async function connect(connection) {
  const began = performance.now();
  const { osName } = await call("/shell/start", { connection });
  await refresh("shells");
  toast(`${text(nameOf(connection))} answers: ${text(osName)}, after ${Math.round(performance.now() - began)} ms.`);
}

/** @param {string} connection */
async function disconnect(connection) {
  await call("/shell/stop", { connection, all: true });
  store.links.delete(connection);
  await refresh("shells");
}

/** @param {string} connection */
async function look(connection) {
  const { added, gone, skipped } = await call("/connection/refresh", { connection });
  if (added.length) await refresh("connections");
  const found = [
    added.length && `${counted(added.length, "system")} new`,
    gone.length && `${counted(gone.length, "system")} gone`,
    skipped.length && `${skipped.length} skipped`,
  ];
  toast(`${text(nameOf(connection))}: ${found.filter(Boolean).join(", ") || "nothing new inside"}.`);
}

/** @param {boolean} state */
const toggled = (state) => async (/** @type {string} */ connection) => {
  await call("/connection/toggle", { connection, state });
  await Promise.all([can("tunnel.query") && refresh("tunnels"), can("shell.list") && refresh("shells")]);
  toast(`${text(nameOf(connection))} is ${state ? "started" : "stopped"}.`, {
    undo: () => toggled(!state)(connection),
  });
};

/** @param {string} connection */
async function removeConnection(connection) {
  const one = /** @type {Connection} */ (store.connections.get(connection));
  const below = [...store.connections.values()].filter(({ folded }) => folded.startsWith(`${one.folded}/`));
  const info = infoOf(connection);
  const schema = store.types.get(one.type)?.schema;
  // A tunnel has no secrets, as a rule, nor anything on a machine: it can be added again.
  const isBack =
    isTunnel(one) && !below.length && info && !described(info.rawData, schema).some((fact) => fact.isSecret);
  const isMeant =
    isBack ||
    (await confirm({
      title: `Remove ${one.name.join("/")}?`,
      text: html`
      <p>What is stored of it goes, with its secrets and its list of jobs. This cannot be undone.</p>
      ${
        below.length > 0 &&
        html`<p>With it:</p><ul>${below.slice(0, MOST_NAMED).map((other) => html`<li class="mono">${text(qualified(other))}</li>`)}
        ${below.length > MOST_NAMED && html`<li>and ${below.length - MOST_NAMED} more</li>`}</ul>`
      }
    `,
      yes: below.length ? `Remove ${below.length + 1}` : "Remove",
      danger: true,
    }));
  if (!isMeant) return;
  const isOpen = isOpenTunnel(one);
  await call("/connection/apply", { remove: [connection] });
  await refresh("connections");
  go("#/hub", { replace: true });
  const undo = async () => {
    const { category, labels, rawData: data } = info ?? {};
    const { added } = await call("/connection/apply", { add: [{ name: one.name.at(-1), category, labels, data }] });
    const again = added[0].connection;
    await refresh("connections");
    if (isOpen) await toggled(true)(again);
    go(address("hub", again));
  };
  toast(`${text(one.name.join("/"))} is removed.`, { undo: isBack ? undo : undefined });
}

/** @param {string} connection */
async function forgetKey(connection) {
  const { keys } = await call("/hostkey/forget", { connection });
  const said = keys.map(({ key, kept }) => (kept ? `${text(key)} stays: ${text(kept)}` : `${text(key)} is forgotten.`));
  toast(said.join("\n") || "No key of this host was known.");
}

/** @param {string} connection */
const edit = async (connection) => (await import("./hub-add.js")).editConnection(connection);

const isShell = (/** @type {Connection} */ one) => one.usageCategory === "shell";
const isTunnel = (/** @type {Connection} */ one) => one.usageCategory === "tunnel";
const isUp = (/** @type {Connection} */ one) => store.shells.has(one.connection);
const isOpenTunnel = (/** @type {Connection} */ one) =>
  isTunnel(one) && (store.tunnels.get(one.connection)?.wanted ?? false);
const isSwitched = (/** @type {Connection} */ one) => store.types.get(one.type)?.toggled ?? false;

/** @type {(name: string, actions: string[], fits: (one: Connection) => boolean, run: (connection: string) => unknown, hint?: string) => Command} */
const command = (name, actions, fits, run, hint) => ({ name, actions, fits, run, hint, on: "connection" });
const FIRST = [
  command(
    "Connect",
    ["shell.start"],
    (one) => isShell(one) && !isUp(one),
    connect,
    "log in, and say how long that took",
  ),
  command("Disconnect", ["shell.stop"], (one) => isShell(one) && isUp(one), disconnect, "end its shells"),
  command("Open the tunnel", ["connection.toggle"], (one) => isTunnel(one) && !isOpenTunnel(one), toggled(true)),
  command("Close the tunnel", ["connection.toggle"], isOpenTunnel, toggled(false)),
  command("Start", ["connection.toggle"], isSwitched, toggled(true), "start the system itself"),
  command("Stop", ["connection.toggle"], isSwitched, toggled(false), "stop the system itself"),
  command(
    "Look inside",
    ["connection.refresh"],
    (one) => isShell(one) || one.usageCategory === "group",
    look,
    "find containers and other systems",
  ),
];
const LAST = [
  command("Edit", ["connection.update", "connection.info"], () => true, edit),
  command("Forget the host key", ["hostkey.forget"], (one) => one.type === "ssh", forgetKey),
  command("Remove", ["connection.apply"], (one) => one.connection !== LOCAL, removeConnection),
];
/** What is offered first, in whatever order the views were loaded; then what other views offer, then these. */
const OFFERED = ["Open a terminal", "Open files", "Run a command", "Start a job"];
const rankOf = (/** @type {Command} */ one) =>
  [...FIRST, ...LAST].includes(one) ? OFFERED.length + 1 : OFFERED.indexOf(one.name) + 1 || OFFERED.length;
for (const one of [...FIRST, ...LAST]) register(one);
