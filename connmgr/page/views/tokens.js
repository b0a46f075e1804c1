// Tokens: who else is let in, to what, and until when.

import { call } from "../core/api.js";
import { on } from "../core/events.js";
import { register } from "../core/palette.js";
import { address, go } from "../core/router.js";
import { can, store } from "../core/store.js";
import {
  ago,
  confirm,
  counted,
  doing,
  Empty,
  exact,
  Fault,
  Form,
  form,
  hooks,
  html,
  Labeled,
  openDialog,
  Rows,
  State,
  text,
  toast,
  useAnswer,
  useNarrow,
  Waiting,
} from "../core/ui.js";

const { useLayoutEffect, useState } = hooks;

/** The scopes, in a few words. */
export const SCOPES = /** @type {Record<string, string>} */ ({
  "connection.read": "See connections and categories",
  "connection.write": "Add, change and remove connections",
  "category.write": "Add and remove categories",
  "shell.argv": "Run programs, without a shell",
  "shell.any": "Run any command",
  elevate: "Become another user by sudo",
  job: "Start, watch and end jobs",
  terminal: "Open and use terminals",
  "fs.read": "Read files",
  "fs.write": "Write, move and remove files",
  tunnel: "Open tunnels and TCP streams",
  "ssh.agent": "Use forwarded ssh-agents",
  "ssh.certificate": "Set up logins by certificate",
  "secret.decrypt": "Open sealed secrets",
  "approval.decide": "Decide approvals",
  "vault.admin": "Administer users, saved commands, the daemon",
  "token.create": "Create tokens of no more rights",
  "audit.read": "Read the audit log",
  "metrics.read": "Read figures of the daemon",
});

const PRESETS = /** @type {[string, string[]][]} */ ([
  ["Look only", ["connection.read", "fs.read", "audit.read"]],
  ["Run programs", ["connection.read", "shell.argv", "job"]],
  [
    "Work on machines",
    ["connection.read", "shell.argv", "shell.any", "job", "terminal", "fs.read", "fs.write", "tunnel"],
  ],
]);
const LIVES = /** @type {[string, number][]} */ ([
  ["1 hour", 3600],
  ["8 hours", 28800],
  ["1 day", 86400],
  ["7 days", 604800],
  ["30 days", 2592000],
  ["90 days", 7776000],
]);
const KINDS = /** @type {Record<string, string>} */ ({ valid: "up", expired: "off", revoked: "lost" });

/** @param {{path: string[]}} props */
function Tokens({ path }) {
  const { answer, error, again } = useAnswer(() => call("/token/query").then((found) => found.tokens), []);
  const isNarrow = useNarrow();
  useLayoutEffect(() => on("token", again), []);
  const tokens = answer ? [...answer].reverse() : [];
  const one = tokens.find((token) => token.id === path[0]);
  const add = doing(() => create(again));
  /** @param {any} token */
  const row = (token) => html`
    <span class="name">${text(token.name)}</span><${State} kind=${KINDS[token.state]} word=${token.state} />
    ${
      !isNarrow &&
      html`<span class="note">${token.scopes.map(text).join(", ") || "none"}</span><span class="note">${whereOf(token)}</span>
      <span class="note">${ago(token.lastUsed)}</span><span class="note">${ago(token.expires)}</span>`
    }
  `;
  return html`
    <div class=${`view table tokens ${one ? "with-one" : ""}`} style=${{ "--columns": isNarrow ? "1fr auto" : "minmax(0, 1.3fr) 6rem minmax(0, 2fr) minmax(0, 1fr) 6rem 6rem" }}>
      <header><h1>Tokens</h1>${tokens.length > 0 && html`<button class="primary" onClick=${add}>Create a token</button>`}</header>
      <div class="split">
        <section class="aside-list">
          ${error && html`<${Fault} error=${error} again=${again} />`}
          ${!answer && !error && html`<${Waiting} reason="Reading the tokens" />`}
          ${
            answer &&
            !tokens.length &&
            html`<${Empty} title="Nobody else is let in">
            <p>A token gives a colleague, a script or an agent some rights, on some machines, for some time. It can be revoked at any moment.</p>
            <p><button class="primary" onClick=${add}>Create a token</button></p><//>`
          }
          ${
            tokens.length > 0 &&
            html`
            ${!isNarrow && html`<div class="columns" aria-hidden="true"><span>For</span><span>State</span><span>Scopes</span><span>Machines</span><span>Last used</span><span>Expires</span></div>`}
            <${Rows} items=${tokens} label="Tokens" keyOf=${(/** @type {any} */ token) => token.id} row=${row} height=${isNarrow ? 44 : 34}
              classOf=${(/** @type {any} */ token) => (token === one ? "chosen" : "")} open=${(/** @type {any} */ token) => go(token === one ? "#/tokens" : address("tokens", token.id))} />`
          }
        </section>
        ${one && html`<${Details} key=${one.id} token=${one} again=${again} />`}
      </div>
    </div>
  `;
}

/** Which machines a token reaches, in a few words. @param {any} token */
function whereOf({ connections, categories }) {
  const isAll = (/** @type {string[]} */ some) => some.length === 1 && some[0] === "*";
  const named = isAll(connections) ? "" : connections.map(text).join(", ");
  const within = isAll(categories) ? "" : `in ${categories.map(text).join(", ")}`;
  return [named, within].filter(Boolean).join(" ") || "all";
}

/** @param {{token: any, again: () => void}} props */
function Details({ token, again }) {
  const isValid = token.state === "valid";
  const facts = /** @type {[string, any][]} */ ([
    [
      "Scopes",
      token.scopes.map(
        (/** @type {string} */ scope) =>
          html`<div><code>${text(scope)}</code> <small>${SCOPES[scope] ?? ""}</small></div>`,
      ),
    ],
    ["Only looks", token.readOnly ? "yes: its commands run in a sandbox, and changes are refused" : "no"],
    ["What it did", html`<a href=${address("record", token.id)}>its record</a>`],
    ["Connections", html`<code>${token.connections.map(text).join(", ")}</code>`],
    ["Categories", html`<code>${token.categories.map(text).join(", ")}</code>`],
    ["Rules", token.rules.length ? html`<code>${text(JSON.stringify(token.rules))}</code>` : "none"],
    [
      "A day",
      token.quotaPerDay === null
        ? `${token.usedToday} requests today, no limit`
        : `${token.usedToday} of ${token.quotaPerDay} requests today`,
    ],
    ["At once", token.maxConcurrent ?? "no limit"],
    ["From", token.from ? token.from.map(text).join(", ") : "any address"],
    ["Created", exact(token.created)],
    ["Expires", exact(token.expires)],
    ["Last used", ago(token.lastUsed)],
    ["Secrets", token.lent ? html`lent by ${text(token.lent.user)} until ${ago(token.lent.until)}` : "not lent"],
    [
      "Created by",
      token.parent === null
        ? "the owner"
        : html`<a class="mono" href=${address("tokens", token.parent)}>${token.parent}</a>`,
    ],
    ["Id", html`<span class="mono id">${token.id}</span>`],
  ]);
  const renew = doing(async () => {
    const renewed = await call("/token/renew", { id: token.id });
    toast(`${text(token.name)} is valid until ${exact(renewed.expires ?? token.expires)}.`);
    again();
  });
  const revoke = doing(async () => {
    const isMeant = await confirm({
      title: `Revoke ${text(token.name)}?`,
      text: "It ends at once, with the tokens that were created with it, and with their streams. This cannot be undone.",
      yes: "Revoke",
      danger: true,
    });
    if (!isMeant) return;
    await call("/token/revoke", { id: token.id });
    again();
  });
  const lend = doing(async () => {
    if (token.lent) await call("/token/lend", { id: token.id, end: true });
    else {
      await form({
        title: `Lend ${text(token.name)} the use of sealed secrets`,
        text: "Its requests then log in with passwords and keys that you have unlocked, and never see them.",
        fields: [{ name: "hours", label: "Hours", type: "number", value: "8", required: true }],
        yes: "Lend",
        work: ({ hours }) => call("/token/lend", { id: token.id, seconds: Number(hours) * 3600 }),
      });
    }
    again();
  });
  return html`
    <aside class="details" aria-label=${text(token.name)}>
      <header><div><h2>${text(token.name)}</h2></div><a class="button close" href="#/tokens" aria-label="Close">×</a></header>
      <p><${State} kind=${KINDS[token.state]} word=${token.state} /></p>
      <div class="does">
        ${isValid && html`<button onClick=${renew}>Renew</button><button onClick=${lend}>${token.lent ? "End the loan" : "Lend secrets"}</button><button onClick=${revoke}>Revoke</button>`}
        ${can("audit.record") && html`<a class="button" href=${address("record", token.id)}>What it did</a>`}
      </div>
      <dl>${facts.map(([name, said]) => html`<div key=${name}><dt>${name}</dt><dd>${said}</dd></div>`)}</dl>
    </aside>
  `;
}

/** @param {() => void} again */
async function create(again) {
  const created = await openDialog(
    { title: "Create a token", kind: "wide" },
    (close) => html`<${Creation} close=${close} />`,
  );
  if (!created) return;
  again();
  await openDialog(
    { title: `The token for ${text(created.name)}` },
    (close) => html`
    <div class="body">
      <p>It is shown this once, and stored nowhere. Give it to whoever it is for by a way that nobody else reads.</p>
      <p class="shown"><code>${created.token}</code><button autofocus onClick=${doing(async () => {
        await navigator.clipboard.writeText(created.token);
        toast("Copied.");
      })}>Copy</button></p>
      <p class="note">In a file of mode 600, <code>connmgr --token-file FILE …</code> uses it; so does <code>connmgr --token-file FILE web</code>. It expires ${exact(created.expires)}.</p>
    </div>
    <footer><button class="primary" onClick=${() => close()}>I have it</button></footer>
  `,
  );
  go(address("tokens", created.id));
}

/** @param {{close: (created?: any) => void}} props */
function Creation({ close }) {
  const own = store.me.scopes.includes("*") ? Object.keys(SCOPES) : store.me.scopes;
  const [scopes, setScopes] = useState(() => new Set(PRESETS[0][1].filter((scope) => own.includes(scope))));
  const toggle = (/** @type {string} */ scope) => {
    const next = new Set(scopes);
    if (!next.delete(scope)) next.add(scope);
    setScopes(next);
  };
  const words = (/** @type {FormDataEntryValue | null} */ given) =>
    String(given ?? "")
      .split(/[\s,]+/)
      .filter(Boolean);
  /** @param {HTMLFormElement} element */
  const submit = async (element) => {
    const given = new FormData(element);
    const [connections, categories, from] = ["connections", "categories", "from"].map((name) => words(given.get(name)));
    const [quotaPerDay, maxConcurrent] = ["quotaPerDay", "maxConcurrent"].map(
      (name) => Number(given.get(name)) || undefined,
    );
    const typed = String(given.get("rules")).trim();
    /** @type {any} */
    let rules;
    try {
      rules = typed ? JSON.parse(typed) : undefined;
    } catch (error) {
      throw new Error(`The rules are not JSON: ${/** @type {Error} */ (error).message}`);
    }
    close(
      await call("/token/create", {
        name: String(given.get("name")),
        expires: Number(given.get("life")),
        scopes: [...scopes],
        ...(connections.length && { connections }),
        ...(categories.length && { categories }),
        ...(from.length && { from }),
        quotaPerDay,
        maxConcurrent,
        rules,
        ...(given.get("lend") && { lendSecrets: true }),
      }),
    );
  };
  return html`
    <${Form} yes="Create" cancel=${() => close()} submit=${submit}>
      <${Labeled} label="For">${(/** @type {any} */ tied) => html`<input ...${tied} name="name" required maxlength="200" autofocus placeholder="Whoever or whatever uses it" />`}<//>
      <${Labeled} label="Valid for">${(/** @type {any} */ tied) => html`<select ...${tied} name="life">${LIVES.map(([said, seconds]) => html`<option value=${seconds} selected=${seconds === 86400}>${said}</option>`)}</select>`}<//>
      <fieldset><legend>It may</legend>
        <p class="does">${PRESETS.map(([said, some]) => html`<button type="button" onClick=${() => setScopes(new Set(some.filter((scope) => own.includes(scope))))}>${said}</button>`)}
          <span class="note">${counted(scopes.size, "scope")} chosen</span></p>
        <div class="choices">${own.map(
          (
            /** @type {string} */ scope,
          ) => html`<label class="check" key=${scope}><input type="checkbox" checked=${scopes.has(scope)} onChange=${() => toggle(scope)} />
          <span>${SCOPES[scope] ?? ""}<br /><small class="mono">${text(scope)}</small></span></label>`,
        )}</div></fieldset>
      <${Labeled} label="On the connections" hint=${html`Patterns for paths, such as <code>web*</code>; without one: all.`}>${(/** @type {any} */ tied) => html`<input ...${tied} name="connections" placeholder="*" spellcheck=${false} />`}<//>
      <details><summary>More limits</summary>
        <${Labeled} label="In the categories">${(/** @type {any} */ tied) => html`<input ...${tied} name="categories" placeholder="*" spellcheck=${false} />`}<//>
        <${Labeled} label="From the addresses" hint="IP addresses and networks, such as 10.0.0.0/8.">${(/** @type {any} */ tied) => html`<input ...${tied} name="from" placeholder="any" spellcheck=${false} />`}<//>
        <${Labeled} label="Most requests a day">${(/** @type {any} */ tied) => html`<input ...${tied} name="quotaPerDay" type="number" min="1" />`}<//>
        <${Labeled} label="Most requests at once">${(/** @type {any} */ tied) => html`<input ...${tied} name="maxConcurrent" type="number" min="1" max="10000" />`}<//>
        <${Labeled} label="Rules" hint="A list in JSON: what it allows, denies or asks approval for, as in the guide on rights.">${(/** @type {any} */ tied) => html`<textarea ...${tied} name="rules" rows="4" class="mono" spellcheck=${false}></textarea>`}<//>
        <label class="check"><input type="checkbox" name="lend" /><span>Lend it the use of sealed secrets<br /><small>As long as it is valid, and you stay unlocked.</small></span></label>
      </details>
    <//>
  `;
}

register({ name: "Create a token", actions: ["token.create"], run: () => create(() => {}) });

export default { component: Tokens };
