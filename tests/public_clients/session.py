"""A program that calls every method of a public client's classes once, and prints the outcomes as JSON.

``session.py MODULE CLASS…``; connmgr's address is in ``CONNMGR_TEST_URL``.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import io
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.api.wire import LOCAL, ROOT_CATEGORY

TEXT = "größer\n".encode()


class Session:
    """Calls the methods of ``client``, and records each result or error under the method's name."""

    def __init__(self, client: Any, directory: Path) -> None:
        self.client = client
        self.directory = directory
        self.results: dict[str, Any] = {}
        self.noun = "store" if hasattr(client, "store_query") else "connection"

    async def call(self, name: str, *arguments: Any, label: str = "", **named: Any) -> Any:
        key = f"{name} {label}".strip()
        try:
            result = getattr(self.client, name)(*arguments, **named)
            result = await result if inspect.isawaitable(result) else result
        except Exception as error:  # noqa: BLE001 - it is the result
            self.results[key] = {"error": type(error).__name__, "message": str(error)}
            return None
        self.results[key] = result.decode() if isinstance(result, bytes) else result
        return result

    async def noun_call(self, verb: str, *arguments: Any, label: str = "", **named: Any) -> Any:
        return await self.call(f"{self.noun}_{verb}", *arguments, label=label, **named)

    async def run(self) -> None:
        await self.call("renew_session")
        await self.call("daemon_version")
        await self.stored()
        if hasattr(self.client, "category_add"):
            await self.categories()
        await self.shell()
        await self.files()
        if hasattr(self.client, "secret_encrypt"):
            await self.secrets()
        await self.service()
        await self.elsewhere()

    async def stored(self) -> None:
        data = {"type": "shellEnvironment", "host": {"storeId": LOCAL}, "elevated": False}
        added = await self.noun_call("add", "public client", data)
        await self.noun_call("add", "public client", data, label="again")
        await self.noun_call("add", "refused", {"type": "local", "shell": "/nowhere"}, validate=True, label="refused")
        await self.noun_call("query")
        await self.noun_call("query", "*", "local*", "local", label="filtered")
        await self.noun_call("info", LOCAL)
        await self.noun_call("info", [LOCAL, added], label="two")
        await self.noun_call("info", "00000000-0000-4000-8000-000000000000", label="unknown")
        await self.call(f"get_{self.noun}s", "*", "local*", "*")
        await self.noun_call("refresh", LOCAL)
        await self.noun_call("remove", [added])
        await self.noun_call("query", "*", "**public client", "*", label="removed")

    async def categories(self) -> None:
        added = await self.call("category_add", "public clients", ROOT_CATEGORY)
        await self.call("category_query", "*/public clients")
        await self.call("category_info", added)
        await self.call("category_remove", added, True, False)
        await self.call("category_query", "*/public clients", label="removed")

    async def shell(self) -> None:
        await self.call("shell_start", LOCAL)
        await self.call("shell_exec", LOCAL, "printf out; printf err >&2; exit 3")
        await self.call("shell_stop", LOCAL)
        await self.call("shell_exec", LOCAL, "true", label="stopped")

    async def files(self) -> None:
        await self.call("shell_start", LOCAL, label="for files")
        target = str(self.directory / "written")
        await self.call("fs_write", LOCAL, await self.call("fs_blob", TEXT), target)
        await self.call("fs_read", LOCAL, target)
        await self.call("fs_blob", TEXT.decode(), label="of text")
        # An async client's type says that it takes no file.
        if not inspect.iscoroutinefunction(self.client.fs_blob):
            blob = await self.call("fs_blob", io.BytesIO(TEXT), label="of a file")
            await self.call("fs_write", LOCAL, blob, target, label="of a file")
            await self.call("fs_read", LOCAL, target, label="of a file")
        script = await self.call(
            "fs_script", LOCAL, await self.call("fs_blob", "#!/bin/sh\necho ran\n", label="script")
        )
        await self.call("shell_exec", LOCAL, str(script), label="script")
        await self.call("fs_read", LOCAL, target + ".missing", label="missing")
        await self.call("shell_stop", LOCAL, label="for files")

    async def secrets(self) -> None:
        for name in ("secret_encrypt_default", "secret_encrypt"):
            if hasattr(self.client, name):
                several = "principals" in inspect.signature(getattr(self.client, name)).parameters
                encrypted = await self.call(name, "correct horse", *([["vault"]] if several else []))
                await self.call("secret_decrypt", encrypted, label=name)

    async def service(self) -> None:
        """A service of the local machine, which some clients can toggle."""
        data = {"type": "customService", "remotePort": 65535, "localPort": 65535, "host": {"storeId": LOCAL}}
        added = await self.noun_call("add", "a service", data, label="service")
        await self.noun_call("query", "*", "services/a service", "*", label="service")
        if hasattr(self.client, f"{self.noun}_toggle"):
            for state in (True, False):
                await self.noun_call("toggle", added, state, label=f"to {state}")
                await self.noun_call("info", added, label=f"toggled to {state}")
            await self.noun_call("toggle", LOCAL, True, label="of a machine")
        await self.noun_call("remove", added, label="service")
        await self.noun_call("query", "*", "services/a service", "*", label="removed service")

    async def elsewhere(self) -> None:
        """Methods that need a desktop program."""
        if hasattr(self.client, "action"):
            await self.call("action", {"id": "toggle"}, False)
        for name in ("browse", "terminal"):
            if hasattr(self.client, f"{self.noun}_{name}"):
                await self.noun_call(name, LOCAL)
                await self.noun_call(name, "ffffffff-ffff-ffff-ffff-ffffffffffff", label="unknown")
        await self.call("get", f"{self.client.base_url}/daemon/version")
        await self.call("post", f"{self.client.base_url}/daemon/version", json={})


def methods(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind, inspect.isroutine) if not name.startswith("_")]


async def outcome(clients: types.ModuleType, kind: str) -> dict[str, Any]:
    # Without a token, the client looks for the auth file.
    make: Callable[..., Any] = getattr(clients, kind)
    session = Session(make(base_url=os.environ["CONNMGR_TEST_URL"]), Path.cwd())
    await session.run()
    results = session.results
    if kind == "AsyncClient":
        renewed = getattr(clients, kind).from_sync_client(clients.Client(base_url=os.environ["CONNMGR_TEST_URL"]))
        results["from_sync_client"] = (await renewed.daemon_version())["version"]
    return {"methods": methods(getattr(clients, kind)), "results": results}


async def main(module: str, *kinds: str) -> None:
    clients = importlib.import_module(module)
    json.dump({kind: await outcome(clients, kind) for kind in kinds}, sys.stdout)


asyncio.run(main(*sys.argv[1:]))
