// The vault: whether its users' secrets are open to this session, its users, and their ways back in.

import { call } from "../core/api.js";
import { register } from "../core/palette.js";
import { unlockVault } from "../core/remedies.js";
import { can, store } from "../core/store.js";
import {
  ago,
  confirm,
  counted,
  doing,
  Fault,
  Form,
  form,
  html,
  Labeled,
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
  if (error)
    return html`<div class="view"><header><h1>Vault</h1></header><${Fault} error=${error} again=${again} /></div>`;
  if (!answer)
    return html`<div class="view"><header><h1>Vault</h1></header><${Waiting} reason="Asking for the vault's state" /></div>`;
  const { hasUsers, user, users, principals } = answer.status;
  const kind = !hasUsers || user ? "up" : "busy";
  const word = !hasUsers ? "open: it has no users" : user ? `unlocked by ${user}` : "locked";
  return html`
    <div class="view">
      <header><h1>Vault</h1>
        ${hasUsers && !user && html`<button class="primary" onClick=${then(() => unlockVault())}>Unlock</button>`}
        ${user && html`<button class="primary" onClick=${then(lock)}>Lock</button>`}
        ${user && html`<button onClick=${then(() => changePassphrase(user))}>Change the passphrase</button>`}
        ${hasUsers && !user && can("vault.recovery.use") && html`<button onClick=${then(useRecovery)}>Use a recovery key</button>`}
        ${can("vault.user.add") && (!hasUsers || user) && html`<button class=${hasUsers ? "" : "primary"} onClick=${then(() => addUser(hasUsers))}>Add a user</button>`}
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
        ${
          hasUsers &&
          can("vault.recovery.create") &&
          html`
          <section>
            <table><caption>${answer.recoveries.length ? counted(answer.recoveries.length, "recovery key") : "No recovery key"}</caption>
              <tbody>${answer.recoveries.map(
                (
                  /** @type {Recovery} */ one,
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
      : "From then on secrets are sealed to users, and opened with a passphrase. Make a recovery key then: without one nobody can recover a forgotten passphrase.",
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

/** @typedef {{recovery: string, user: string, shares: number, threshold: number, created: string, used: string | null}} Recovery */

/** Shows the words of a new recovery key, which nobody can show again. @param {any} made */
const showWords = ({ recovery, user, threshold, shares }) =>
  openDialog(
    { title: `Recovery key ${text(recovery)} of ${text(user)}` },
    (close) => html`
    <div class="body">
      <p>${shares.length === 1 ? "Write these words" : `Write each share on a paper of its own; any ${threshold} of ${shares.length} are the key. Write them`} down now:
      they are shown once. Keep them apart from this machine.</p>
      ${shares.map((/** @type {string} */ words, /** @type {number} */ index) => html`<section key=${index}>${shares.length > 1 && html`<h3>Share ${index + 1}</h3>`}<p class="shown"><code>${text(words)}</code></p></section>`)}
    </div>
    <footer><button class="primary" autofocus onClick=${() => close()}>I have written them down</button></footer>
  `,
  );

/** @param {string} user */
async function makeRecovery(user) {
  /** @type {any} */
  let made;
  await form({
    title: `Make a recovery key for ${text(user)}`,
    text: "Several papers in several places protect against a thief of one, and against the loss of one.",
    fields: [
      passphrase,
      { name: "shares", label: "Papers", value: "1", pattern: "[0-9]+", required: true },
      { name: "threshold", label: "Of these are needed", value: "1", pattern: "[0-9]+", required: true },
    ],
    yes: "Make it",
    work: async ({ passphrase, shares, threshold }) => {
      const numbers = { shares: Number(shares), threshold: Number(threshold) };
      made = await call("/vault/recovery/create", { user, passphrase, ...numbers });
    },
  });
  if (made) await showWords(made);
}

/** @param {Recovery} key */
async function rotate({ recovery, user }) {
  /** @type {any} */
  let made;
  await form({
    title: `Replace recovery key ${text(recovery)}`,
    text: "Its words open nothing from then on; others take their place.",
    fields: [{ ...passphrase, label: `Passphrase of ${text(user)}` }],
    yes: "Replace",
    work: async (values) => {
      made = await call("/vault/recovery/rotate", { recovery, passphrase: values.passphrase });
    },
  });
  if (made) await showWords(made);
}

/** @param {Recovery} key */
async function revoke({ recovery, user }) {
  const question = {
    title: `Revoke recovery key ${text(recovery)}?`,
    text: `Its words open nothing from then on. If ${text(user)} then forgets the passphrase, this key is no way back.`,
    yes: "Revoke",
    danger: true,
  };
  if (await confirm(question)) await call("/vault/recovery/revoke", { recovery });
}

/** Sets a new passphrase by the words of a recovery key. */
async function useRecovery() {
  await openDialog(
    { title: "Set a new passphrase by a recovery key" },
    (close) => html`
    <${Form} yes="Set it" cancel=${() => close()} submit=${async (/** @type {HTMLFormElement} */ element) => {
      const values = Object.fromEntries([...new FormData(element)].map(([name, value]) => [name, String(value)]));
      requireSame(values, "newPassphrase");
      const shares = values.shares
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
      const { user } = await call("/vault/recovery/use", { shares, newPassphrase: values.newPassphrase });
      toast(`${text(user)} has a new passphrase. Replace the recovery key: its words are valid still.`);
      close();
    }}>
      <${Labeled} label="Words" hint="Each share on a line of its own, in any order.">${(/** @type {any} */ tied) => html`<textarea ...${tied} name="shares" rows="4" required spellcheck=${false} autocomplete="off"></textarea>`}<//>
      ${[fresh("newPassphrase", "New passphrase"), { ...fresh("again", "The same again"), hint: undefined }].map(
        ({ label, hint, ...field }) =>
          html`<${Labeled} key=${field.name} label=${label} hint=${hint}>${(/** @type {any} */ tied) => html`<input ...${tied} ...${field} />`}<//>`,
      )}
    <//>
  `,
  );
}

register({ name: "Unlock the vault", actions: ["vault.unlock"], run: () => unlockVault() });
register({ name: "Lock the vault", actions: ["vault.lock"], run: lock });

export default { component: Vault };
