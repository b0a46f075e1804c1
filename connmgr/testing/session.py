"""The part of the suite that puts the shell engine on a transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connmgr.engine.frame import Command
from connmgr.engine.session import Session
from connmgr.engine.start import start_supervisor
from connmgr.errors import CommandTimeout
from connmgr.plugin import Transport
from connmgr.testing.channel import BIG_OUTPUT, LARGE
from connmgr.testing.link import WAIT

OS_TYPES = {"linux", "macos", "bsd", "solaris", "aix", "windows", "unix"}
MAX_OUTPUT = 1 << 22


class SessionConformance:
    """Checks that shells run; ``transport`` and ``loaded`` are fixtures of the subclass."""

    @pytest.fixture
    def session(self, transport: Transport, loaded: dict[str, Any]) -> Iterator[Session]:
        """A shell as ``/shell/start`` starts it."""
        session = Session(start_supervisor(transport, loaded.get("shell"), WAIT), transport, MAX_OUTPUT)
        yield session
        session.stop(WAIT)

    def test_a_shell_starts_and_knows_where_it_is(self, session: Session) -> None:
        assert session.info.os_type in OS_TYPES
        assert session.info.os_name
        assert session.info.temp.startswith("/")

    def test_commands_run_with_their_streams_and_status(self, session: Session) -> None:
        result = session.exec(Command(b"echo out; echo err >&2; exit 5"), WAIT)
        assert result.exit_code == 5
        if session.info.tty_state == "none":
            assert (bytes(result.stdout), bytes(result.stderr)) == (b"out\n", b"err\n")
        else:
            assert sorted(result.stdout.splitlines()) == [b"err", b"out"]

    def test_directory_and_variables_last(self, session: Session) -> None:
        session.exec(Command(b'cd /; KEPT="it\'s"; export KEPT'), WAIT)
        result = session.exec(Command(b'pwd; echo "$KEPT"'), WAIT)
        assert bytes(result.stdout) == b"/\nit's\n"

    def test_large_output_arrives_whole(self, session: Session) -> None:
        result = session.exec(Command(BIG_OUTPUT.encode()), WAIT)
        assert bytes(result.stdout[:LARGE]) == b"0123456789abcdef" * (LARGE // 16)

    def test_standard_input_arrives(self, session: Session) -> None:
        data = bytes(range(256))
        assert bytes(session.exec(Command(b"cat", stdin=data), WAIT).stdout) == data

    def test_a_timeout_kills_the_command_and_the_shell_goes_on(self, session: Session) -> None:
        # Needs a far side with /proc or ps, and a second channel that sees the processes of the shell's.
        with pytest.raises(CommandTimeout) as interruption:
            session.exec(Command(b"echo begun; sleep 600 | cat"), 1)
        assert bytes(interruption.value.stdout) == b"begun\n"
        assert bytes(session.exec(Command(b"echo on"), WAIT).stdout) == b"on\n"

    def test_a_shell_can_be_started_again(self, session: Session, transport: Transport, loaded: dict[str, Any]) -> None:
        session.stop(WAIT)
        assert not session.alive
        again = Session(start_supervisor(transport, loaded.get("shell"), WAIT), transport, MAX_OUTPUT)
        assert again.exec(Command(b"exit 4"), WAIT).exit_code == 4
        again.stop(WAIT)
