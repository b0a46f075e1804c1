// Errors that a person can remedy on the spot: an unknown host key, locked secrets. The request is then sent again.

import { call, remedy } from "./api.js";
import { confirm, counted, form, html, text } from "./ui.js";

/** The ways to the remedies; `main.js` calls this once. */
export function offerRemedies() {
  remedy("host_key_unknown", trust);
  remedy("secret_locked", unlock);
  remedy("vault_locked", unlock);
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

/** Asks for a user's passphrase, and unlocks. @param {string} [said] @param {string[]} [users] */
export async function unlockVault(said, users = []) {
  const given = await form({
    title: "Unlock the vault",
    text: said && text(said),
    fields: [
      { name: "user", label: "User", value: users.length === 1 ? users[0] : "", required: true, hint: users.length > 1 ? `One of ${counted(users.length, "user")}: ${users.map(text).join(", ")}` : undefined },
      { name: "passphrase", label: "Passphrase", type: "password", required: true, autocomplete: "current-password" },
    ],
    yes: "Unlock",
    work: (values) => call("/vault/unlock", values, { quiet: true }),
  });
  return given !== null;
}
