// The TypeScript SDK's client: calls the tools that it reads on standard input, a JSON object a line, and prints results.
// Arguments: where the modules are, the server's URL, and a token.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, url, token] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport } = createRequire(`${modules}/`)("@modelcontextprotocol/client");
const headers = { Authorization: `Bearer ${token}` };
const client = new Client({ name: "npm", version: "1" }, { versionNegotiation: { mode: { pin: "2026-07-28" } } });
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
// What was listed has the schemas that results are held against.
await client.listTools();
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await client.callTool(JSON.parse(line))));
}
await client.close();
