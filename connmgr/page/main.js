// The page's frame: the door for who has no session, and for others the views that their rights reach.

import { ApiError, call, listen, login, logout, on, onLive, token, whenLeft } from "./core/api.js";
import { go, openPalette, register, route, useKeys, useRoute } from "./core/navigate.js";
import { can, changed, follow, load, nameOf, store, useStore } from "./core/store.js";
import {
  doing,
  Empty,
  Fault,
  failed,
  html,
  Icon,
  render,
  settle,
  text,
  toast,
  undoLast,
  useEffect,
  useErrorBoundary,
  useLayoutEffect,
  useState,
  Waiting,
} from "./core/ui.js";

/**
 * The views, in the order of the navigation: the machines, what runs on them, and who may. Each has its name, after
 * that of its module in `./views` where this has another; the letter behind `g` that goes there;
 * the actions without which it is not shown; and the data of its icon, an SVG path in a square of 16.
 *
 * A module exports its views by name: the component, which gets the decoded segments of the address behind the view's
 * name, and its query; and with `badge` a hook that says how many things wait there.
 */
const VIEWS = [
  ["hub", "h", "connection.query", "M2 3h12v4H2zM2 9h12v4H2zM4.5 5h.01M4.5 11h.01"],
  ["terminal", "e", "terminal.open terminal.attach", "M2 3h12v10H2zM4.5 6l2 2-2 2M8 10.5h3.5"],
  ["files", "f", "fs.list shell.start", "M2 12.5v-9h4.5L8 5h6v7.5z"],
  [
    "terminal/recordings",
    "r",
    "recording.query recording.read",
    "M8 2.2a5.8 5.8 0 1 0 0 11.6A5.8 5.8 0 0 0 8 2.2M6.7 5.6v4.8L10.6 8z",
  ],
  ["runs/run", "x", "shell.broadcast run.query connection.query", "M4 2.5v11l9-5.5z"],
  [
    "runs",
    "u",
    "run.query run.info run.targets",
    "M2 2.5h3v3H2zM6.5 2.5h3v3h-3zM11 2.5h3v3h-3zM2 7h3v3H2zM6.5 7h3v3h-3zM11 7h3v3h-3zM2 11.5h3v3H2zM6.5 11.5h3v3h-3z",
  ],
  ["runs/schedules", "s", "schedule.query schedule.next", "M2.5 3.5h11v10h-11zM2.5 6.5h11M5.5 2v3M10.5 2v3"],
  ["work/jobs", "j", "job.query job.output", "M2 4h1M2 8h1M2 12h1M5.5 4H14M5.5 8H14M5.5 12H11"],
  ["work/tunnels", "n", "tunnel.query", "M1.5 12V9a6.5 6.5 0 0 1 13 0v3M5 12V9a3 3 0 0 1 6 0v3M1 12.5h5M10 12.5h5"],
  ["machines/inventories", "i", "inventory.query", "M2 4h8M2 8h5M2 12h5M10.5 7.5v5M8 10l2.5 2.5L13 10"],
  ["machines/facts", "m", "fact.query connection.query", "M2.5 2.5h11v11h-11zM2.5 6h11M2.5 9.7h11M6.3 2.5v11"],
  [
    "rights/approvals",
    "p",
    "approval.query",
    "M8 1.8 13 4v4c0 3-2.2 5.2-5 6.2C5.2 13.2 3 11 3 8V4zM5.6 8l1.7 1.7 3.2-3.4",
  ],
  ["history/changes", "c", "undo.query", "M3 5h7a3.5 3.5 0 0 1 0 7H6M6 2 3 5l3 3"],
  ["history/record", "d", "audit.record", "M3 2v12M3 4h3M3 8h3M3 12h3M8.5 4H14M8.5 8H14M8.5 12H12"],
  ["rights/tokens", "t", "token.query", "M10.5 2a3.5 3.5 0 1 1-3 5.2L2 12.7V14h2v-1.5h1.5V11H7l1.7-1.7M11 5h.01"],
  ["history/audit", "a", "audit.query", "M3 2h10v12H3zM5.5 5h5M5.5 8h5M5.5 11h3"],
  ["rights/vault", "v", "vault.status vault.unlock", "M4 7V5a4 4 0 0 1 8 0v2M3 7h10v6.5H3zM8 9.5v2"],
].map(([place, key, actions, icon]) => {
  const [name, module = name] = place.split("/").reverse();
  const title = name === "terminal" ? "Terminals" : name[0].toUpperCase() + name.slice(1);
  return { name, module, key, icon, title, actions: actions.split(" ") };
});
const FIRST = ["run", "approvals"];

/** @type {Map<string, View>} */
const loaded = new Map();

/** @param {(typeof VIEWS)[number]} view */
async function bring({ name, module }) {
  if (!loaded.has(name)) {
    const found = (await import(`./views/${module}.js`)).default;
    for (const [name, view] of Object.entries(found)) loaded.set(name, view);
  }
  changed();
}

const MENU = "M2 4h12M2 8h12M2 12h12";
const COMMANDS = "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.3 10.3 14 14";
const THEMES = ["auto", "light", "dark"];
const THEME = "connmgr.theme";

/** @param {{views: typeof VIEWS}} props */
function Frame({ views }) {
  const { view: name, path, query } = useRoute();
  const [isOpen, open] = useState(false);
  const [fault, tell] = useState(/** @type {Error | null} */ (null));
  useStore();
  useKeys();
  const view = views.find((one) => one.name === name);
  const isKnown = name === "" || VIEWS.some((one) => one.name === name);
  const shown = view && loaded.get(name);
  const get = () => {
    tell(null);
    if (view) bring(view).catch(tell);
  };
  useEffect(get, [view]);
  useEffect(() => {
    // This runs after a moment, in which an address may have been typed.
    if (route().view === "" && views.length) go(`#/${views[0].name}`, { replace: true });
  }, [name]);
  useEffect(() => open(false), [location.hash]);
  // A connection by its name; what has none but a number says no more than its view does.
  const thing = nameOf(path.at(-1)).replace(/^[\da-f]{8}-[\da-f-]{27}$/, "");
  useEffect(() => {
    // How many wait for a decision stands before it.
    const waiting = /^\(\d+\) /.exec(document.title)?.[0] ?? "";
    document.title = waiting + [text(thing), view?.title, "connmgr"].filter(Boolean).join(" · ");
  }, [location.hash, thing]);
  return html`
    <div class=${isOpen ? "shell open" : "shell"}>
      <a class="skip" href="#content" onClick=${(event) => {
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
          ${views.map((one) => {
            const badge = loaded.get(one.name)?.badge;
            return html`<li key=${one.name} class=${FIRST.includes(one.name) ? "first" : ""}><a href=${`#/${one.name}`} aria-current=${one === view ? "page" : undefined}>
              <${Icon} path=${one.icon} /><span>${one.title}</span>${badge && html`<${Badge} count=${badge} />`}</a></li>`;
          })}
        </ul>
        <${Self} />
      </nav>
      ${isOpen && html`<div class="veil" onClick=${() => open(false)}></div>`}
      <main id="content" tabindex="-1">
        <${Link} />
        ${
          shown
            ? html`<${Guarded} key=${name} component=${shown.component} path=${path} query=${query} />`
            : view
              ? fault
                ? html`<${Fault} error=${fault} again=${get} />`
                : html`<${Waiting} reason="Loading the view" />`
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
  const [error, reset] = useErrorBoundary((thrown) => console.error(thrown));
  return error
    ? html`<${Fault} error=${error instanceof Error ? error : new Error(String(error))} again=${reset} />`
    : html`<${component} ...${props} />`;
}

/** @param {{count: () => number}} props */
function Badge({ count }) {
  const waiting = count();
  return waiting > 0 && html`<b class="badge" aria-label=${`${waiting} wait`}>${waiting}</b>`;
}

/** Says above each view that it may be out of date, while no change is told. */
function Link() {
  const [isLive, setLive] = useState(true);
  useLayoutEffect(() => (can("event.stream") ? onLive(setLive) : undefined), []);
  return (
    !isLive &&
    html`<p class="how" role="status"><span class="state busy"><i aria-hidden="true"></i>Connecting …</span> The daemon does not answer: what is shown may be out of date.</p>`
  );
}

/** Who this is, and what the page does about light and the end. */
function Self() {
  const { me } = useStore();
  const [theme, setTheme] = useState(localStorage.getItem(THEME) ?? "auto");
  // Only who sits here can do it, and the login waits for a few seconds.
  useLayoutEffect(
    () =>
      on("link", ({ change, connection }) => {
        if (change === "touch")
          toast(`Touch your security key: the login to ${text(nameOf(connection))} waits for it.`);
      }),
    [],
  );
  const turn = () => {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem(THEME, next);
    setTheme(next);
    useTheme();
  };
  return html`
    <div class="self">
      <p class="who" title=${me.id ? `Token ${me.id}` : ""}>${me.id ? text(me.name) : "Owner"}</p>
      <p>
        <button class="quiet" onClick=${turn} aria-label=${`Colours: ${theme}`}>${theme === "auto" ? "Auto" : theme === "light" ? "Light" : "Dark"}</button>
        <button class="quiet" onClick=${doing(leave)}>Log out</button>
        <a href="/docs">API</a>
      </p>
    </div>
  `;
}

/** What is still to be done needs the session. */
const leave = () => settle().then(logout);

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
    settle();
    for (const dialog of document.querySelectorAll("dialog")) dialog.close();
    // The frame of index.html, which no component has made.
    place.querySelector(":scope > .shell > div.side")?.closest(".shell")?.remove();
    render(html`<${Door} ...${props} />`, place);
  };
  useTheme();
  whenLeft((error) => door({ error, isLeft: true }));
  // A ticket that is pasted into a tab which is open already.
  addEventListener("hashchange", () => location.hash.startsWith("#login=") && location.reload());
  // It loads while the daemon is asked; who stays at the door has it for later.
  const wanted = VIEWS.find((one) => one.name === route().view) ?? VIEWS[0];
  const first = bring(wanted);
  try {
    if (!(await login())) return door({});
    store.me = await call("/token/info", {}, { quiet: true });
    const views = VIEWS.filter((view) => can(...view.actions));
    for (const { name, key, title } of views)
      register({ name: `Go to ${title.toLowerCase()}`, key: `g ${key}`, run: () => go(`#/${name}`) });
    register({ name: "Undo", hint: "what the last notice says", key: "z", run: undoLast });
    register({ name: "Log out", run: leave });
    ends = [follow()];
    // The stream first: what changes while the lists are read is told, too.
    if (can("event.stream")) {
      const { begun, end } = listen();
      ends.push(end);
      await begun;
      // It may have ended with the session; the door is there then.
      if (token() === null) return;
    }
    await first;
    place.replaceChildren();
    render(html`<${Frame} views=${views} />`, place);
    await load();
    // Their commands are on the palette, and the next view is there at once.
    await Promise.all([...views.map(bring), import("./core/palette.js"), import("./views/connection.js")]).catch(
      failed,
    );
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    door({ error });
  }
}

main();
