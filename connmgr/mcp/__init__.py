"""The MCP server: what a token allows, as tools for an agent. It is a client of the daemon."""
