// The vault: whether its users' secrets are open to this session, its users, and their ways back in.

import { call } from "../core/api.js";
import { form } from "../core/forms.js";
import { register } from "../core/navigate.js";
import { unlockVault } from "../core/remedies.js";
import { can, store } from "../core/store.js";
import {
  ago,
  confirm,
  counted,
  doing,
  Fault,
  html,
  openDialog,
  State,
  text,
  toast,
  useAnswer,
  Waiting,
} from "../core/ui.js";

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
    no: "OK",
  });
}

/** Shows the words of a new recovery key, which nobody can show again. @param {{recovery: string, user: string, threshold: number, shares: string[]}} made */
const showWords = ({ recovery, user, threshold, shares }) =>
  openDialog(
    { title: `Recovery key ${recovery} of ${user}` },
    (close) => html`
    <div class="body">
      <p>${shares.length === 1 ? "Write these words" : `Write each share on a paper of its own; any ${threshold} of ${shares.length} are the key. Write them`} down now:
      they are shown once. Keep them apart from this machine.</p>
      ${shares.map((words, index) => html`<section key=${index}>${shares.length > 1 && html`<h3>Share ${index + 1}</h3>`}<p class="shown"><code>${text(words)}</code></p></section>`)}
    </div>
    <footer><button class="primary" autofocus onClick=${() => close()}>I have written them down</button></footer>
  `,
  );

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
    text: `Its words open nothing from then on. If ${text(user)} then forgets the passphrase, this key is no way back.`,
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

export default { vault: { component: Vault } };
