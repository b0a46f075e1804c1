// Tunnels: which ports lead where, what state they are in, and the switch.

import { call } from "../core/api.js";
import { register } from "../core/palette.js";
import { described } from "../core/schema-form.js";
import { can, infoOf, nameOf, refresh, store, useStore } from "../core/store.js";
import { ago, doing, Empty, html, State, text, useAnswer } from "../core/ui.js";
import { addConnection } from "./hub-edit.js";
import { Labels } from "./labels.js";
import { bytes, Facts, Listing } from "./listing.js";

const KINDS = /** @type {Record<string, string>} */ ({ stopped: "off", open: "up", failed: "lost" });

/** Ports of web servers; those at others have the label `web`. */
const WEB = /** @type {Record<number, string>} */ ({ 80: "http", 8080: "http", 443: "https", 8443: "https" });

/** How a browser reaches what a tunnel leads to; empty where that is nothing for a browser. @param {any} info */
const schemeOf = ({ labels = {}, rawData }) =>
  labels.web === undefined ? (WEB[rawData.remotePort] ?? "") : /^https?$/.test(labels.web) ? labels.web : "";

const isWanted = (/** @type {any} */ one) => one.state !== "stopped";
/** The port of a tunnel on this machine, or an empty text. @param {any} one */
const portOf = (one) =>
  one.state === "open" && store.connections.get(one.connection)?.type !== "sshRemoteTunnel"
    ? (/^(?:127\.0\.0\.1|localhost|\[::1\]):\d+$/.exec(one.address ?? "")?.[0] ?? "")
    : "";
const toggle = (/** @type {any} */ one) =>
  doing(async () => {
    await call("/connection/toggle", { connection: one.connection, state: !isWanted(one) });
    await refresh("tunnels");
  });
const add = () => {
  const [type = "sshLocalTunnel"] = [...store.types.values()]
    .filter((one) => one.usageCategory === "tunnel")
    .map((one) => one.type);
  return addConnection("", type);
};

/** @param {{path: string[]}} props */
function Tunnels({ path }) {
  const { tunnels } = useStore();
  const { error, again, answer } = useAnswer(() => refresh("tunnels").then(() => true), []);
  const items = answer
    ? [...tunnels.values()].sort((one, other) => (nameOf(one.connection) < nameOf(other.connection) ? -1 : 1))
    : undefined;
  const add_ = can("connection.add") && html`<button class="primary" onClick=${doing(add)}>Add a tunnel</button>`;
  /** @param {any} one */
  const acts = (one) => html`
    ${can("connection.toggle") && html`<button onClick=${toggle(one)}>${isWanted(one) ? "Close" : "Open"}</button>`}`;
  return html`<${Listing} view="tunnels" title="Tunnels" items=${items} error=${error} again=${again} reading="Reading the tunnels" tools=${items?.length ? add_ : null}
    keyOf=${(/** @type {any} */ one) => one.connection} one=${items?.find((one) => one.connection === path[0])} details=${(/** @type {any} */ one) => html`<${Details} one=${one} acts=${acts} />`}
    columns=${[["State", "7rem"], ["Name", "minmax(0, 1.5fr)"], ["Listens at", "minmax(0, 1fr)"], ["Streams", "5rem"], ["Since", "6rem"]]}
    row=${(/** @type {any} */ one, /** @type {boolean} */ isNarrow) => {
      const state = html`<${State} kind=${KINDS[one.state] ?? "busy"} word=${one.state} />`;
      const name = html`<span>${text(nameOf(one.connection))}</span>`;
      return isNarrow
        ? html`${name}${state}`
        : html`${state}${name}<span class="mono">${text(one.address ?? "")}</span><span class="number">${one.streams || ""}</span><span class="note">${ago(one.since)}</span>`;
    }}
    empty=${html`<${Empty} title="No tunnels yet"><p>A tunnel makes a port here lead to a service that only a machine can reach, such as its database, and reopens when its link breaks.</p><p>${add_}</p><//>`} />`;
}

/** @param {{one: any, acts: (one: any) => any}} props */
function Details({ one, acts }) {
  const info = infoOf(one.connection);
  const scheme = info && schemeOf(info);
  const port = portOf(one);
  const facts = info ? described(info.rawData, store.types.get(info.type)?.schema) : [];
  return html`
    <header><div><h2>${text(nameOf(one.connection))}</h2></div></header>
    <p><${State} kind=${KINDS[one.state] ?? "busy"} word=${one.state} /></p>
    <div class="does">${acts(one)}${port && scheme && html`<a class="button" href=${`${scheme}://${port}/`} target="_blank" rel="noopener noreferrer">Open in a new tab</a>`}</div>
    ${port && scheme === "" && html`<p class="note">Not known as a web server: set the label <code>web=http</code> or <code>web=https</code> if it is one.</p>`}
    ${one.lastError && html`<p class="fault">${text(one.lastError.message)}</p>`}
    <${Facts} facts=${[
      ["Listens at", one.address && html`<code>${text(one.address)}</code>`],
      ["Since", ago(one.since)],
      ...facts.map((fact) => [fact.name, text(fact.said)]),
      ["Labels", html`<${Labels} connection=${one.connection} />`],
      ["Next attempt", one.nextRetry && html`${ago(one.nextRetry)}, after ${one.retries}`],
      ["Dialled by", one.relay && text(one.relay)],
      ["Streams", `${one.streams}${one.waiting ? `, ${one.waiting} wait` : ""}`],
      ["Received", bytes(one.bytesIn)],
      ["Sent", bytes(one.bytesOut)],
    ]} />
    <p class="note"><a href=${`#/hub/${one.connection}`}>In the hub</a></p>
  `;
}

register({ name: "Add a tunnel", actions: ["connection.add"], run: add });

export default { component: Tunnels };
