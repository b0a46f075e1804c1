"""Hostile output of a remote host while a shell or a helper starts is read in little time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from connmgr.engine.start import OUTPUT_BYTES, Announcement, await_announcement
from connmgr.engine.stdin_pipe import Whole, fed
from connmgr.errors import UnsupportedShell
from connmgr.plugin import Channel, Deadline, Pty, Transport
from tests.hostile import Prints, fill, quickly

NONCE = "0123456789abcdef" * 2
PIECE = 32 << 10
LEAD = b"\n" + NONCE.encode() + b" "


def announcement(channel: Channel) -> Announcement:
    return await_announcement(channel, NONCE, ["/bin/sh"], Deadline(600))


@pytest.mark.parametrize(
    "pattern",
    [b"x", b"\n", b"\n" + NONCE[:-1].encode(), b"\n" + NONCE.encode() + b" " + b"x" * 5000, b"\x1b[2J"],
    ids=range(5),
)
@pytest.mark.parametrize("piece", [512, PIECE])
def test_an_announcement_is_looked_for_in_linear_time(pattern: bytes, piece: int) -> None:
    with quickly(), pytest.raises(UnsupportedShell) as refused:
        announcement(Prints(fill(pattern), fill(pattern), piece=piece))
    assert len(refused.value.message) < 1000


@pytest.mark.parametrize("piece", [1, 7, 4096, PIECE])
def test_an_announcement_is_found_behind_noise_however_it_is_cut(piece: int) -> None:
    noise = (LEAD + b"x" * 5000 + fill(b"\nnoise", 5 * OUTPUT_BYTES if piece > 7 else 1000)) * 2
    found = announcement(Prints(noise + LEAD + b"bash /bin/bash\n", piece=piece))
    assert (found.name, found.path) == ("bash", "/bin/bash")


class Opens(Transport):
    """A transport with one given channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        return self.channel

    def close(self) -> None:
        self.channel.close()


@pytest.mark.parametrize("pattern", [b"x", b"ok /", b"x\n" * 8])
@pytest.mark.parametrize("piece", [1, PIECE])
def test_the_path_of_an_input_pipe_is_read_in_linear_time(pattern: bytes, piece: int) -> None:
    with quickly(), pytest.raises(EOFError), fed(Opens(Prints(fill(pattern), piece=piece)), Whole(b""), 10) as pipe:
        raise EOFError(pipe.path)
