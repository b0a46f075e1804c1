"""A proxy that shows a token for clients that cannot: what they send passes as it is, but for that and the port."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import closing, suppress
from urllib.parse import urlsplit

HOST = "127.0.0.1"
END_OF_HEAD = b"\r\n\r\n"
BLOCK_BYTES = 1 << 16


class BearingProxy:
    """Listens on a port of its own for the server at ``url``, and shows ``token`` there; a context."""

    def __init__(self, url: str, token: str) -> None:
        self._parts = urlsplit(url)
        self._token = token
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bearing proxy")

    def __enter__(self) -> BearingProxy:
        self._thread.start()
        started = asyncio.start_server(self._serve, HOST, 0)
        self._server = asyncio.run_coroutine_threadsafe(started, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://localhost:{self.port}{self._parts.path}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        # What was accepted just before begins a task of its own in the loop's next turn.
        await asyncio.sleep(0)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        # Cancelled at the end; asyncio would report that as an error of this callback.
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError), closing(to_client):
            head = await client.readuntil(END_OF_HEAD)
            server, to_server = await asyncio.open_connection(self._parts.hostname, self._parts.port)
            with closing(to_server):
                to_server.write(self._shown(head))
                asking = asyncio.create_task(_pass_on(client, to_server))
                try:
                    await _pass_on(server, to_client)
                finally:
                    asking.cancel()

    def _shown(self, head: bytes) -> bytes:
        """Return the head of a request, the only one of its connection, as the server is to see it."""
        own, theirs = str(self.port).encode(), str(self._parts.port).encode()
        lines = head.split(b"\r\n")
        kept = [line for line in lines[1:-2] if not line.lower().startswith(b"connection:")]
        named = [re.sub(rb"(?i)^((?:host|origin):.*):%s$" % own, rb"\1:" + theirs, line) for line in kept]
        added = [b"Connection: close", b"Authorization: Bearer " + self._token.encode()]
        return b"\r\n".join([lines[0], *named, *added]) + END_OF_HEAD


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while block := await source.read(BLOCK_BYTES):
            target.write(block)
            await target.drain()
