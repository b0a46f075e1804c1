// Errors that a person can remedy on the spot: an unknown host key, locked secrets. The request is then sent again.

import { ApiError, call } from "./api.js";
import { form } from "./forms.js";
import { confirm, counted, exact, failed, html, openDialog, text, toast, Waiting } from "./ui.js";

/** Asks a person about an error of a request; resolves to whether the request can be sent again. @param {ApiError} error @param {any} data */
export function isRemedied(error, data) {
  if (error.code === "host_key_unknown") return trust(error, data);
  return error.code === "step_up_required" ? stepUp(error) : unlock(error);
}

/** @param {ApiError} error @param {any} data */
async function trust({ details }, data) {
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

/** @param {ApiError} error */
async function unlock(error) {
  const users = (error.details.principals ?? []).filter((/** @type {string} */ one) => one !== "vault");
  return unlockVault(error.message, users);
}

/** @param {string} [said] @param {string[]} [users] @param {string} [path] */
export async function unlockVault(said, users = [], path = "/vault/unlock") {
  const given = await form({
    title: "Unlock the vault",
    text: said && text(said),
    value: users.length === 1 ? { user: users[0] } : {},
    properties: {
      user: {
        description: users.length > 1 && `One of ${counted(users.length, "user")}: ${users.map(text).join(", ")}`,
      },
      passphrase: { format: "password", autocomplete: "current-password" },
    },
    yes: "Unlock",
    work: async (values) => {
      const { recoveries = [] } = await call(path, values, { quiet: true });
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
