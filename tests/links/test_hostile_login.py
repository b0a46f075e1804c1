"""Output of a hostile program in place of a login is read in little time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from connmgr.errors import AuthFailed, ConnmgrError, ElevationFailed
from connmgr.links.login import LOGIN_BYTES, PROMPT_BYTES, QUOTED_CHARACTERS, REASON_BYTES, Login
from connmgr.plugin import Deadline, Dialogue
from connmgr_elevated import ShellEnvironment
from tests.hostile import Prints, fill, quickly

METHODS = ["sudo", "su", "doas"]


def data(method: str) -> dict[str, Any]:
    return {"elevated": True, "method": method, "user": "root", "password": "secret"}


def login(method: str) -> tuple[Login, bytes]:
    """Return a login and the line that ends it."""
    held = Login(ShellEnvironment(), data(method), Deadline(600))
    return held, b"\n" + held.announcing(["true"], raw=False)[4].encode() + b"\n"


@pytest.mark.parametrize("pattern", [b"password", b"pass", b"Password: ", b"x", b"\n", b"%", b"%connmgr-"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("piece", [100, 256 << 10])
@pytest.mark.parametrize("method", METHODS)
def test_a_flood_instead_of_a_login(method: str, piece: int, stream: str, pattern: bytes) -> None:
    channel = Prints(**{stream: fill(pattern, 4 * LOGIN_BYTES)}, piece=piece)
    with quickly(), pytest.raises(ConnmgrError) as refused:
        login(method)[0].hold(channel)
    assert isinstance(refused.value, ElevationFailed | AuthFailed)
    assert channel.read <= LOGIN_BYTES + piece, "a login that goes on and on is read on"
    assert channel.closed
    assert len(refused.value.message) < QUOTED_CHARACTERS + 200


@pytest.mark.parametrize("piece", [1, 100, 4096, 256 << 10])
def test_the_end_of_a_login_is_found_after_much_output(piece: int) -> None:
    held, end = login("su")
    channel = held.hold(Prints(fill(b"Welcome to it\n", 20 * PROMPT_BYTES) + end + b"output", b"", piece=piece))
    assert bytes(_all(channel)) == b"output"


@pytest.mark.parametrize("piece", [1, 3, 4096])
def test_the_end_is_found_however_the_two_streams_interleave(piece: int) -> None:
    held, end = login("sudo")
    told = end.strip() + b".\nthe next login's prompt:"
    channel = held.hold(Prints(end + b"output", told, piece=piece))
    assert bytes(_all(channel)) == b"output"


def _all(channel: Any) -> bytes:
    read = b""
    try:
        while True:
            read += channel.recv(1)[0]
    except EOFError:
        return read


class Asks(Prints):
    """A channel that asks once and prints its end when it is answered; with ``noise`` it asks on stderr meanwhile."""

    def __init__(self, question: bytes, end: bytes, piece: int, noise: bytes = b"") -> None:
        streams = (noise, question) if noise else (question, b"")
        super().__init__(*streams, piece=piece, merged=not noise)
        self._end = end

    def sendall(self, data: bytes, timeout: float) -> None:
        super().sendall(data, timeout)
        self.print(self._end)


@pytest.mark.parametrize("prompt", [b"Password: ", b"doas (me@host) password: ", b"Passcode for me@REALM:"])
@pytest.mark.parametrize("piece", [1, 4096])
def test_a_prompt_behind_a_long_lecture_is_answered(prompt: bytes, piece: int) -> None:
    held, end = login("su")
    channel = Asks(fill(b"Be careful with the password.\n", 20 * PROMPT_BYTES) + prompt, b"\r" + end, piece)
    held.hold(channel)
    assert channel.sent == b"secret\n"


@pytest.mark.parametrize("piece", [1, 100, 256 << 10])
def test_a_prompt_is_answered_whatever_the_other_stream_brings_after_it(piece: int) -> None:
    held, end = login("sudo")
    channel = Asks(b"%" + held.prompt.encode(), end, piece, fill(b"welcome\n", 20 * PROMPT_BYTES))
    held.hold(channel)
    assert channel.sent == b"secret\n"


class Expects:
    """A wrapper whose login expects its own regular expression."""

    def login(self, dialogue: Dialogue, data: Mapping[str, Any]) -> None:
        patterns: Sequence[bytes] = [dialogue.ready, rb"answer(?:[^\r\n]*): ?$"]
        dialogue.expect(patterns, 5)


def test_a_plugin_s_own_expression_is_searched_in_a_window() -> None:
    held = Login(Expects(), {}, Deadline(600))  # type: ignore[arg-type] - all that a login asks of a wrapper
    with quickly(), pytest.raises(ElevationFailed):
        held.hold(Prints(fill(b"answer"), piece=LOGIN_BYTES))


@pytest.mark.parametrize("cut", range(len("secret")))
def test_a_quotation_that_was_cut_contains_no_part_of_a_secret(cut: int) -> None:
    held, _ = login("su")
    echo = b"secret" + b"\n" * (REASON_BYTES - cut)
    with pytest.raises(ConnmgrError) as refused:
        held.hold(Asks(b"Password: ", echo, 4096))
    for size in range(2, len("secret")):
        assert "secret"[-size:] not in refused.value.message.removesuffix("the password.")
