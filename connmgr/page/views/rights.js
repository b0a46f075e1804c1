// Rights: whom tokens let in, what these ask for, and whose secrets are open.

import { call, now, on } from "../core/api.js";
import { Fields, Form, form, Several } from "../core/forms.js";
import { address, go, register } from "../core/navigate.js";
import { unlockVault } from "../core/remedies.js";
import { can, store } from "../core/store.js";
import {
  ago,
  confirm,
  counted,
  doing,
  exact,
  Facts,
  Fault,
  html,
  labelOf,
  lines,
  openDialog,
  State,
  text,
  toast,
  useAnswer,
  useEffect,
  useLayoutEffect,
  useState,
  Waiting,
} from "../core/ui.js";
import { copy, Deeds, Details, Listing, useTick } from "./listing.js";

// Tokens: who else is let in, to what, and until when.

const SCOPES = /** @type {Record<string, string>} */ ({
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
const LIVES = [
  [3600, "1 hour"],
  [28800, "8 hours"],
  [86400, "1 day"],
  [604800, "7 days"],
  [2592000, "30 days"],
  [7776000, "90 days"],
  ["until", "until a certain time"],
];
const FIRST = {
  required: ["name", "expires"],
  properties: {
    name: { title: "For", maxLength: 200, examples: ["Whoever or whatever uses it"] },
    expires: { title: "Valid for", choices: LIVES },
  },
};
const UNTIL = { required: ["until"], properties: { until: { format: "datetime-local" } } };
const ALL = { format: "words", examples: ["*"] };
const PLACES = {
  properties: {
    connections: {
      ...ALL,
      title: "On the connections",
      description: "Patterns for paths, such as web*; without one: all.",
    },
    readOnly: {
      title: "It only looks",
      type: "boolean",
      default: false,
      description: "Its commands run in a sandbox on the machine, and what would change something is refused.",
    },
  },
};
const LIMITS = {
  properties: {
    categories: { ...ALL, title: "In the categories" },
    from: {
      format: "words",
      examples: ["any"],
      title: "From the addresses",
      description: "IP addresses and networks, such as 10.0.0.0/8.",
    },
    quotaPerDay: { type: "integer", minimum: 1, title: "Most requests a day" },
    maxConcurrent: { type: "integer", minimum: 1, maximum: 10000, title: "Most requests at once" },
    rules: {
      format: "json",
      description: "A list in JSON: what it allows, denies or asks approval for, as in the guide on rights.",
    },
    lendSecrets: {
      type: "boolean",
      default: false,
      title: "Lend it the use of sealed secrets",
      description: "As long as it is valid, and you stay unlocked.",
    },
  },
};
const TOKEN_KINDS = { valid: "up", expired: "off", revoked: "lost" };
const stateOfToken = (/** @type {Token} */ { state }) => ({ kind: TOKEN_KINDS[state], word: state });

/** Which machines a token reaches, in a few words. @param {Token} token */
function whereOf({ connections = [], categories = [] }) {
  const said = (/** @type {string[]} */ some) => (`${some}` === "*" ? "" : some.map(text).join(", "));
  return [said(connections), said(categories) && `in ${said(categories)}`].filter(Boolean).join(" ") || "all";
}

/** @type {Column<Token>[]} */
const TOKEN_COLUMNS = [
  ["For", 1.3, (token) => token.name],
  ["State", "6rem", stateOfToken],
  ["Scopes", 2, ({ scopes }) => scopes.join(", ") || "none", "note"],
  ["Machines", 1, whereOf, "note"],
  ["Last used", "6rem", (token) => ago(token.lastUsed), "note"],
  ["Expires", "6rem", (token) => ago(token.expires), "note"],
];

/** @param {{path: string[]}} props */
function Tokens({ path }) {
  const { answer, error, again } = useAnswer(async () => (await call("/token/query")).tokens.reverse(), [], {
    kind: "token",
  });
  return html`<${Listing} view="tokens" id="id" ...${{ path, error, again }} items=${answer} columns=${TOKEN_COLUMNS} narrow=${[0, 1]} begin=${CREATE}
    details=${(token) => html`<${TokenDetails} token=${token} again=${again} />`}
    empty=${["Nobody else is let in", "A token gives a colleague, a script or an agent some rights, on some machines, for some time. It can be revoked at any moment."]} />`;
}

/** @param {{token: Token, again: () => void}} props */
function TokenDetails({ token, again }) {
  const { id, name, lent } = token;
  const isValid = token.state === "valid";
  const renew = async () => {
    const { expires = token.expires } = await call("/token/renew", { id });
    toast(`${text(name)} is valid until ${exact(expires)}.`);
    again();
  };
  const revoke = async () => {
    const said =
      "It ends at once, with the tokens that were created with it, and with their streams. This cannot be undone.";
    if (!(await confirm({ title: `Revoke ${name}?`, text: said, yes: "Revoke", danger: true }))) return;
    await call("/token/revoke", { id });
    again();
  };
  const lend = async () => {
    if (lent) await call("/token/lend", { id, end: true });
    else
      await form({
        title: `Lend ${name} the use of sealed secrets`,
        text: "Its requests then log in with passwords and keys that you have unlocked, and never see them.",
        properties: { hours: { type: "number", minimum: 0 } },
        value: { hours: 8 },
        yes: "Lend",
        work: ({ hours }) => call("/token/lend", { id, seconds: hours * 3600 }),
      });
    again();
  };
  return html`<${Details} title=${name} state=${stateOfToken(token)}
    deeds=${[
      isValid && ["Renew", "token.renew", renew],
      isValid && [lent ? "End the loan" : "Lend secrets", "token.lend", lend],
      isValid && ["Revoke", "token.revoke", revoke],
      ["What it did", "audit.record", () => go(address("record", id))],
    ]}
    facts=${[
      [
        "Scopes",
        token.scopes.map((scope) => html`<div><code>${text(scope)}</code> <small>${SCOPES[scope] ?? ""}</small></div>`),
      ],
      ["Only looks", token.readOnly ? "yes: its commands run in a sandbox, and changes are refused" : "no"],
      ["Connections", html`<code>${token.connections?.map(text).join(", ")}</code>`],
      ["Categories", html`<code>${token.categories?.map(text).join(", ")}</code>`],
      ["Rules", token.rules?.length ? html`<code>${text(JSON.stringify(token.rules))}</code>` : "none"],
      ["Requests today", `${token.usedToday}${token.quotaPerDay ? ` of ${token.quotaPerDay}` : ", no limit"}`],
      ["At once", token.maxConcurrent ?? "no limit"],
      ["From", token.from?.map(text).join(", ") ?? "any address"],
      ["Created", exact(token.created)],
      ["Expires", exact(token.expires)],
      ["Last used", ago(token.lastUsed)],
      ["Secrets", lent ? html`lent by ${text(lent.user)} until ${ago(lent.until)}` : "not lent"],
      [
        "Created by",
        token.parent ? html`<a class="mono" href=${address("tokens", token.parent)}>${token.parent}</a>` : "the owner",
      ],
      ["Id", html`<code>${id}</code>`],
    ]} />`;
}

async function create(again = () => {}) {
  const created = await openDialog(
    { title: "Create a token", kind: "wide" },
    (close) => html`<${Creation} close=${close} />`,
  );
  if (!created) return;
  again();
  await confirm({
    title: `The token for ${created.name}`,
    text: html`
      <p>It is shown this once, and stored nowhere. Give it to whoever it is for by a way that nobody else reads.</p>
      <p class="shown"><code>${created.token}</code><button type="button" autofocus onClick=${doing(() => copy(created.token))}>Copy</button></p>
      <p class="note">In a file of mode 600, <code>connmgr --token-file FILE …</code> uses it; so does <code>connmgr --token-file FILE web</code>. It expires ${exact(created.expires)}.</p>
    `,
    yes: "I have it",
    no: "",
  });
  go(address("tokens", created.id));
}

/** @param {{close: (created?: any) => void}} props */
function Creation({ close }) {
  const own = store.me.scopes.includes("*") ? Object.keys(SCOPES) : store.me.scopes;
  const [value, change] = useState(/** @type {Record<string, any>} */ ({ expires: 86400 }));
  const owned = (/** @type {string[]} */ some) => some.filter((scope) => own.includes(scope));
  const [scopes, setScopes] = useState(() => owned(PRESETS[0][1]));
  const submit = async () => {
    const { until, expires, ...others } = value;
    const end = expires === "until" ? new Date(until).toISOString() : expires;
    close(await call("/token/create", { ...others, expires: end, scopes }));
  };
  const shared = { value, change, isWhole: true };
  return html`
    <${Form} yes="Create" cancel=${close} submit=${submit}>
      <${Fields} ...${shared} schema=${FIRST} />
      ${value.expires === "until" && html`<${Fields} ...${shared} schema=${UNTIL} />`}
      <${Several} label="It may" choices=${own.map((/** @type {string} */ scope) => [scope, SCOPES[scope] ?? "", text(scope)])} value=${scopes} set=${setScopes}>
        <p class="does">${PRESETS.map(([said, some]) => html`<button type="button" onClick=${() => setScopes(owned(some))}>${said}</button>`)}
          <span class="note">${counted(scopes.length, "scope")} chosen</span></p>
      <//>
      <${Fields} ...${shared} schema=${PLACES} />
      <details><summary>More limits</summary><${Fields} ...${shared} schema=${LIMITS} /></details>
    <//>
  `;
}

/** @type {Command} */
const CREATE = { name: "Create a token", actions: ["token.create"], run: create };
register(CREATE);

// Approvals: what tokens ask for before it runs, and the decision of whoever may decide.

const APPROVAL_KINDS = /** @type {Record<string, string>} */ ({
  pending: "busy",
  once: "up",
  granted: "up",
  denied: "lost",
});
const STATES = Object.keys(APPROVAL_KINDS);
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

/** @param {string[]} states */
function useApprovals(states) {
  const { answer, ...found } = useAnswer(() => call("/approval/query", { states }, { quiet: true }), [], {
    kind: "approval",
  });
  // No event tells of an expiry.
  useTick(EXPIRY_SECONDS, Boolean(answer?.approvals.length));
  return { ...found, approvals: answer?.approvals.filter((one) => Date.parse(one.expires) > now()) };
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

const stateOfApproval = (/** @type {Approval} */ { state }) => ({ kind: APPROVAL_KINDS[state], word: state });

/** @type {Column<Approval>[]} */
const APPROVAL_COLUMNS = [
  ["State", "7rem", stateOfApproval],
  ["By", 1, (one) => one.tokenName],
  [
    "What",
    2.5,
    ({ asked: { argv, command, path, saved, action } }) => argv?.join(" ") ?? command ?? path ?? saved?.name ?? action,
    "mono",
  ],
  ["On", 1.5, ({ asked }) => asked.names?.join(", ")],
  ["Asked", "6rem", (one) => ago(one.created), "note"],
];

const rank = (/** @type {Approval} */ one) => (one.state === "pending" ? 0 : 1);

/** @param {{path: string[]}} props */
function Approvals({ path }) {
  const { approvals, error, again } = useApprovals(STATES);
  const [isTold, setTold] = useState(canNotify);
  const items = approvals?.sort((one, other) => rank(one) - rank(other));
  const tell = doing(async () => {
    if (!isTold && (await Notification.requestPermission()) !== "granted")
      return toast("The browser does not let this page show notices; its settings for this page can.");
    localStorage.setItem(NOTICES, isTold ? "off" : "on");
    setTold(canNotify());
  });
  return html`<${Listing} view="approvals" id="approval" ...${{ path, items, error, again }} columns=${APPROVAL_COLUMNS} narrow=${[2, 0]}
    tools=${"Notification" in window && html`<button aria-pressed=${isTold} onClick=${tell}>${isTold ? "Desktop notices: on" : "Notify me on the desktop"}</button>`}
    details=${(one) => html`<${ApprovalDetails} one=${one} again=${again} />`}
    empty=${[
      "Nothing waits for a decision",
      html`A token whose rules say <code>ask</code> has its requests shown here before they run. Such a
      token is made under <a href="#/tokens">Tokens</a>, with rules like <code>[{"effect": "ask", "text": "."}]</code>.`,
    ]} />`;
}

/** @param {{one: Approval, again: () => void}} props */
function ApprovalDetails({ one, again }) {
  const [seconds, last] = useState(LASTING[0][1]);
  const { state, tokenName, pattern } = one;
  const { action, connections = [], names = [], on: grounds = [], terminal, moved = [], ...rest } = one.asked;
  const isPending = state === "pending";
  const beyond = [...new Set(JSON.stringify(one.asked))].filter((character) => character > "\x7f").slice(0, 40);
  const decide = (/** @type {string} */ decision) => async () => {
    await call("/approval/decide", { approval: one.approval, decision, ...(decision === "grant" && { seconds }) });
    toast(`${text(tokenName)} ${decision === "deny" ? "is told that it may not" : "may"}.`);
    again();
  };
  /** @type {(name: string, decision: string, look?: string) => Deed} */
  const deed = (name, decision, look) => [name, "approval.decide", decide(decision), look];
  return html`<${Details} title=${`${text(tokenName)} asks to ${DONE[action] ?? text(action ?? "do something")}`}
    note=${html`${ago(one.created)}; ${isPending ? "expires" : "lasts until"} ${exact(one.expires)}`} state=${stateOfApproval(one)}
    facts=${[["Id", html`<code>${one.approval}</code>`]]}>
    ${moved.map((/** @type {string} */ change) => html`<p class="fault">Since it was asked before: ${lines(change)}</p>`)}
    ${Object.entries(rest).map(([name, value]) => html`<section key=${name}><h3>${text(labelOf(name))}</h3><pre class="printed">${spelled(value)}</pre></section>`)}
    ${
      one.locked
        ? html`<p class="fault">Its secrets are locked, so it is not shown, and this session cannot decide. <a href="#/vault">Unlock the vault</a></p>`
        : connections.map((/** @type {string} */ id, /** @type {number} */ index) => {
            const name = text(names[index] ?? id);
            const ground = grounds.find((/** @type {any} */ found) => found.connection === id);
            return html`<section key=${id}><h3>${store.connections.has(id) ? html`<a href=${address("hub", id)}>${name}</a>` : name}</h3>
            ${ground && html`<${Facts} facts=${factsOf(ground)} />`}</section>`;
          })
    }
    ${pattern && html`<section><h3>Or as a rule</h3><pre class="printed">${lines(pattern.words.join(" "))}</pre><p class="note">on ${text(pattern.names.join(", "))}, for ${pattern.seconds / 60} minutes; NAME is any service</p></section>`}
    ${terminal !== undefined && html`<p>It ${terminal ? "gets a" : "gets no"} terminal.</p>`}
    ${beyond.length > 0 && html`<p class="note">Characters that may look like others: ${beyond.map((one) => `${text(one)} U+${one.codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}`).join(", ")}</p>`}
    ${
      !one.locked &&
      html`
      <${Deeds} deeds=${[
        isPending && deed("Approve once", "once", "primary"),
        pattern && state !== "granted" && deed(`Approve the pattern for ${pattern.seconds / 60} minutes`, "pattern"),
        state !== "denied" && deed(isPending ? "Deny" : "Take it back", "deny", isPending ? "faint danger" : ""),
      ]} />
      ${
        state !== "granted" &&
        can("approval.decide") &&
        html`<p class="joined"><button onClick=${doing(decide("grant"))}>Approve repeatedly for</button>
        <select aria-label="How long" onChange=${(event) => last(Number(event.target.value))}>${LASTING.map(([said, value]) => html`<option value=${value} selected=${value === seconds}>${said}</option>`)}</select></p>`
      }`
    }
  <//>`;
}

/** @param {any} ground @returns {[string, any][]} */
const factsOf = ({ hosts = [], user, directory, variables = {}, otherVariables = [] }) => [
  ["Host", text(hosts.join(", then ") || "the machine of the daemon")],
  ["User", text(user ?? (hosts.length ? "of the login there" : "of the daemon"))],
  ["Directory", directory === undefined ? null : text(directory ?? "where a new shell starts")],
  .../** @type {[string, string][]} */ (
    Object.entries(variables).map(([name, value]) => [text(name), value === null ? "no longer exported" : text(value)])
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

// The vault: whether its users' secrets are open to this session, its users, and their ways back in.

const LEAST = 8;

const lock = async () => {
  await call("/vault/lock");
  toast("The vault is locked for this session.");
};

function Vault() {
  const { answer, error, again } = useAnswer(
    async () => ({
      status: await call("/vault/status"),
      recoveries: can("vault.recovery.query") ? (await call("/vault/recovery/query")).recoveries : [],
    }),
    [],
  );
  const then = (/** @type {() => Promise<unknown>} */ work) =>
    doing(async () => {
      await work();
      again();
    });
  if (!answer || error)
    return html`<div class="view"><header><h1>Vault</h1></header>
      ${error ? html`<${Fault} error=${error} again=${again} />` : html`<${Waiting} reason="Asking for the vault's state" />`}</div>`;
  const { hasUsers, user, users, principals } = answer.status;
  const { recoveries } = answer;
  const kind = !hasUsers || user ? "up" : "busy";
  const word = !hasUsers ? "open: it has no users" : user ? `unlocked by ${user}` : "locked";
  /** @type {[name: string, isOffered: unknown, work: () => Promise<unknown>, look?: string][]} */
  const deeds = [
    ["Unlock", hasUsers && !user, () => unlockVault(), "primary"],
    ["Lock", user, lock, "primary"],
    ["Change the passphrase", user, () => changePassphrase(user ?? "")],
    ["Use a recovery key", hasUsers && !user && can("vault.recovery.use"), useRecovery],
    ["Add a user", can("vault.user.add") && (!hasUsers || user), () => addUser(hasUsers), hasUsers ? "" : "primary"],
  ];
  return html`
    <div class="view">
      <header><h1>Vault</h1>${deeds.map(([name, isOffered, work, look]) => isOffered && html`<button key=${name} class=${look} onClick=${then(work)}>${name}</button>`)}</header>
      <div class="scroll prose">
        <section>
          <p><${State} kind=${kind} word=${word} /></p>
          <p>${
            !hasUsers
              ? "Secrets are sealed with the key of the daemon's machine: whoever may use this daemon may use them. With a user, they are sealed with a passphrase, too."
              : user
                ? "Secrets that were sealed to this user can be used by this session, until it is locked, idle for long, or ends."
                : "Connections are in sight, and their secrets stay sealed: unlock to log in with stored passwords and keys."
          }</p>
          ${user && html`<p class="note">This session opens what is sealed to ${principals.map(text).join(", ")}.</p>`}
        </section>
        ${
          users.length > 0 &&
          html`
          <section>
            <table><caption>${counted(users.length, "user")}</caption>
              <tbody>${users.map(
                (
                  one,
                ) => html`<tr key=${one}><td>${text(one)}${one === user && html` <span class="note">this session</span>`}</td>
                <td class="actions">${can("vault.user.remove") && html`<button class="quiet" onClick=${then(() => removeUser(one))}>Remove</button>`}</td></tr>`,
              )}</tbody></table>
          </section>`
        }
        ${
          hasUsers &&
          can("vault.recovery.create") &&
          html`
          <section>
            <table><caption>${recoveries.length ? counted(recoveries.length, "recovery key") : "No recovery key"}</caption>
              <tbody>${recoveries.map(
                (
                  one,
                ) => html`<tr key=${one.recovery}><td><code>${text(one.recovery)}</code> of ${text(one.user)}</td><td>${one.shares === 1 ? "on one paper" : `any ${one.threshold} of ${one.shares} papers`}</td>
                <td>${one.used ? html`<span class="fault">used ${ago(one.used)}</span>` : html`made ${ago(one.created)}`}</td>
                <td class="actions"><button class="quiet" onClick=${then(() => rotate(one))}>Replace</button>${user && html`<button class="quiet" onClick=${then(() => revoke(one))}>Revoke</button>`}</td></tr>`,
              )}</tbody></table>
            <p class="note">By the words of a recovery key a user who forgot the passphrase sets a new one.</p>
            ${user && html`<p><button onClick=${then(() => makeRecovery(user))}>Make a recovery key</button></p>`}
          </section>`
        }
        ${store.me?.lent && html`<section><p>${text(store.me.lent.user)} lends this token the use of sealed secrets, until ${ago(store.me.lent.until)}.</p></section>`}
      </div>
    </div>
  `;
}

const passphraseOf = (/** @type {string} */ user) => ({
  passphrase: { format: "password", title: `Passphrase of ${text(user)}`, autocomplete: "current-password" },
});

/** @param {string} name @param {string} title */
const twice = (name, title) => ({
  [name]: {
    format: "password",
    title,
    pattern: `.{${LEAST},}`,
    description: `At least ${LEAST} characters.`,
    autocomplete: "new-password",
  },
  again: { format: "password", title: "The same again", autocomplete: "new-password" },
});

/** Sends what a form with a new passphrase has. @param {string} path @param {string} name of its field @param {Record<string, any>} values */
function sent(path, name, { again, ...values }) {
  if (values[name] !== again) throw new Error("The two passphrases differ.");
  return call(path, values);
}

/** @param {boolean} hasUsers */
const addUser = (hasUsers) =>
  form({
    title: "Add a vault user",
    text:
      !hasUsers &&
      "From then on secrets are sealed to users, and opened with a passphrase. Make a recovery key then: without one nobody can recover a forgotten passphrase.",
    properties: { user: { title: "Name" }, ...twice("passphrase", "Passphrase") },
    yes: "Add",
    work: async (values) => {
      await sent("/vault/user/add", "passphrase", values);
      toast(`${text(values.user)} is a user of the vault.`);
    },
  });

/** @param {string} user */
const changePassphrase = (user) =>
  form({
    title: `Change the passphrase of ${user}`,
    properties: {
      passphrase: { ...passphraseOf(user).passphrase, title: "Present passphrase" },
      ...twice("newPassphrase", "New passphrase"),
    },
    yes: "Change",
    work: async (values) => {
      await sent("/vault/user/passphrase", "newPassphrase", { user, ...values });
      toast("The passphrase is changed.");
    },
  });

/** @param {string} user */
async function removeUser(user) {
  const removed = await form({
    title: `Remove the user ${user}?`,
    text: "Their passphrase permits it, and has secrets that only they can open sealed anew.",
    properties: passphraseOf(user),
    yes: "Remove",
    work: (values) => call("/vault/user/remove", { user, ...values }),
  });
  if (!removed) return;
  const { connections, heir } = removed;
  await confirm({
    title: `${user} is removed`,
    text: `They could read the secrets of ${counted(connections.length, "connection")}${connections.length ? ": change these passwords and keys on their machines" : ""}.${heir ? ` What only they could open is sealed to ${text(heir)} now.` : ""}`,
    yes: "Close",
    no: "",
  });
}

/** Shows the words of a new recovery key, which nobody can show again. @param {{recovery: string, user: string, threshold: number, shares: string[]}} made */
const showWords = ({ recovery, user, threshold, shares }) =>
  confirm({
    title: `Recovery key ${recovery} of ${user}`,
    text: html`
      <p>${shares.length === 1 ? "Write these words" : `Write each share on a paper of its own; any ${threshold} of ${shares.length} are the key. Write them`} down now:
      they are shown once. Keep them apart from this machine.</p>
      ${shares.map((words, index) => html`<section key=${index}>${shares.length > 1 && html`<h3>Share ${index + 1}</h3>`}<p class="shown"><code>${text(words)}</code></p></section>`)}
    `,
    yes: "I have written them down",
    no: "",
  });

/** @param {string} user */
async function makeRecovery(user) {
  const made = await form({
    title: `Make a recovery key for ${user}`,
    text: "Several papers in several places protect against a thief of one, and against the loss of one.",
    properties: {
      ...passphraseOf(user),
      shares: { type: "integer", minimum: 1, title: "Papers" },
      threshold: { type: "integer", minimum: 1, title: "Of these are needed" },
    },
    value: { shares: 1, threshold: 1 },
    yes: "Make it",
    work: (values) => call("/vault/recovery/create", { user, ...values }),
  });
  if (made) await showWords(made);
}

/** @param {Recovery} key */
async function rotate({ recovery, user }) {
  const made = await form({
    title: `Replace recovery key ${recovery}`,
    text: "Its words open nothing from then on; others take their place.",
    properties: passphraseOf(user),
    yes: "Replace",
    work: (values) => call("/vault/recovery/rotate", { recovery, ...values }),
  });
  if (made) await showWords(made);
}

/** @param {Recovery} key */
const revoke = ({ recovery, user }) =>
  confirm({
    title: `Revoke recovery key ${recovery}?`,
    text: `Its words open nothing from then on, also if ${text(user)} forgets the passphrase.`,
    yes: "Revoke",
    danger: true,
  }).then((is) => is && call("/vault/recovery/revoke", { recovery }));

const useRecovery = () =>
  form({
    title: "Set a new passphrase by a recovery key",
    properties: {
      shares: { type: "array", title: "Words", description: "Each share on a line of its own, in any order." },
      ...twice("newPassphrase", "New passphrase"),
    },
    yes: "Set it",
    work: async (values) => {
      const shares = values.shares.map((/** @type {string} */ line) => line.trim()).filter(Boolean);
      const { user } = await sent("/vault/recovery/use", "newPassphrase", { ...values, shares });
      toast(`${text(user)} has a new passphrase. Replace the recovery key: its words are valid still.`);
    },
  });

register({ name: "Unlock the vault", actions: ["vault.unlock"], run: () => unlockVault() });
register({ name: "Lock the vault", actions: ["vault.lock"], run: lock });

export default {
  tokens: { component: Tokens },
  approvals: { component: Approvals, badge: useWaiting },
  vault: { component: Vault },
};
