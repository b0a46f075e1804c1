"""The MCP server: tools for an agent, as far as its token allows. It is a client of the daemon."""
