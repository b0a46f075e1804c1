// Machines as others tell of them: lists of hosts, and what they said about themselves.

import { call } from "../core/api.js";
import { form } from "../core/forms.js";
import { address, go, register } from "../core/navigate.js";
import { EVERYTHING, nameOf, store, useStore } from "../core/store.js";
import {
  ago,
  counted,
  Facts,
  Fault,
  html,
  labelOf,
  lines,
  text,
  toast,
  useAnswer,
  useState,
  Waiting,
} from "../core/ui.js";
import { Labels } from "./connection.js";
import { bytes, Deeds, Details, Listing, named, removal, secondsOf, spelled } from "./listing.js";

// Inventories: lists of hosts that something else keeps, which connections follow; how each was renewed, and what left it.

/** Hosts that are named, of each change; the rest is counted. */
const MOST_SAID = 20;

/** @param {Inventory} one */
const stateOf = ({ error, renewed }) =>
  error ? { kind: "lost", word: "failed" } : renewed ? { kind: "up", word: "renewed" } : { kind: "off", word: "new" };
/** @param {Inventory} one */
const sourceOf = ({ ansible, file, command }) => ansible ?? file ?? command?.join(" ");

/** @type {Column<Inventory>[]} */
const INVENTORY_COLUMNS = [
  ["State", "7rem", stateOf],
  ["Name", 1, (one) => one.name],
  ["Hosts", "9rem", ({ hosts, vanished }) => `${hosts}${vanished > 0 ? `, ${vanished} vanished` : ""}`],
  ["Source", 2, sourceOf, "mono"],
  ["Renewed", "6rem", (one) => ago(one.renewed), "note"],
];

/** @param {{path: string[]}} props */
function Inventories({ path }) {
  // What a renewal changes is told of its connections.
  const { answer, error, again } = useAnswer(() => call("/inventory/query"), [path[0]], { kind: "connection" });
  return html`<${Listing} view="inventories" id="name" ...${{ path, error, again }} items=${answer?.inventories} columns=${INVENTORY_COLUMNS} begin=${ADD}
    details=${(one) => html`<${InventoryDetails} one=${one} again=${again} />`}
    empty=${["No inventories yet", "An inventory is a list of hosts that something else keeps: Ansible, a program, a file. Its hosts become connections, which follow the list."]} />`;
}

/** @param {{one: Inventory, again: () => void}} props */
function InventoryDetails({ one, again }) {
  const { name, renewed, next, every } = one;
  useStore();
  const [changes, show] = useState(/** @type {[string, any] | null} */ (null));
  const gone = useAnswer(async () => {
    return (await call("/connection/query", { ...EVERYTHING, where: `inventory='${name}' and vanished` })).found;
  }, [name, one.vanished]).answer;
  const renew =
    (dryRun = false) =>
    async () => {
      try {
        show([dryRun ? "It would change" : "It changed", await call("/inventory/renew", { name, dryRun })]);
      } finally {
        // What failed stands in the list.
        again();
      }
    };
  return html`<${Details} title=${name} note=${counted(one.hosts, "host")} state=${stateOf(one)}
    deeds=${[["Renew now", "inventory.renew", renew(), "primary"], ["Say what that would change", "inventory.renew", renew(true)], removal("inventories", "inventory", { name }, name, "its connections stay, and follow no list any more", again)]}
    facts=${[
      ["Source", html`<code>${text(sourceOf(one))}</code>`],
      ["Renewed", ago(renewed)],
      ["Next", next ? ago(next) : "only on request"],
      ["Every", every && spelled(every)],
      ["Category", text(one.category.join(" / "))],
      ["Defaults", Object.keys(one.defaults).length ? html`<code>${text(JSON.stringify(one.defaults))}</code>` : null],
      ["Daemon", text(one.daemon)],
    ]}>
    ${one.error && html`<p class="fault">The last renewal changed nothing: ${text(one.error)}</p>`}
    ${changes && html`<section role="status"><h3>${changes[0]}</h3><${Facts} facts=${said(changes[1])} /></section>`}
    ${
      gone &&
      gone.length > 0 &&
      html`<h3>${counted(gone.length, "host")} no longer listed</h3><ul class="shells">${gone.slice(0, MOST_SAID).map((id) => html`<li key=${id}><a href=${address("hub", id)}>${text(nameOf(id))}</a></li>`)}${gone.length > MOST_SAID && html`<li class="note">and ${counted(gone.length - MOST_SAID, "more", "more")}</li>`}</ul>
    <p class="note">Each has the label <code>vanished</code>; its connection stays until somebody removes it.</p>`
    }
  <//>`;
}

/** What a renewal has changed, or would. @param {InventoryChanges} changes @returns {[string, any][]} */
function said({ hosts, leftOut, ...lists }) {
  const some = Object.entries(lists).map(([what, names]) => [labelOf(what), named(names.map(text), MOST_SAID) || null]);
  const left = leftOut.slice(0, MOST_SAID).map(({ host, reason }) => html`<div>${text(host)}: ${text(reason)}</div>`);
  const facts = /** @type {[string, any][]} */ ([
    ...some,
    [leftOut.length ? `Left out: ${leftOut.length}` : "", left.length ? left : null],
  ]);
  return facts.some(([, names]) => names) ? facts : [["Nothing", `${counted(hosts, "host")} as before`]];
}

const add = (again = () => {}) =>
  form({
    title: "Add an inventory",
    required: ["name", "kind", "source"],
    value: { kind: "file" },
    properties: {
      name: {},
      kind: {
        title: "Source",
        choices: [
          ["file", "A file: a host a line, with groups in brackets"],
          ["ansible", "Ansible: what ansible-inventory -i takes"],
          ["command", "A program that prints hosts"],
        ],
      },
      source: {
        format: "argv",
        title: "Path",
        description: "On the daemon's machine. A program has its arguments below it, one a line.",
      },
      every: { title: "Renewed every", examples: ["15m"], description: "Without that: only on request." },
      user: { title: "Log in as", description: "Where the list does not say it." },
    },
    yes: "Add",
    work: async ({ name, kind, source, every, user }) => {
      const often = every && secondsOf(every);
      if (every && !often) throw new Error("Not a time: write it as 15m, 12h or 1d.");
      await call("/inventory/add", {
        name,
        [kind]: kind === "command" ? source : source.join("\n"),
        every: often,
        defaults: user && { user },
      });
      again();
      go(address("inventories", name));
    },
  });

/** @type {Command} */
const ADD = { name: "Add an inventory", actions: ["inventory.add"], run: add };
register(ADD);

// Facts: what machines said about themselves, as a table and by groups of equal ones; conditions choose among them.

const SHOWN = ["os.*", "arch", "kernel", "host.name", "cpu.count", "memory.total", "disk.total", "disk.free", "uptime"];
/** What differs from machine to machine, or from minute to minute, makes no groups. */
const ALONE = ["uptime", "host.name", "disk.free"];
const PAGE = 2000;
const MOST = 20_000;
const MOST_GROUPS = 40;
const [DAY, HOUR] = [86_400, 3600];

/** A value in a condition, in quotes where it needs them. @param {string} value */
const quoted = (value) => (/^[^\s()'"=<>!~][^\s()'"]*$/.test(value) ? value : `'${value.replace(/['\\]/g, "\\$&")}'`);
/** @param {string} name @param {any} value */
const shown = (name, value) =>
  typeof value !== "number"
    ? lines(value)
    : name === "uptime"
      ? value < DAY
        ? counted(Math.floor(value / HOUR), "hour")
        : counted(Math.floor(value / DAY), "day")
      : /^(memory|swap|disk)\b/.test(name)
        ? bytes(value)
        : value.toLocaleString("en");

/** Tunnels and the like are not machines. @param {Machine} one */
const isMachine = ({ connection }) => (store.connections.get(connection)?.usageCategory ?? "shell") === "shell";

/** @param {string} where */
async function machinesOf(where) {
  const asked = { ...(where ? { where } : { connectionFilter: "*" }), names: SHOWN, limit: PAGE };
  /** @type {Machine[]} */
  const machines = [];
  while (true) {
    const { machines: some, total } = await call("/fact/query", { ...asked, offset: machines.length });
    machines.push(...some);
    if (!some.length || machines.length >= Math.min(total, MOST)) return { machines, total };
  }
}

/** @type {Column<Machine>[]} */
const FACT_COLUMNS = [
  ["Name", 1, ({ name }) => name.join("/")],
  ["System", 1.7, ({ facts }) => facts["os.name"] ?? facts["os.type"] ?? html`<span class="note">not asked yet</span>`],
  ["Kernel", 1, ({ facts }) => facts.kernel, "mono"],
  ["CPUs", "3.5rem", ({ facts }) => facts["cpu.count"], "number"],
  ["Memory", "5.5rem", ({ facts }) => facts["memory.total"] && bytes(facts["memory.total"]), "number"],
  [
    "Disk used",
    "6rem",
    ({ facts }) => {
      const used = 1 - facts["disk.free"] / facts["disk.total"];
      return (
        used >= 0 &&
        html`<meter min="0" max="1" high="0.85" optimum="0" value=${used} aria-label="Disk used"></meter> ${Math.round(100 * used)} %`
      );
    },
    "number",
  ],
  ["Up for", "5.5rem", ({ facts }) => facts.uptime !== undefined && shown("uptime", facts.uptime), "number"],
  [
    "Labels",
    1.2,
    ({ labels }) =>
      Object.entries(labels)
        .map((one) => one.join("="))
        .join(" "),
    "mono",
  ],
];

/** @param {{path: string[], query: URLSearchParams}} props */
function FactsView({ path, query }) {
  useStore();
  const [where, require] = useState(query.get("where") ?? "");
  const [by, group] = useState("os.name");
  const { answer, error, again } = useAnswer(() => machinesOf(where), [where]);
  const machines = answer?.machines.filter(isMachine);
  const names = [...new Set(machines?.flatMap((one) => [...Object.keys(one.labels), ...Object.keys(one.facts)]))];
  const gather = async () => {
    const { gathered } = await call("/fact/gather", where ? { where } : { connectionFilter: "*" });
    const failures = gathered.filter((one) => one.error);
    const why = failures.length ? `, ${failures.length} failed: ${text(failures[0].error?.message)}` : "";
    toast(`${counted(gathered.length - failures.length, "machine")} asked${why}.`, { isFault: failures.length > 0 });
    again();
  };
  return html`<${Listing} view="facts" id="connection" ...${{ path, error, again }} items=${machines} columns=${FACT_COLUMNS} narrow=${[0, 1]}
    tools=${html`<${Deeds} deeds=${[[`Ask ${where ? "these machines" : "all machines"} now`, "fact.gather", gather, machines?.length ? "" : "primary"]]} />`}
    details=${(one) => html`<${MachineDetails} key=${one.connection} machine=${one} told=${again} />`}
    filters=${html`<div class="filters">
      <label>Where<input type="search" class="mono" placeholder="env=prod and os.id=debian" spellcheck=${false} key=${where} defaultValue=${where} onChange=${(event) => require(event.target.value.trim())} /></label>
      <label>Together by<select value=${by} onChange=${(event) => group(event.target.value)}>${[
        ...new Set([by, ...names]),
      ]
        .filter((name) => !ALONE.includes(name))
        .sort()
        .map((name) => html`<option key=${name} value=${name}>${text(name)}</option>`)}</select></label></div>
      ${Boolean(machines?.length) && html`<${Groups} machines=${machines} by=${by} choose=${(said) => require(where ? `(${where}) and ${said}` : said)} />`}
      ${answer && answer.total > MOST && html`<p class="note">Only the first ${MOST.toLocaleString("en")} of ${answer.total.toLocaleString("en")} are shown.</p>`}`}
    empty=${where ? ["The condition holds for no machine", html`<button class="link" onClick=${() => require("")}>Show all</button>`] : ["No machines yet", html`Machines are added in the <a href="#/hub">hub</a>.`]} />`;
}

/** How many machines have the same label or fact; choosing one narrows the condition. @param {{machines: Machine[], by: string, choose: (said: string) => void}} props */
function Groups({ machines, by, choose }) {
  /** @type {Map<string | undefined, number>} */
  const counts = new Map();
  for (const one of machines) {
    const value = one.labels[by] ?? one.facts[by]?.toString();
    counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  const all = [...counts].sort(([, one], [, other]) => other - one);
  return html`<ul class="groups" aria-label=${`Machines by ${text(by)}`}>${all.slice(0, MOST_GROUPS).map(
    ([value, count]) => html`<li key=${value} style=${{ flexGrow: count }}>
      <button onClick=${() => choose(value === undefined ? `not ${by}` : `${by}=${quoted(value)}`)}><strong>${count.toLocaleString("en")}</strong> ${value === undefined ? "without" : text(by === "memory.total" || by === "disk.total" ? bytes(Number(value)) : value)}</button></li>`,
  )}${all.length > MOST_GROUPS && html`<li class="note">and ${counted(all.length - MOST_GROUPS, "more value")}</li>`}</ul>`;
}

/** @param {{machine: Machine, told: () => void}} props */
function MachineDetails({ machine: { connection, name }, told }) {
  useStore();
  const [wanted, want] = useState("");
  const found = async (/** @type {object} */ more) =>
    (await call("/fact/query", { connections: [connection], ...more })).machines[0];
  const { answer: machine, error, again } = useAnswer(() => found({}), [connection]);
  const packages = useAnswer(
    async () => (wanted ? found({ names: [`package.*${wanted}*`] }) : undefined),
    [connection, wanted],
  );
  const gather = async () => {
    const [{ error }] = (await call("/fact/gather", { connections: [connection] })).gathered;
    if (error) throw new Error(error.message);
    again();
    told();
  };
  return html`
    <${Details} title=${name.join("/")} note=${html`<a href=${address("hub", connection)}>In the hub</a>`} deeds=${[["Ask it now", "fact.gather", gather, "primary"]]}
      facts=${[
        ["Labels", html`<${Labels} connection=${connection} />`],
        ...Object.entries(machine?.facts ?? {}).map(([fact, value]) => [text(fact), shown(fact, value)]),
        ...Object.entries(machine?.gathered ?? {}).map(([part, time]) => [`Asked for: ${text(part)}`, ago(time)]),
      ]} />
    ${error && html`<${Fault} error=${error} again=${again} />`}
    ${!machine && !error && html`<${Waiting} reason="Reading its facts" />`}
    ${machine?.gathered.package && html`<input type="search" class="find" aria-label="Search packages" placeholder="Search packages" spellcheck=${false} onChange=${(event) => want(event.target.value.trim())} />`}
    ${packages.error && html`<${Fault} error=${packages.error} />`}
    ${packages.answer && html`<${Facts} facts=${Object.entries(packages.answer.facts).map(([fact, value]) => [text(fact.replace("package.", "")), html`<code>${text(value)}</code>`])} />`}
    ${packages.answer && !Object.keys(packages.answer.facts).length && html`<p class="note">No package is called so.</p>`}
  `;
}

export default { inventories: { component: Inventories }, facts: { component: FactsView } };
