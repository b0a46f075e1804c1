// Inventories: lists of hosts that something else keeps, which connections follow; how each was renewed, and what left it.

import { call } from "../core/api.js";
import { form } from "../core/forms.js";
import { address, go, register } from "../core/navigate.js";
import { nameOf, useStore } from "../core/store.js";
import { ago, counted, Facts, html, labelOf, text, useAnswer, useState } from "../core/ui.js";
import { Details, Listing, named, removal, secondsOf, spelled } from "./listing.js";

/** Hosts that are named, of each change; the rest is counted. */
const MOST_SAID = 20;

/** @param {Inventory} one */
const stateOf = ({ error, renewed }) =>
  error ? { kind: "lost", word: "failed" } : renewed ? { kind: "up", word: "renewed" } : { kind: "off", word: "new" };
/** @param {Inventory} one */
const sourceOf = ({ ansible, file, command }) => ansible ?? file ?? command?.join(" ");

/** @type {Column<Inventory>[]} */
const COLUMNS = [
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
  return html`<${Listing} view="inventories" id="name" ...${{ path, error, again }} items=${answer?.inventories} columns=${COLUMNS} begin=${ADD}
    details=${(one) => html`<${One} one=${one} again=${again} />`}
    empty=${["No inventories yet", "An inventory is a list of hosts that something else keeps: Ansible, a program, a file. Its hosts become connections, which follow the list."]} />`;
}

/** @param {{one: Inventory, again: () => void}} props */
function One({ one, again }) {
  const { name, renewed, next, every } = one;
  useStore();
  const [changes, show] = useState(/** @type {[string, any] | null} */ (null));
  const gone = useAnswer(async () => {
    const everywhere = { categoryFilter: "*", connectionFilter: "*", typeFilter: "*" };
    return (await call("/connection/query", { ...everywhere, where: `inventory='${name}' and vanished` })).found;
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

export default { inventories: { component: Inventories } };
