import { html, render } from "./vendor/htm-preact.js";

const TOKEN = "connmgr.token";

/** @param {string} path @param {object} body */
async function call(path, body) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const text = await response.text();
  const answer = text ? JSON.parse(text) : {};
  if (!response.ok) throw new Error((answer.error ?? answer).message);
  return answer;
}

async function main() {
  const place = /** @type {HTMLElement} */ (document.getElementById("page"));
  const ticket = new URLSearchParams(location.hash.slice(1)).get("login");
  if (ticket) {
    // Before anything else: a reload must not send a used ticket, nor history keep it.
    history.replaceState(null, "", "/");
    sessionStorage.setItem(TOKEN, (await call("/web/login", { ticket })).sessionToken);
  }
  if (!sessionStorage.getItem(TOKEN)) {
    render(html`<p>Not logged in. Run <code>connmgr web</code> in a terminal.</p>`, place);
    return;
  }
  const version = await call("/daemon/version", {});
  render(html`<p>Logged in to connmgr ${version.buildVersion}.</p>`, place);
}

main().catch((error) => {
  const place = /** @type {HTMLElement} */ (document.getElementById("page"));
  render(html`<p role="alert">${error.message} Run <code>connmgr web</code> in a terminal.</p>`, place);
});
