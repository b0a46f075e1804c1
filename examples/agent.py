#!/usr/bin/env python3
"""An agent without a model: it finds the machine whose service is down, repairs its unit file, and starts it again.

    agent.py UNIT [OPTION OF connmgr mcp]...

It uses only the tools of `connmgr mcp`, with the token in CONNMGR_TOKEN. It asks on the terminal for approvals that
a rule of the token requires. It needs connmgr[mcp].
"""

import asyncio
import json
import os
import sys

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ElicitResult

UNITS = "/etc/systemd/system"


async def main(unit, options):
    server = StdioServerParameters(command="connmgr", args=["mcp", *options], env=dict(os.environ))
    async with Client(server, elicitation_callback=ask) as client:
        agent = Agent(client)
        systems = [one["name"] for one in (await agent.call("list_systems"))["systems"]]
        print("systems:", *systems)
        states = {system: await agent.run(system, "systemctl", "is-active", unit) for system in systems}
        down = [system for system in systems if states[system]["exitCode"] != 0]
        running = [system for system in systems if system not in down]
        print("down:", *down)
        for system in down:
            await repair(agent, system, running[0], unit)


async def repair(agent, system, model, unit):
    file = f"{UNITS}/{unit}"
    broken = (await agent.call("read_file", system=system, path=file))["content"].splitlines()
    sound = (await agent.call("read_file", system=model, path=file))["content"].splitlines()
    [old], [new] = sorted(set(broken) - set(sound)), sorted(set(sound) - set(broken))
    print(f"{file} has {old!r}, and has {new!r} on {model}")
    await agent.call("edit_file", system=system, path=file, old=old, new=new)
    await agent.run(system, "systemctl", "restart", unit)
    print((await agent.run(system, "journalctl", "-u", unit, "-n", "2"))["stdout"], end="")


class Agent:
    """Calls tools; the error of a tool ends the program."""

    def __init__(self, client):
        self._client = client

    async def call(self, tool, **arguments):
        result = await self._client.call_tool(tool, arguments)
        if result.is_error:
            error = json.loads(result.content[0].text)
            sys.exit(f"{tool}: {error['message']} {error.get('next', '')}")
        return result.structured_content

    async def run(self, system, *argv):
        return await self.call("run_command", system=system, argv=argv)


async def ask(_, question):
    print(question.message)
    if not question.requested_schema["properties"]:
        return ElicitResult(action="accept", content={})
    answer = await asyncio.to_thread(input, "once, for an hour, deny? ")
    return ElicitResult(action="accept", content={"decision": answer})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
