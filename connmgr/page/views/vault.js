// The vault: whether its users' secrets are open to this session, and its users.

import { call } from "../core/api.js";
import { register } from "../core/palette.js";
import { unlockVault } from "../core/remedies.js";
import { can, store } from "../core/store.js";
import { ago, confirm, counted, doing, Fault, form, html, State, text, toast, useAnswer, Waiting } from "../core/ui.js";

const LEAST = 8;

const lock = async () => {
  await call("/vault/lock");
  toast("The vault is locked for this session.");
};

function Vault() {
  const { answer: status, error, again } = useAnswer(() => call("/vault/status"), []);
  const then = (/** @type {() => Promise<unknown>} */ work) =>
    doing(async () => {
      await work();
      again();
    });
  if (error)
    return html`<div class="view"><header><h1>Vault</h1></header><${Fault} error=${error} again=${again} /></div>`;
  if (!status)
    return html`<div class="view"><header><h1>Vault</h1></header><${Waiting} reason="Asking for the vault's state" /></div>`;
  const { hasUsers, user, users, principals } = status;
  const kind = !hasUsers || user ? "up" : "busy";
  const word = !hasUsers ? "open: it has no users" : user ? `unlocked by ${user}` : "locked";
  return html`
    <div class="view">
      <header><h1>Vault</h1>
        ${hasUsers && !user && html`<button class="primary" onClick=${then(() => unlockVault())}>Unlock</button>`}
        ${user && html`<button class="primary" onClick=${then(lock)}>Lock</button>`}
        ${user && html`<button onClick=${then(() => changePassphrase(user))}>Change the passphrase</button>`}
        ${can("vault.user.add") && (!hasUsers || user) && html`<button onClick=${then(() => addUser(hasUsers))}>Add a user</button>`}
      </header>
      <div class="scroll prose">
        <section>
          <p><${State} kind=${kind} word=${word} /></p>
          <p>${
            hasUsers
              ? user
                ? "Secrets that were sealed to this user can be used by this session, until it is locked, idle for long, or ends."
                : "Connections are in sight, and their secrets stay sealed: unlock to log in with stored passwords and keys."
              : "Secrets are sealed with the key of the daemon's machine: whoever may use this daemon may use them. With a user, they are sealed with a passphrase, too."
          }</p>
          ${principals.length > 0 && html`<p class="note">This session opens what is sealed to ${principals.map(text).join(", ")}.</p>`}
        </section>
        ${
          users.length > 0 &&
          html`
          <section>
            <table><caption>${counted(users.length, "user")}</caption>
              <tbody>${users.map(
                (
                  /** @type {string} */ one,
                ) => html`<tr key=${one}><td>${text(one)}${one === user ? html` <span class="note">this session</span>` : ""}</td>
                <td class="actions">${can("vault.user.remove") && html`<button class="quiet" onClick=${then(() => removeUser(one))}>Remove</button>`}</td></tr>`,
              )}</tbody></table>
          </section>`
        }
        ${store.me?.lent && html`<section><p>${text(store.me.lent.user)} lends this token the use of sealed secrets, until ${ago(store.me.lent.until)}.</p></section>`}
      </div>
    </div>
  `;
}

const passphrase = {
  name: "passphrase",
  label: "Passphrase",
  type: "password",
  required: true,
  autocomplete: "current-password",
};
const fresh = (/** @type {string} */ name, /** @type {string} */ label) => ({
  name,
  label,
  type: "password",
  required: true,
  pattern: `.{${LEAST},}`,
  hint: `At least ${LEAST} characters.`,
  autocomplete: "new-password",
});

/** @param {Record<string, string>} values @param {string} one */
function requireSame(values, one) {
  if (values[one] !== values.again) throw new Error("The two passphrases differ.");
}

/** @param {boolean} hasUsers */
const addUser = (hasUsers) =>
  form({
    title: "Add a vault user",
    text: hasUsers
      ? undefined
      : "From then on secrets are sealed to users, and opened with a passphrase. Nobody can recover a forgotten one.",
    fields: [
      { name: "user", label: "Name", required: true },
      fresh("passphrase", "Passphrase"),
      { ...fresh("again", "The same again"), hint: undefined },
    ],
    yes: "Add",
    work: async (values) => {
      requireSame(values, "passphrase");
      await call("/vault/user/add", { user: values.user, passphrase: values.passphrase });
      toast(`${text(values.user)} is a user of the vault.`);
    },
  });

/** @param {string} user */
const changePassphrase = (user) =>
  form({
    title: `Change the passphrase of ${text(user)}`,
    fields: [
      { ...passphrase, label: "Present passphrase" },
      fresh("newPassphrase", "New passphrase"),
      { ...fresh("again", "The same again"), hint: undefined },
    ],
    yes: "Change",
    work: async (values) => {
      requireSame(values, "newPassphrase");
      await call("/vault/user/passphrase", {
        user,
        passphrase: values.passphrase,
        newPassphrase: values.newPassphrase,
      });
      toast("The passphrase is changed.");
    },
  });

/** @param {string} user */
async function removeUser(user) {
  /** @type {any} */
  let removed;
  const given = await form({
    title: `Remove the user ${text(user)}?`,
    text: "Their passphrase permits it, and has secrets that only they can open sealed anew.",
    fields: [{ ...passphrase, label: `Passphrase of ${text(user)}` }],
    yes: "Remove",
    work: async (values) => {
      removed = await call("/vault/user/remove", { user, passphrase: values.passphrase });
    },
  });
  if (!given) return;
  await confirm({
    title: `${text(user)} is removed`,
    text: `They could read the secrets of ${counted(removed.connections.length, "connection")}${removed.connections.length ? ": change these passwords and keys on their machines" : ""}.${removed.heir ? ` What only they could open is sealed to ${text(removed.heir)} now.` : ""}`,
    yes: "Close",
    no: "OK",
  });
}

register({ name: "Unlock the vault", actions: ["vault.unlock"], run: () => unlockVault() });
register({ name: "Lock the vault", actions: ["vault.lock"], run: lock });

export default {
  name: "vault",
  title: "Vault",
  icon: "M4 7V5a4 4 0 0 1 8 0v2M3 7h10v6.5H3zM8 9.5v2",
  actions: ["vault.status", "vault.unlock"],
  component: Vault,
};
