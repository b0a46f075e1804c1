"""What is known about a machine, asked of the machine: programs that run there in a link's helper, and their answers.

Each program prints lines ``NAME=VALUE``. It has :data:`MAX_BYTES` and a time for all of them, and is cut at either. A
host names no facts but its own: those of the system have known first words, those of a plugin the plugin's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from connmgr.cancellation import NEVER, Cancellation
from connmgr.contract.common import DOTLESS_FACTS, PACKAGE_FACTS, SYSTEM_FACTS
from connmgr.engine.rpc import EXCHANGE, Exchange, Helpers, RemoteProgram
from connmgr.engine.script import Source
from connmgr.errors import ConnmgrError, FactsFailed, InvalidRequest, TransferFailed
from connmgr.links.channels import lease_live_link
from connmgr.links.table import LinkTable
from connmgr.plugin import Deadline, FactProgram, Transport
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.facts import Value
from connmgr.vault.names import elevation_of
from connmgr.vault.schema import canonical

SYSTEM = "system"
MAX_BYTES = 1 << 20
MAX_LINES = 20_000
LONGEST_NAME = 128
LONGEST_VALUE = 255
"""Longer values are cut."""

_BEGIN = Source(__package__, "begin")


def _program(name: str) -> RemoteProgram:
    return RemoteProgram(f"facts_{name}", (EXCHANGE,), (_BEGIN, Source(__package__, name)))


_SYSTEM, _PACKAGES, _OF_PLUGIN = _program("system"), _program("packages"), _program("program")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+:/@-]*\Z", re.ASCII)
_NUMBER = re.compile(r"([0-9]{1,18})(K?)\Z", re.ASCII)
_PREFIX = re.compile(r"[a-z][a-z0-9_-]{0,30}\Z")
_NUMBERS = ("cpu", "memory", "swap", "disk", "uptime")
"""The first words of the facts that are whole numbers; a K behind one stands for 1,024."""

_SYSTEM_NAMES = {
    *DOTLESS_FACTS,
    *("os.type", "os.id", "os.version", "os.name", "host.name", "cpu.count", "memory.total", "memory.available"),
    *("swap.total", "swap.free", "disk.total", "disk.free"),
}


@dataclass(frozen=True)
class Gathered:
    """The outcome on one connection: how many facts are stored by now, or why there are none."""

    connection: str
    facts: int = 0
    error: ConnmgrError | None = None


class Part(NamedTuple):
    """Facts that are gathered and stored together, and the call that prints them."""

    name: str
    program: RemoteProgram
    arguments: tuple[str, ...] = ()


OWN_PARTS = {SYSTEM: Part(SYSTEM, _SYSTEM), PACKAGE_FACTS: Part(PACKAGE_FACTS, _PACKAGES)}


def part_of_plugin(program: FactProgram) -> Part:
    """Return what a plugin gathers."""
    return Part(program.prefix, _OF_PLUGIN, (program.script,))


class Gatherer:
    """Gathers facts about many machines at once, and stores them; safe to use from several threads."""

    def __init__(self, vault: Vault, links: LinkTable, programs: Callable[[], Sequence[Sequence[FactProgram]]]) -> None:
        self._vault = vault
        self._links = links
        self._programs = programs

    def parts(self) -> dict[str, Part]:
        """Return everything that can be gathered, by its name.

        :raises InvalidRequest: a plugin's program has an unusable prefix.
        """
        parts = dict(OWN_PARTS)
        for program in (program for some in self._programs() for program in some or ()):
            if not _PREFIX.match(program.prefix) or program.prefix in {*parts, *SYSTEM_FACTS}:
                raise InvalidRequest(
                    f"A plugin offers facts below {program.prefix!r}, which others use already or which is not 1 to 31 "
                    "of the characters a-z 0-9 _ -: remove or correct the plugin."
                )
            parts[program.prefix] = part_of_plugin(program)
        return parts

    def gather(
        self,
        connections: Sequence[str],
        names: Collection[str] | None,
        access: Access,
        *,
        parallel: int,
        timeout: float,
        cancellation: Cancellation = NEVER,
    ) -> Iterator[Gathered]:
        """Yield the outcome on each of ``connections`` as it comes; each may take ``timeout`` seconds.

        ``names`` are those of the parts to gather; None means all. Parts that were not gathered stay as they are.
        :raises InvalidRequest: there is no such part.
        :raises CommandCancelled: ``cancellation`` was; what runs on the machines is ended.
        """
        parts = self.chosen(names)
        within = Cancellation()
        with cancellation.waking(within.cancel):
            pool = ThreadPoolExecutor(parallel, "facts")
            try:
                work = partial(self.one, parts=parts, access=access, timeout=timeout, cancellation=within)
                running: list[Future[Gathered]] = [pool.submit(work, id) for id in connections]
                for ended in as_completed(running):
                    cancellation.require()
                    yield ended.result()
            # Also when the caller stops to read: programs that run on the machines are ended, and the rest never
            # begins.
            finally:
                within.cancel()
                pool.shutdown(cancel_futures=True)

    def chosen(self, names: Collection[str] | None, field: str = "parts") -> list[Part]:
        """Return the parts with these ``names``, all of them if None; ``field`` is that of the request.

        :raises InvalidRequest: there is no such part.
        """
        parts = self.parts()
        if unknown := [name for name in names or () if name not in parts]:
            raise InvalidRequest(f"{field}: Unknown part {unknown[0]!r}; the parts are {', '.join(parts)}.")
        return [part for name, part in parts.items() if names is None or name in names]

    def one(
        self, connection: str, parts: Sequence[Part], access: Access, timeout: float, cancellation: Cancellation
    ) -> Gathered:
        """Gather ``parts`` about one machine, and return the outcome."""
        try:
            return Gathered(connection, self._stored(connection, parts, access, timeout, cancellation))
        except ConnmgrError as error:
            return Gathered(connection, error=error)

    def _stored(
        self, connection: str, parts: Sequence[Part], access: Access, timeout: float, cancellation: Cancellation
    ) -> int:
        cancellation.require()
        if elevation_of(connection) is not None or self._vault.connections.temporary.get(connection) is not None:
            raise InvalidRequest(
                "Only stored connections have facts: name the one that this one runs over, or store this one."
            )
        deadline = Deadline(timeout)
        lease = lease_live_link(self._links, connection, access, deadline, cancellation)
        try:
            target = lease.link.target
            facts = {
                part.name: ask(lease.link.transport, lease.link.helpers, part, deadline, cancellation) for part in parts
            }
        finally:
            lease.release()
        # What was asked must still be what the vault has, or the facts would be those of another machine.
        basis = (canonical(target.data), target.dependency_digest or "")
        if not self._vault.facts.put(connection, basis, facts):
            raise FactsFailed("The connection was changed meanwhile: gather its facts again.")
        return sum(map(len, facts.values()))


def ask(
    transport: Transport, helpers: Helpers, part: Part, deadline: Deadline, cancellation: Cancellation = NEVER
) -> dict[str, Value]:
    """Run the program of a part on a machine, and return its facts by their whole names.

    :raises FactsFailed: it took longer than ``deadline``, printed too much, or failed.
    :raises connmgr.errors.CommandCancelled: ``cancellation`` was; the program is ended.
    """
    late = FactsFailed(
        f"The program for the facts {part.name!r} took too long and was ended: raise the timeout, or look what "
        "hangs there."
    )
    printed = bytearray()
    exchange = Exchange(transport, helpers, part.program, part.arguments, cancellation=cancellation)
    with exchange, cancellation.waking(exchange.end):
        try:
            exchange.answer(deadline.left())
            for piece in exchange.data(deadline.left()):
                cancellation.require()
                printed += piece
                if len(printed) > MAX_BYTES:
                    raise FactsFailed(
                        f"The program for the facts {part.name!r} printed more than {MAX_BYTES >> 20} MiB and was "
                        "ended."
                    )
                if deadline.passed:
                    raise late
        except TransferFailed:
            cancellation.require()
            if deadline.passed:
                raise late from None
            raise
    cancellation.require()
    if not exchange.succeeded():
        raise FactsFailed(f"The program for the facts {part.name!r} failed there.")
    return read_facts(part.name, bytes(printed))


def read_facts(part: str, printed: bytes) -> dict[str, Value]:
    """Return the facts of a part that a program printed, by their whole names.

    :raises FactsFailed: it printed something else, or more than anybody needs.
    """
    lines = printed.decode(errors="replace").splitlines()
    if len(lines) > MAX_LINES:
        raise FactsFailed(f"The program for the facts {part!r} printed more than {MAX_LINES:,} lines.")
    facts: dict[str, Value] = {}
    for line in filter(str.strip, lines):
        name, equals, text = line.partition("=")
        if part != SYSTEM:
            name = f"{part}.{name}"
        elif name not in _SYSTEM_NAMES and not re.fullmatch(r"disk\./.+\.(total|free)", name):
            continue
        if not equals or len(name) > LONGEST_NAME or not _NAME.match(name):
            # A mount point with a blank, a warning of a package manager.
            continue
        value = "".join(character if character.isprintable() else "?" for character in text.strip())[:LONGEST_VALUE]
        number = _NUMBER.match(value)
        first = name.partition(".")[0]
        if part == SYSTEM and first in _NUMBERS:
            if number:
                facts[name] = int(number[1]) << (10 if number[2] else 0)
        elif value:
            plain = number is not None and not number[2] and part not in (SYSTEM, PACKAGE_FACTS)
            facts[name] = int(value) if plain else value
    return facts
