// A host of MCP Apps by its own SDK: calls show_approval, and speaks with the app that shows the answer.
// Arguments: where the modules are, the server's URL, a token, and an approval. Prints a JSON object a line: first the
// app's document; then each message for the app, and each address that it wants opened. Reads the app's messages.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [modules, url, token, approval] = process.argv.slice(2);
const scope = `${modules}/@modelcontextprotocol`;
const { Client, StreamableHTTPClientTransport } = await import(pathToFileURL(`${scope}/client/dist/index.mjs`));
const { AppBridge, getToolUiResourceUri } = await import(pathToFileURL(`${scope}/ext-apps/dist/src/app-bridge.js`));

const MIME = "text/html;profile=mcp-app";
const print = (message) => console.log(JSON.stringify(message));
const headers = { Authorization: `Bearer ${token}` };
const capabilities = { extensions: { "io.modelcontextprotocol/ui": { mimeTypes: [MIME] } } };
// As in a conversation: without sessions, all requests with a token are one agent's.
const versionNegotiation = { mode: { pin: "2026-07-28" } };
const client = new Client({ name: "host", version: "1" }, { capabilities, versionNegotiation });
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const { tools } = await client.listTools();
const uri = getToolUiResourceUri(tools.find((tool) => tool.name === "show_approval"));
const { contents } = await client.readResource({ uri });
const args = { approval };
const result = await client.callTool({ name: "show_approval", arguments: args });
const extensions = client.getServerCapabilities().extensions;
print({ uri, document: contents[0], extensions });

const bridge = new AppBridge(client, { name: "host", version: "1" }, { openLinks: {}, serverTools: {} });
bridge.onopenlink = async (params) => {
  print({ opened: params.url });
  return {};
};
bridge.oninitialized = async () => {
  await bridge.sendToolInput({ arguments: args });
  await bridge.sendToolResult(result);
};
const transport = {
  start: async () => {},
  send: async (message) => print({ message }),
  close: async () => {},
};
await bridge.connect(transport);
for await (const line of createInterface({ input: process.stdin })) transport.onmessage(JSON.parse(line));
await client.close();
