"""The part of the suite that runs the shell engine on a transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connmgr.engine.envelope import Command
from connmgr.engine.session import Session
from connmgr.engine.start import start_supervisor
from connmgr.errors import CommandTimeout
from connmgr.plugin import Transport
from connmgr.testing.channel import BIG_OUTPUT, LARGE_BYTES
from connmgr.testing.link import WAIT_SECONDS

OS_TYPES = {"linux", "macos", "bsd", "solaris", "aix", "windows", "unix"}
MAX_OUTPUT_BYTES = 1 << 22


class SessionConformance:
    """Checks that shells run; ``transport`` and ``loaded`` are fixtures of the subclass."""

    @pytest.fixture
    def session(self, transport: Transport, loaded: dict[str, Any]) -> Iterator[Session]:
        """A shell as ``/shell/start`` starts it."""
        session = Session(start_supervisor(transport, loaded.get("shell"), WAIT_SECONDS), transport, MAX_OUTPUT_BYTES)
        yield session
        session.stop(WAIT_SECONDS)

    def test_a_shell_starts_and_knows_where_it_is(self, session: Session) -> None:
        assert session.info.os_type in OS_TYPES
        assert session.info.os_name
        assert session.info.temp.startswith("/")

    def test_commands_run_with_their_streams_and_status(self, session: Session) -> None:
        result = session.exec(Command(b"echo out; echo err >&2; exit 5"), WAIT_SECONDS)
        assert result.exit_code == 5
        if session.info.tty_state == "none":
            assert (bytes(result.stdout), bytes(result.stderr)) == (b"out\n", b"err\n")
        else:
            assert sorted(result.stdout.splitlines()) == [b"err", b"out"]

    def test_directory_and_variables_last(self, session: Session) -> None:
        session.exec(Command(b'cd /; KEPT="it\'s"; export KEPT'), WAIT_SECONDS)
        result = session.exec(Command(b'pwd; echo "$KEPT"'), WAIT_SECONDS)
        assert bytes(result.stdout) == b"/\nit's\n"

    def test_large_output_arrives_whole(self, session: Session) -> None:
        result = session.exec(Command(BIG_OUTPUT.encode()), WAIT_SECONDS)
        assert bytes(result.stdout[:LARGE_BYTES]) == b"0123456789abcdef" * (LARGE_BYTES // 16)

    def test_standard_input_arrives(self, session: Session) -> None:
        data = bytes(range(256))
        assert bytes(session.exec(Command(b"cat", stdin=data), WAIT_SECONDS).stdout) == data

    def test_a_timeout_kills_the_command_and_the_shell_goes_on(self, session: Session) -> None:
        # Needs /proc or ps on the remote host, and a second channel that sees the shell's processes.
        with pytest.raises(CommandTimeout) as interruption:
            session.exec(Command(b"echo begun; sleep 120 | cat"), 1)
        assert bytes(interruption.value.stdout) == b"begun\n"
        assert bytes(session.exec(Command(b"echo on"), WAIT_SECONDS).stdout) == b"on\n"

    def test_a_shell_can_be_started_again(self, session: Session, transport: Transport, loaded: dict[str, Any]) -> None:
        session.stop(WAIT_SECONDS)
        assert not session.alive
        again = Session(start_supervisor(transport, loaded.get("shell"), WAIT_SECONDS), transport, MAX_OUTPUT_BYTES)
        assert again.exec(Command(b"exit 4"), WAIT_SECONDS).exit_code == 4
        again.stop(WAIT_SECONDS)
