"""The helper: the shell that runs a session's file operations, one after the other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr import errors
from connmgr.engine.rpc import Exchange, Helper, Helpers
from connmgr.fs import files, remote
from connmgr.fs.files import FileReader
from connmgr.fs.remote import RemoteFileSystem
from connmgr.plugin import Channel, Pty
from connmgr_local.transport import LocalTransport
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.engine.shells import local_session
from tests.fs.conftest import Write
from tests.fs.remote_hosts import Elsewhere, content_of, names_in, shell_called_sh
from tests.fs.test_write import Mount, mount  # noqa: F401
from tests.processes import await_ends


class Counting(LocalTransport):
    """This machine; ``opened`` counts the started processes."""

    opened = 0

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        self.opened += 1
        return super().open_channel(argv, pty=pty, timeout=timeout)


@pytest.fixture
def counting() -> Iterator[Counting]:
    transport = Counting()
    yield transport
    transport.close()


@pytest.fixture
def here(counting: Counting, folder: Path) -> RemoteFileSystem:
    return RemoteFileSystem(counting, bytes(folder))


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_one_helper_serves_all_requests(here: RemoteFileSystem, write: Write, counting: Counting) -> None:
    for size in (0, 1, 65_536, 1_000_000):
        write(here, b"file", b"x" * size)
        assert content_of(here, b"file") == b"x" * size
        assert files.stat_file(here, b"file", follow=False).size == size
    assert len(files.list_directory(here, b".")) == 1
    files.make_directory(here, b"folder", None, parents=False, timeout=DEADLINE_SECONDS)
    with pytest.raises(errors.NoSuchFile):
        FileReader(here, b"missing")
    with pytest.raises(errors.WrongFileType):
        write(here, b"folder", b"refused before anything is sent")
    files.remove(here, b"folder", recursive=False, timeout=DEADLINE_SECONDS)
    assert counting.opened == 1


def test_two_at_once_have_one_each_and_one_is_kept(here: RemoteFileSystem, write: Write, counting: Counting) -> None:
    before = children()
    write(here, b"file", b"x" * 1_000_000)
    one, other = FileReader(here, b"file"), FileReader(here, b"file")
    assert b"".join(one) == b"".join(other) == b"x" * 1_000_000
    one.close()
    other.close()
    assert counting.opened == 2
    eventually_equal(lambda: len(children() - before), 1, "the helper that nobody needs lives on")


def test_a_helper_left_in_the_middle_is_not_used_again(
    here: RemoteFileSystem, write: Write, counting: Counting
) -> None:
    write(here, b"file", b"x" * 10_000_000)
    reading = FileReader(here, b"file")
    assert next(iter(reading)).startswith(b"x")
    reading.close()
    assert files.stat_file(here, b"file", follow=False).size == 10_000_000
    assert counting.opened == 2


def test_a_dead_helper_is_replaced(here: RemoteFileSystem, write: Write, counting: Counting) -> None:
    before = children()
    write(here, b"file", b"content")
    (helper,) = children() - before
    psutil.Process(helper).kill()
    await_ends(helper)
    assert content_of(here, b"file") == b"content"
    assert counting.opened == 2


class WithAgent(Counting):
    """A machine with a start-up file that leaves a background program holding the streams."""

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        return super().open_channel(["/bin/sh", "-c", 'sleep 5 & exec "$@"', "sh", *argv], pty=pty, timeout=timeout)


def test_a_dead_helper_whose_streams_a_stranger_holds_is_replaced(folder: Path) -> None:
    transport = WithAgent()
    here = RemoteFileSystem(transport, bytes(folder))
    before = children()
    assert len(files.list_directory(here, b".")) == 0
    helper = next(psutil.Process(pid) for pid in children() - before if psutil.Process(pid).name() == "sh")
    helper.kill()
    await_ends(helper.pid)
    assert len(files.list_directory(here, b".")) == 0
    assert transport.opened == 2
    transport.close()


def test_a_helper_s_death_does_not_make_litter_of_what_is_written(
    here: RemoteFileSystem, write: Write, folder: Path
) -> None:
    content = b"x" * 200_000
    before = children()
    exchange = here.run(remote.WRITE, [b"file", "", "nonce", "65536", ""])
    exchange.answer()
    helper = next(psutil.Process(pid) for pid in children() - before if psutil.Process(pid).ppid() == os.getpid())
    helper.kill()
    write(here, b"other", b"content")
    end = f"end {len(content)} {sha256(content).hexdigest()}"
    exchange.stream([(len(content), iter([content]))], end.encode)
    exchange.answer()
    with exchange:
        assert names_in(folder) == ["file", "other"]


@pytest.mark.needs("mksh")
def test_a_call_that_the_remote_host_cannot_read_fails_at_once(tmp_path: Path, folder: Path) -> None:
    transport = Elsewhere(shell_called_sh(tmp_path, "mksh"), os.environ["PATH"], tmp_path)
    place = RemoteFileSystem(transport, bytes(folder))
    with pytest.raises(errors.TransferFailed, match="did not answer"):
        files.remove(place, b"\x01" + b"'" * 32768, recursive=False, timeout=DEADLINE_SECONDS)
    transport.close()


@pytest.mark.needs("machine")
def test_the_rest_of_a_file_that_finds_no_space_is_not_run(
    here: RemoteFileSystem,
    write: Write,
    folder: Path,
    mount: Mount,  # noqa: F811
) -> None:
    (folder / "small").mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", "small")
    command = f"\ntouch {folder}/run\n".encode()
    for size in (60_000, 40_000_000):
        with pytest.raises(errors.NoSpace):
            write(here, b"small/file", b"x" * 1_100_000 + command * (size // len(command)))
        assert names_in(folder / "small") == []
    assert names_in(folder) == ["small"]


def test_a_line_without_its_word_ends_it(counting: Counting, folder: Path) -> None:
    helper = Helper.start(counting, remote.STAT, DEADLINE_SECONDS)
    helper.channel.sendall(f"touch {folder}/run\n".encode(), DEADLINE_SECONDS)
    assert helper.channel.exit_status(DEADLINE_SECONDS) == 0
    helper.channel.close()
    assert names_in(folder) == []


def test_a_helper_ends_with_its_session(counting: Counting, folder: Path) -> None:
    before = children()
    with local_session("sh") as session:
        place = RemoteFileSystem(session.transport, bytes(folder), session.helpers)
        assert len(files.list_directory(place, b".")) == 0
        assert len(children() - before) == 2
    eventually(children, "it outlives its session", holds=lambda seen: seen <= before)
    session.helpers.leave(Helper.start(counting, remote.STAT, DEADLINE_SECONDS))
    assert session.helpers.take() is None
    assert children() <= before


def test_closing_one_user_of_helpers_ends_only_its_own(counting: Counting) -> None:
    pool = Helpers()
    one, other = Helpers(pool), Helpers(pool)
    at_work, for_other = (helpers.start(counting, remote.STAT, DEADLINE_SECONDS) for helpers in (one, other))
    other.leave(for_other)
    one.close()
    with pytest.raises(EOFError):
        at_work.channel.recv(DEADLINE_SECONDS)
    one.end(at_work)
    assert other.take() is for_other, "another's helper went along"
    other.leave(for_other)
    late = one.take()
    assert late is for_other
    assert not late.is_idle(), "whoever has ended still gets helpers"
    pool.close()


class Scripted(Channel):
    """A remote host that answers a call with ``pieces``, in which ``MARK`` stands for the call's mark."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = list(pieces)
        self._mark = b""
        self.closed = False

    def sendall(self, data: bytes, timeout: float) -> None:
        if data in (b"yes\n", b"no\n"):
            return
        called = re.search(rb" (?:run|feed) \w+ (\S+)", data)
        assert called, data
        self._mark = called[1]
        self._pieces = [piece.replace(b"MARK", self._mark) for piece in self._pieces]

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        if not self._mark:
            return b"", b""
        if not self._pieces:
            raise EOFError
        return self._pieces.pop(0), b""

    def answer(self, whole: bytes, cuts: Sequence[int]) -> None:
        whole = whole.replace(b"MARK", self._mark or b"MARK")
        inner = {cut % (len(whole) + 1) for cut in cuts}
        # A text with a whole end mark is an end, because only the remote host knows the mark.
        end = re.compile(re.escape(self._mark) + rb" over [0-9]+\n\Z")
        longest = len(self._mark) + 100
        tails = {place: whole[max(place - longest, 0) : place] for place in inner}
        places = sorted({place for place, tail in tails.items() if not end.search(tail)} | {0, len(whole)})
        self._pieces = [whole[start:end] for start, end in pairwise(places)]

    def shutdown_write(self) -> None: ...

    def exit_status(self, timeout: float) -> int:
        raise TimeoutError

    def close(self) -> None:
        self.closed = True


def test_a_truncated_description_is_an_error() -> None:
    channel, helpers = Scripted([]), Helpers()
    helpers.leave(Helper(channel, "word", set(remote.STAT.parts)))
    channel.answer(b"MARK ok\nMARK 777=l:20:1.0:0:0:root:root:/link\nMARK target /srv/cur", [])
    with pytest.raises(errors.TransferFailed):
        files.stat_file(RemoteFileSystem(LocalTransport(), b"/", helpers), b"/link", follow=False)
    assert channel.closed


NEARLY = [b"", b"MARK", b"MARK over", b"MARK over 0", b"MARK over 0\nx", b"\n", b"MARK ov", b"MARKMARK over 1"]


@settings(deadline=None)
@given(
    content=st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(NEARLY)), max_size=4).map(b"".join),
    cuts=st.lists(st.integers(0, 1 << 16), max_size=8),
    status=st.sampled_from([b"0", b"1", b"255"]),
)
def test_data_are_what_comes_before_the_end_however_they_are_cut(
    content: bytes, cuts: Sequence[int], status: bytes
) -> None:
    channel, helpers = Scripted([]), Helpers()
    helpers.leave(Helper(channel, "word", set(remote.READ.parts)))
    with Exchange(LocalTransport(), helpers, remote.READ, [b"/", b"file"]) as exchange:
        channel.answer(content + b"MARK over " + status + b"\n", cuts)
        assert b"".join(exchange.data()) == content.replace(b"MARK", exchange.mark)
        assert exchange.succeeded() == (status == b"0")
    assert not channel.closed
