// Tunnels: which ports lead where, what state they are in, and the switch.

import { call } from "../core/api.js";
import { address, register } from "../core/navigate.js";
import { infoOf, nameOf, refresh, store, useStore } from "../core/store.js";
import { ago, html, text, useAnswer } from "../core/ui.js";
import { described, Labels } from "./connection.js";
import { bytes, Details, Listing } from "./listing.js";

const KINDS = /** @type {Record<string, string>} */ ({ stopped: "off", open: "up", failed: "lost" });
const stateOf = (/** @type {Tunnel} */ { state }) => ({ kind: KINDS[state] ?? "busy", word: state });

/** Ports of web servers; those at others have the label `web`. */
const WEB = /** @type {Record<number, string>} */ ({ 80: "http", 8080: "http", 443: "https", 8443: "https" });

/** How a browser reaches what a tunnel leads to; empty where that is nothing for a browser. @param {ConnectionInfo} info */
const schemeOf = ({ labels = {}, rawData }) =>
  labels.web === undefined ? (WEB[rawData.remotePort] ?? "") : /^https?$/.test(labels.web) ? labels.web : "";

/** The port of a tunnel on this machine, or an empty text. @param {Tunnel} one */
const portOf = (one) =>
  one.state === "open" && store.connections.get(one.connection)?.type !== "sshRemoteTunnel"
    ? (/^(?:127\.0\.0\.1|localhost|\[::1\]):\d+$/.exec(one.address ?? "")?.[0] ?? "")
    : "";

/** @type {Command} */
const ADD = {
  name: "Add a tunnel",
  actions: ["connection.add"],
  run: async () => {
    const found = [...store.types.values()].find((one) => one.usageCategory === "tunnel");
    const { addConnection } = await import("./hub-edit.js");
    return addConnection("", found?.type);
  },
};
register(ADD);

/** @type {Column<Tunnel>[]} */
const COLUMNS = [
  ["State", "7rem", stateOf],
  ["Name", 1.5, (one) => nameOf(one.connection)],
  ["Listens at", 1, (one) => one.address, "mono"],
  ["Streams", "5rem", (one) => one.streams || "", "number"],
  ["Since", "6rem", (one) => ago(one.since), "note"],
];

/** @param {{path: string[]}} props */
function Tunnels({ path }) {
  const { tunnels } = useStore();
  const { error, again, answer } = useAnswer(() => refresh("tunnels").then(() => "read"), []);
  const items =
    answer && [...tunnels.values()].sort((one, other) => (nameOf(one.connection) < nameOf(other.connection) ? -1 : 1));
  return html`<${Listing} view="tunnels" id="connection" ...${{ path, items, error, again }} columns=${COLUMNS} begin=${ADD}
    details=${(one) => html`<${One} one=${one} />`}
    empty=${["No tunnels yet", "A tunnel makes a port here lead to a service that only a machine can reach, such as its database, and reopens when its link breaks."]} />`;
}

/** @param {{one: Tunnel}} props */
function One({ one }) {
  const { connection } = one;
  const info = infoOf(connection);
  const scheme = info && schemeOf(info);
  const port = portOf(one);
  const isStopped = one.state === "stopped";
  const toggle = async () => {
    await call("/connection/toggle", { connection, state: isStopped });
    await refresh("tunnels");
  };
  return html`<${Details} title=${nameOf(connection)} state=${stateOf(one)} deeds=${[[isStopped ? "Open" : "Close", "connection.toggle", toggle]]}
    links=${port && scheme && html`<a class="button" href=${`${scheme}://${port}/`} target="_blank" rel="noopener noreferrer">Open in a new tab</a>`}
    facts=${[
      ["Listens at", one.address && html`<code>${text(one.address)}</code>`],
      ["Since", ago(one.since)],
      ...(info ? described(info.rawData, store.types.get(info.type)?.schema) : []).map(({ name, said }) => [
        name,
        text(said),
      ]),
      ["Labels", html`<${Labels} connection=${connection} />`],
      ["Next attempt", one.nextRetry && html`${ago(one.nextRetry)}, after ${one.retries}`],
      ["Dialled by", one.relay && text(one.relay)],
      ["Streams", `${one.streams}${one.waiting ? `, ${one.waiting} wait` : ""}`],
      ["Received", bytes(one.bytesIn)],
      ["Sent", bytes(one.bytesOut)],
      ["Connection", html`<a href=${address("hub", connection)}>in the hub</a>`],
    ]}>
    ${port && scheme === "" && html`<p class="note">Not known as a web server: set the label <code>web=http</code> or <code>web=https</code> if it is one.</p>`}
    ${one.lastError && html`<p class="fault">${text(one.lastError.message)}</p>`}
  <//>`;
}

export default { tunnels: { component: Tunnels } };
