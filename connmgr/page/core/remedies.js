// Errors that a person can remedy on the spot: an unknown host key, locked secrets. The request is then sent again.

import { ApiError, call, remedy } from "./api.js";
import { confirm, counted, exact, failed, form, html, openDialog, text, toast, Waiting } from "./ui.js";

/** The ways to the remedies; `main.js` calls this once. */
export function offerRemedies() {
  remedy("host_key_unknown", trust);
  remedy("secret_locked", unlock);
  remedy("vault_locked", unlock);
  remedy("step_up_required", stepUp);
}

/** @param {import("./api.js").ApiError} error @param {string} _ @param {any} data */
async function trust({ details }, _, data) {
  const { host, hostKey, fingerprint } = details;
  const connection = details.connection ?? data.connection;
  if (!host || !hostKey || !connection) return false;
  const isMeant = await confirm({
    title: "Unknown host key",
    text: html`
      <p><strong>${text(host)}</strong> is met for the first time. Compare the fingerprint with the one that its
      administrator gives, or that <code>ssh-keygen -lf</code> prints on the machine:</p>
      <p class="fingerprint"><code>${text(fingerprint ?? hostKey)}</code></p>
      <p class="note">Whoever accepts a wrong key may send a password to a stranger.</p>
    `,
    yes: "Trust this key",
    no: "Do not connect",
  });
  if (isMeant) await call("/hostkey/trust", { connection, host, hostKey });
  return isMeant;
}

/** @param {import("./api.js").ApiError} error */
async function unlock(error) {
  const users = (error.details.principals ?? []).filter((/** @type {string} */ one) => one !== "vault");
  return unlockVault(error.message, users);
}

/** Asks for a user's passphrase, and unlocks. @param {string} [said] @param {string[]} [users] @param {string} [path] */
export async function unlockVault(said, users = [], path = "/vault/unlock") {
  const given = await form({
    title: "Unlock the vault",
    text: said && text(said),
    fields: [
      {
        name: "user",
        label: "User",
        value: users.length === 1 ? users[0] : "",
        required: true,
        hint: users.length > 1 ? `One of ${counted(users.length, "user")}: ${users.map(text).join(", ")}` : undefined,
      },
      { name: "passphrase", label: "Passphrase", type: "password", required: true, autocomplete: "current-password" },
    ],
    yes: "Unlock",
    work: async (values) => {
      const { recoveries = [] } = (await call(path, values, { quiet: true })) ?? {};
      for (const { recovery, used } of recoveries)
        toast(
          `Recovery key ${text(recovery)} set a new passphrase of ${text(values.user)}, ${exact(used)}. Replace it in the vault's view; if that was not you, tell the owner of this machine.`,
          { isFault: true },
        );
    },
  });
  return given !== null;
}

/** Shows again who uses this page, or has somebody approve it, where the owner has set that. @param {ApiError} error */
async function stepUp({ details }) {
  if (details.stepUp === "passphrase") {
    return unlockVault("Show again that it is you, before this page reaches machines.", [], "/web/confirm");
  }
  return openDialog({ title: "Wait for an approval" }, (close) => {
    const ended = new AbortController();
    approved(ended.signal).then(close, (error) => {
      close(false);
      failed(error);
    });
    return html`
      <div class="body"><p>Somebody who may decide approvals lets this page reach machines, for 15 minutes.</p>
        <${Waiting} reason="Waiting for the approval" /></div>
      <footer><button autofocus onClick=${() => {
        ended.abort();
        close(false);
      }}>Cancel</button></footer>
    `;
  });
}

const APPROVAL_SECONDS = 60;

/** @param {AbortSignal} signal */
async function approved(signal) {
  for (;;) {
    try {
      await call("/web/confirm", { wait: APPROVAL_SECONDS }, { signal, quiet: true });
      return true;
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== "approval_required") throw error;
    }
  }
}
