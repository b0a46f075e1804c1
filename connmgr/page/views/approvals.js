// Approvals: what tokens ask for before it runs, and the decision of whoever may decide.

import { call } from "../core/api.js";
import { on } from "../core/events.js";
import { register } from "../core/palette.js";
import { address, go } from "../core/router.js";
import { can, store } from "../core/store.js";
import { ago, doing, Empty, exact, hooks, html, lines, State, text, toast, useAnswer } from "../core/ui.js";
import { Facts, Listing, useTick } from "./listing.js";

const { useEffect, useLayoutEffect, useState } = hooks;

/** @typedef {Omit<import("../contract.d.ts").ApprovalInfo, "asked"> & {asked: any}} Approval */

const KINDS = /** @type {Record<string, string>} */ ({ pending: "busy", once: "up", granted: "up", denied: "lost" });
const STATES = Object.keys(KINDS);
const LASTING = /** @type {[string, number][]} */ ([
  ["10 minutes", 600],
  ["1 hour", 3600],
  ["8 hours", 28800],
  ["1 day", 86400],
]);
/** What is asked for most, in words; another action has its name. @type {Record<string, string>} */
const DONE = {
  "shell.exec": "run a command",
  "shell.broadcast": "run a command on many machines",
  "job.start": "start a job",
  "run.start": "start a run",
  "terminal.open": "open a terminal",
  "fs.read": "read a file",
  "fs.write": "write a file",
  "fs.remove": "remove files",
  "web.confirm": "use this daemon from a page",
};
const NOTICES = "connmgr.notices";
const EXPIRY_SECONDS = 15;

/** The approvals in these states, kept current. @param {string[]} states */
function useApprovals(states) {
  const found = useAnswer(() => call("/approval/query", { states }, { quiet: true }), []);
  useLayoutEffect(() => on("approval", found.again), []);
  // No event tells of an expiry.
  const all = /** @type {Approval[] | undefined} */ (found.answer?.approvals);
  useTick(EXPIRY_SECONDS, Boolean(all?.length));
  return { ...found, approvals: all?.filter((one) => Date.parse(one.expires) > Date.now()) };
}

/** How many wait; the title says so, too, and a notice of the desktop where somebody asked for that. */
function useWaiting() {
  const count = useApprovals(["pending"]).approvals?.length ?? 0;
  useEffect(() => {
    document.title = document.title.replace(/^(\(\d+\) )?/, count ? `(${count}) ` : "");
  });
  useLayoutEffect(
    () =>
      on("approval", (event) => {
        if (event.change !== "requested" || !canNotify()) return;
        // Without the command: a screen may be shared.
        const notice = new Notification("connmgr", { body: "A token asks for an approval.", tag: event.id });
        notice.onclick = () => {
          focus();
          go(address("approvals", event.id ?? ""));
        };
      }),
    [],
  );
  return count;
}

const canNotify = () =>
  "Notification" in window && Notification.permission === "granted" && localStorage.getItem(NOTICES) === "on";

/** @param {{path: string[]}} props */
function Approvals({ path }) {
  const { approvals, error, again } = useApprovals(STATES);
  const [isTold, setTold] = useState(canNotify);
  const items = approvals && [...approvals].sort((one, other) => rank(one) - rank(other));
  const tell = doing(async () => {
    if (!isTold && (await Notification.requestPermission()) !== "granted")
      return toast("The browser does not let this page show notices; its settings for this page can.");
    localStorage.setItem(NOTICES, isTold ? "off" : "on");
    setTold(canNotify());
  });
  return html`<${Listing} view="approvals" title="Approvals" items=${items} error=${error} again=${again} reading="Reading the approvals"
    keyOf=${(/** @type {Approval} */ one) => one.approval} one=${items?.find((one) => one.approval === path[0])}
    columns=${[["State", "7rem"], ["By", "minmax(0, 1fr)"], ["What", "minmax(0, 2.5fr)"], ["On", "minmax(0, 1.5fr)"], ["Asked", "6rem"]]}
    row=${(/** @type {Approval} */ one, /** @type {boolean} */ isNarrow) => {
      const state = html`<${State} kind=${KINDS[one.state]} word=${one.state} />`;
      const gist = html`<span class="mono">${text(gistOf(one))}</span>`;
      return isNarrow
        ? html`${gist}${state}`
        : html`${state}<span>${text(one.tokenName)}</span>${gist}<span>${text((one.asked.names ?? []).join(", "))}</span><span class="note">${ago(one.created)}</span>`;
    }}
    tools=${"Notification" in window && html`<button aria-pressed=${isTold} onClick=${tell}>${isTold ? "Desktop notices: on" : "Notify me on the desktop"}</button>`}
    details=${(/** @type {Approval} */ one) => html`<${Details} one=${one} again=${again} />`}
    empty=${html`<${Empty} title="Nothing waits for a decision"><p>A token whose rules say <code>ask</code> has its requests shown here before they run. Such a
      token is made under <a href="#/tokens">Tokens</a>, with a rule like <code>{"effect": "ask"}</code>.</p><//>`} />`;
}

const rank = (/** @type {Approval} */ one) => (one.state === "pending" ? 0 : 1);

/** @param {Approval} one */
const gistOf = ({ asked }) =>
  asked.argv?.join(" ") ?? asked.command ?? asked.path ?? asked.saved?.name ?? asked.action ?? "";

/** @param {{one: Approval, again: () => void}} props */
function Details({ one, again }) {
  const [seconds, last] = useState(LASTING[0][1]);
  const { action, connections = [], names = [], on: grounds = [], terminal, moved = [], ...rest } = one.asked;
  const isPending = one.state === "pending";
  const beyond = [...new Set(JSON.stringify(one.asked))].filter((character) => character > "\x7f");
  const decide = (/** @type {string} */ decision) =>
    doing(async () => {
      await call("/approval/decide", { approval: one.approval, decision, ...(decision === "grant" && { seconds }) });
      toast(decision === "deny" ? `${text(one.tokenName)} is told that it may not.` : `${text(one.tokenName)} may.`);
      again();
    });
  return html`
    <header><div><h2>${text(one.tokenName)} asks to ${DONE[action] ?? text(action ?? "do something")}</h2>
      <p class="note">${ago(one.created)}; ${isPending ? "expires" : "lasts until"} ${exact(one.expires)}</p></div></header>
    <p><${State} kind=${KINDS[one.state]} word=${one.state} /></p>
    ${moved.map((/** @type {string} */ change) => html`<p class="fault">Since it was asked before: ${lines(change)}</p>`)}
    ${Object.entries(rest).map(([name, value]) => html`<section key=${name}><h3>${text(name)}</h3><pre class="printed">${spelled(value)}</pre></section>`)}
    ${
      one.locked
        ? html`<p class="fault">Its secrets are locked, so it is not shown, and this session cannot decide. <a href="#/vault">Unlock the vault</a></p>`
        : connections.map((/** @type {string} */ id, /** @type {number} */ index) => {
            const ground = grounds.find((/** @type {any} */ found) => found.connection === id);
            return html`<section key=${id}><h3>${store.connections.has(id) ? html`<a href=${address("hub", id)}>${text(names[index] ?? id)}</a>` : text(names[index] ?? id)}</h3>
            ${ground && html`<${Facts} facts=${factsOf(ground)} />`}</section>`;
          })
    }
    ${one.pattern && html`<section><h3>Or as a rule</h3><pre class="printed">${lines(one.pattern.words.join(" "))}</pre><p class="note">on ${text(one.pattern.names.join(", "))}, for ${one.pattern.seconds / 60} minutes; NAME is any service</p></section>`}
    ${terminal !== undefined && html`<p>It ${terminal ? "gets a" : "gets no"} terminal.</p>`}
    ${
      beyond.length > 0 &&
      html`<p class="note">Characters that may look like others: ${beyond
        .slice(0, 40)
        .map(
          (character) =>
            `${text(character)} U+${character.codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}`,
        )
        .join(", ")}</p>`
    }
    ${
      can("approval.decide") &&
      !one.locked &&
      html`<div class="does">
      ${isPending && html`<button class="primary" onClick=${decide("once")}>Approve once</button>`}
      ${
        one.state !== "granted" &&
        html`<span class="joined"><button onClick=${decide("grant")}>Approve repeatedly for</button>
      <select aria-label="How long" onChange=${(/** @type {any} */ event) => last(Number(event.target.value))}>${LASTING.map(([said, value]) => html`<option value=${value} selected=${value === seconds}>${said}</option>`)}</select></span>`
      }
      ${one.pattern && one.state !== "granted" && html`<button onClick=${decide("pattern")}>Approve the pattern for ${one.pattern.seconds / 60} minutes</button>`}
      ${one.state !== "denied" && html`<button class=${isPending ? "faint danger" : ""} onClick=${decide("deny")}>${isPending ? "Deny" : "Take it back"}</button>`}
    </div>`
    }
    <p class="mono id note">${one.approval}</p>
  `;
}

/** @param {any} ground @returns {[string, any][]} */
const factsOf = ({ hosts = [], user, directory, variables = {}, otherVariables = [] }) => [
  ["Host", text(hosts.join(", then ") || "the machine of the daemon")],
  ["User", text(user ?? (hosts.length ? "of the login there" : "of the daemon"))],
  ["Directory", directory === undefined ? null : text(directory ?? "where a new shell starts")],
  ...Object.entries(variables).map(
    ([name, value]) =>
      /** @type {[string, string]} */ ([text(name), value === null ? "no longer exported" : text(value)]),
  ),
  ["Variables", otherVariables.length ? otherVariables.map(text).join(", ") : null],
];

/** A member of a request, each word in quotes. @param {any} value @returns {string} */
const spelled = (value) =>
  typeof value === "string"
    ? lines(value)
    : Array.isArray(value)
      ? value.map((word) => text(JSON.stringify(word))).join("\n")
      : Object.entries(value ?? {})
          .map(([name, one]) => `${text(name)} = ${text(JSON.stringify(one))}`)
          .join("\n") || text(value);

register({
  name: "Approve the oldest request",
  hint: "show it, to decide",
  actions: ["approval.query"],
  run: async () => {
    const [first] = (await call("/approval/query")).approvals;
    if (first) go(address("approvals", first.approval));
    else toast("No request waits.");
  },
});

export default { component: Approvals, badge: useWaiting };
