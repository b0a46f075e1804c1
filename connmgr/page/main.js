// The page's frame: the door for who has no session, and for others the views that their rights reach.

import { ApiError, call, login, logout, token, whenLeft } from "./core/api.js";
import { listen, onLive } from "./core/events.js";
import { openPalette, register, useKeys } from "./core/palette.js";
import { offerRemedies } from "./core/remedies.js";
import { go, route, useRoute } from "./core/router.js";
import { can, follow, load, store, useStore } from "./core/store.js";
import { doing, Empty, Fault, hooks, html, Icon, render, text } from "./core/ui.js";

const { useEffect, useLayoutEffect, useState } = hooks;

/**
 * A view: `./views/NAME.js` exports one by default. Its component gets the decoded segments of the address behind the
 * view's name, and that rest as it is.
 * @typedef {object} View
 * @property {string} name
 * @property {string} title
 * @property {string} icon the data of an SVG path in a square of 16
 * @property {string[]} actions without one of these it is not shown
 * @property {(props: {path: string[], query: URLSearchParams, address: string}) => any} component
 * @property {() => number} [badge] how many things wait there, in a component
 * @property {boolean} [isHidden] it has an address, and no place in the navigation
 */

/** In the order of the navigation; a key of `g` and the letter goes there. */
const VIEWS = [
  ["hub", "h"],
  ["terminal", "e"],
  ["run", "x"],
  ["runs", "u"],
  ["schedules", "s"],
  ["facts", "m"],
  ["jobs", "j"],
  ["tunnels", "n"],
  ["files", "f"],
  ["approvals", "p"],
  ["recordings", "r"],
  ["changes", "c"],
  ["tokens", "t"],
  ["audit", "a"],
  ["vault", "v"],
];

const MENU = "M2 4h12M2 8h12M2 12h12";
const COMMANDS = "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.3 10.3 14 14";
const THEMES = ["auto", "light", "dark"];
const THEME = "connmgr.theme";

/** All views, whatever the rights. @returns {Promise<View[]>} */
async function imported() {
  const all = await Promise.all(VIEWS.map(([name]) => import(`./views/${name}.js`)));
  return all.map((module) => module.default);
}

/** @param {{views: View[]}} props */
function Frame({ views }) {
  const { view: name, path, query } = useRoute();
  const [isOpen, open] = useState(false);
  useKeys();
  const view = views.find((one) => one.name === name);
  const isKnown = name === "" || VIEWS.some(([one]) => one === name);
  useEffect(() => {
    // This runs after a moment, in which an address may have been typed.
    if (route().view === "" && views.length) go(`#/${views[0].name}`, { replace: true });
  }, [name]);
  useEffect(() => {
    open(false);
    // How many wait for a decision stands before it.
    const waiting = /^\(\d+\) /.exec(document.title)?.[0] ?? "";
    document.title = view
      ? `${waiting}${[...path].reverse().map(text).slice(0, 1).join("")}${path.length ? " · " : ""}${view.title} · connmgr`
      : `${waiting}connmgr`;
  }, [location.hash]);
  const address = location.hash.replace(/^#\/[^/?]*\/?/, "");
  return html`
    <div class=${isOpen ? "shell open" : "shell"}>
      <a class="skip" href="#content" onClick=${(/** @type {Event} */ event) => {
        event.preventDefault();
        document.getElementById("content")?.focus();
      }}>Skip to the content</a>
      <header class="top">
        <button class="quiet" aria-label="Views" aria-expanded=${isOpen} onClick=${() => open(!isOpen)}><${Icon} path=${MENU} /></button>
        <strong>${view?.title ?? "connmgr"}</strong>
        <button class="quiet" aria-label="Commands" onClick=${() => openPalette()}><${Icon} path=${COMMANDS} /></button>
      </header>
      <nav class="side" aria-label="Views">
        <p class="brand">connmgr</p>
        <button class="search" onClick=${() => openPalette()}><${Icon} path=${COMMANDS} /><span>Go to …</span><kbd>Ctrl K</kbd></button>
        <ul>
          ${views
            .filter((one) => !one.isHidden)
            .map(
              (
                one,
              ) => html`<li key=${one.name}><a href=${`#/${one.name}`} aria-current=${one === view ? "page" : undefined}>
                <${Icon} path=${one.icon} /><span>${one.title}</span>${one.badge && html`<${Badge} count=${one.badge} />`}</a></li>`,
            )}
        </ul>
        <${Self} />
      </nav>
      ${isOpen && html`<div class="veil" onClick=${() => open(false)}></div>`}
      <main id="content" tabindex="-1">
        ${
          view
            ? html`<${Guarded} key=${view.name} component=${view.component} path=${path} query=${query} address=${address} />`
            : name !== "" &&
              html`<${Empty} title=${isKnown ? "This session may not see that." : "There is no such view."}><p><a href="#/">Back to the first view</a></p><//>`
        }
        ${!views.length && html`<${Empty} title="This token has no rights that the page could use."><p>Whoever created it can give it scopes.</p><//>`}
      </main>
    </div>
  `;
}

/** A view; what it throws is said in its place, and the rest of the page goes on. @param {any} props */
function Guarded({ component, ...props }) {
  const [error, reset] = hooks.useErrorBoundary((/** @type {unknown} */ thrown) => console.error(thrown));
  return error
    ? html`<${Fault} error=${error instanceof Error ? error : new Error(String(error))} again=${reset} />`
    : html`<${component} ...${props} />`;
}

/** @param {{count: () => number}} props */
function Badge({ count }) {
  const waiting = count();
  return waiting > 0 && html`<b class="badge" aria-label=${`${waiting} wait`}>${waiting}</b>`;
}

/** Who this is, and what the page does about light, the stream and the end. */
function Self() {
  const { me } = useStore();
  const [isLive, setLive] = useState(true);
  const [theme, setTheme] = useState(localStorage.getItem(THEME) ?? "auto");
  const streams = can("event.stream");
  useLayoutEffect(() => (streams ? onLive(setLive) : undefined), []);
  const turn = () => {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem(THEME, next);
    setTheme(next);
    useTheme();
  };
  return html`
    <div class="self">
      ${streams && !isLive && html`<p class="state busy" role="status"><i aria-hidden="true"></i>Connecting …</p>`}
      <p class="who" title=${me.id ? `Token ${me.id}` : ""}>${me.id ? text(me.name) : "Owner"}</p>
      <p>
        <button class="quiet" onClick=${turn} aria-label=${`Colours: ${theme}`}>${theme === "auto" ? "Auto" : theme === "light" ? "Light" : "Dark"}</button>
        <button class="quiet" onClick=${doing(logout)}>Log out</button>
        <a href="/docs">API</a>
      </p>
    </div>
  `;
}

function useTheme() {
  const theme = localStorage.getItem(THEME);
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

/** The door: why there is no session, and how to get one. @param {{error?: Error | null, isLeft?: boolean}} props */
const Door = ({ error, isLeft }) => html`
  <main class="door">
    <h1>connmgr</h1>
    ${error && html`<${Fault} error=${error} />`}
    <p>${isLeft && !error ? "You are logged out. To come back, run" : "To log in, run"} this on the daemon's machine:</p>
    <pre><code>connmgr web</code></pre>
    <p class="note">It opens this page with a ticket that is valid once, for 60 seconds. With <code>--print</code> it prints the
    address, for a browser at the other end of an SSH tunnel; with <code>--token-file</code> the page has that token's rights.</p>
  </main>
`;

async function main() {
  const place = /** @type {HTMLElement} */ (document.getElementById("page"));
  /** @type {(() => void)[]} */
  let ends = [];
  const door = (/** @type {any} */ props) => {
    for (const end of ends.splice(0)) end();
    for (const dialog of document.querySelectorAll("dialog")) dialog.close();
    // The frame of index.html, which no component has made.
    place.querySelector(":scope > .shell > div.side")?.closest(".shell")?.remove();
    render(html`<${Door} ...${props} />`, place);
  };
  useTheme();
  offerRemedies();
  whenLeft((error) => door({ error, isLeft: true }));
  // A ticket that is pasted into a tab which is open already.
  addEventListener("hashchange", () => location.hash.startsWith("#login=") && location.reload());
  // They load while the daemon is asked; who stays at the door has them for later.
  const views = imported();
  try {
    if (!(await login())) return door({});
    store.me = await call("/token/info", {}, { quiet: true });
    const shown = (await views).filter((view) => can(...view.actions));
    for (const [view, key] of VIEWS) {
      const found = shown.find((one) => one.name === view);
      if (found) register({ name: `Go to ${found.title.toLowerCase()}`, key: `g ${key}`, run: () => go(`#/${view}`) });
    }
    register({ name: "Log out", run: logout });
    ends = [follow()];
    // The stream first: what changes while the lists are read is told, too.
    if (can("event.stream")) {
      const { begun, end } = listen();
      ends.push(end);
      await begun;
      // It may have ended with the session; the door is there then.
      if (token() === null) return;
    }
    place.replaceChildren();
    render(html`<${Frame} views=${shown} />`, place);
    await load();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    door({ error });
  }
}

main();
