"""The same file operations over every kind of link: as the session's user, elevated, on pipes and on terminals."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connmgr import errors
from connmgr.fs import files
from connmgr.fs.bodies import Blobs
from connmgr.fs.remote import RemoteFileSystem
from tests.deadlines import eventually_equal
from tests.fs.conftest import Write
from tests.fs.remote_hosts import ODD_NAMES, content_of, litter, stored
from tests.fs.trees import archive_of, packed, unpack
from tests.plugins.machine import Inhabitant, Machine, shell_path
from tests.plugins.oneself import ssh_link, ssh_server
from tests.plugins.places import GATEWAY, LOCAL, SSH, elevate, session_on

pytestmark = pytest.mark.needs("sshd", "bash")

OWN = "correct horse battery"
WAYS = {
    "ssh": (SSH, None),
    "ssh through a gateway": (GATEWAY, None),
    "sudo": (LOCAL, {"password": OWN}),
    "sudo over ssh": (SSH, {"password": OWN}),
    "sudo through a gateway": (GATEWAY, {"password": OWN}),
    "sudo on a terminal over ssh": (SSH, {"password": OWN, "method": "sudo"}),
    "su on a terminal": (LOCAL, {"password": "root of all evil", "method": "su"}),
    "su on a terminal over ssh": (SSH, {"password": "root of all evil", "method": "su"}),
}
TO_ONESELF = {"ssh to oneself": 1, "ssh to oneself through a gateway": 2}
"""The ways that need no other user, with their numbers of links."""
ON_A_TERMINAL = [way for way in WAYS if "terminal" in way]
NAMES = st.binary(min_size=1, max_size=200).filter(
    lambda name: not {b"/"[0], 0} & set(name) and name not in {b".", b".."}
)
CONTENTS = st.one_of(st.binary(max_size=3000), st.binary(min_size=1, max_size=3).map(lambda piece: piece * 40_000))
# On a terminal, these would end, erase or stop something.
CONTROL = bytes(range(32)) * 300 + b"\x03\x04\x11\x13\x1a\x1c\x7f\xff" * 2000 + b"\r\n\r\r\n\n"


@dataclass(frozen=True)
class Reached:
    """A directory on a remote host, and the same as the tests see it."""

    place: RemoteFileSystem
    directory: Path
    uid: int
    """The owner of new files."""
    own_uid: int
    """The owner of the directory."""
    home: Path
    """The home directory of the files' owner."""


@pytest.fixture(
    scope="module",
    params=[*TO_ONESELF, *(pytest.param(way, marks=pytest.mark.needs("machine", "sudo", "su")) for way in WAYS)],
)
def reached(request: pytest.FixtureRequest) -> Iterator[Reached]:
    """A directory in the user's home, which root may write to as well."""
    with ExitStack() as links:
        yield (oneself_by if request.param in TO_ONESELF else inhabitant_by)(request, links)


def oneself_by(request: pytest.FixtureRequest, links: ExitStack) -> Reached:
    home: Path = request.getfixturevalue("home_of_the_daemon")
    directory = home / _name(request)
    directory.mkdir()
    transport = links.enter_context(ssh_link(links.enter_context(ssh_server(home)), TO_ONESELF[request.param]))
    return Reached(RemoteFileSystem(transport, bytes(directory)), directory, os.geteuid(), os.geteuid(), home)


def inhabitant_by(request: pytest.FixtureRequest, links: ExitStack) -> Reached:
    machine: Machine = request.getfixturevalue("running_machine")
    user: Inhabitant = request.getfixturevalue("user")
    way, (where, fields) = request.param, WAYS[request.param]
    tty = ["Defaults requiretty"] if way.startswith("sudo on a terminal") else []
    machine.allow(*tty, f"{user.name} ALL=(ALL) ALL")
    directory = machine.path(user.home) / _name(request)
    directory.mkdir()
    os.chown(directory, user.uid, user.uid)
    inner = links.enter_context(request.getfixturevalue("places").reach(where, user))
    transport = inner if fields is None else elevate(inner, **fields)
    session = links.enter_context(session_on(transport))
    assert (session.info.tty_state == "merged") == (way in ON_A_TERMINAL)
    uid = 0 if way.startswith("su") else user.uid
    home = machine.path(user.home if uid else "/root")
    return Reached(
        RemoteFileSystem(transport, f"{user.home}/{directory.name}".encode()), directory, uid, user.uid, home
    )


def _name(request: pytest.FixtureRequest) -> str:
    """Return the name of a directory for this module, since homes are shared."""
    return f"{request.param} of {request.module.__name__}"


@pytest.fixture(scope="module")
def place(reached: Reached) -> RemoteFileSystem:
    return reached.place


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blobs]:
    blobs = Blobs(tmp_path_factory.mktemp("blobs") / "spool", quota=1 << 30, ttl=600)
    yield blobs
    blobs.close()


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(name=NAMES, content=CONTENTS)
def test_any_content_under_any_name_comes_back(
    place: RemoteFileSystem, kept: Blobs, name: bytes, content: bytes
) -> None:
    with stored(kept, content) as blob:
        files.write(place, name, blob, None)
    assert content_of(place, name) == content
    assert name in [entry.name for entry in files.list_directory(place, b".")]
    files.remove(place, name, recursive=False, timeout=20)


def test_odd_names(place: RemoteFileSystem, write: Write) -> None:
    files.make_directory(place, b"odd", None, parents=False, timeout=20)
    for name in ODD_NAMES:
        write(place, b"odd/" + name, name)
        assert content_of(place, b"odd/" + name) == name
    described = {entry.name: entry.size for entry in files.list_directory(place, b"odd")}
    assert described == {name: len(name) for name in ODD_NAMES}
    files.remove(place, b"odd", recursive=True, timeout=20)


def test_control_characters_and_bulk(place: RemoteFileSystem, write: Write) -> None:
    for content in (b"", CONTROL, CONTROL * 100):
        write(place, b"control", content)
        assert content_of(place, b"control") == content


@pytest.mark.needs("tar")
def test_trees_go_both_ways(reached: Reached) -> None:
    place, content = reached.place, archive_of(*((f"a/{n}/{'x' * n}", {"content": CONTROL * n}) for n in range(1, 9)))
    for _ in range(2):
        assert unpack(place, b"tree", content) == []
        with tarfile.open(fileobj=io.BytesIO(packed(place, b"tree"))) as found:
            members = [member for member in found if member.isfile()]
            assert len(members) == 8
            for member in members:
                taken = found.extractfile(member)
                assert taken is not None
                assert taken.read() == CONTROL * int(member.name.split("/")[2])
    assert (reached.directory / "tree" / "a").stat().st_uid == reached.uid
    names = {entry.name for entry in files.list_directory(place, b"tree", recursive=True)}
    assert {b"a", b"a/1", b"a/1/x"} <= names
    with pytest.raises(errors.ArchiveRefused):
        unpack(place, b"refused", CONTROL)
    files.remove(place, b"tree", recursive=True, timeout=20)
    files.remove(place, b"refused", recursive=True, timeout=20)


def test_files_are_the_session_s_user_s(reached: Reached, write: Write) -> None:
    place, directory, uid, home = reached.place, reached.directory, reached.uid, reached.home
    (directory / "the user's").touch()
    os.chown(directory / "the user's", reached.own_uid, -1)
    write(place, b"the user's", b"1", 0o600)
    write(place, b"new", b"1")
    made = files.make_temporary(place)
    # A file keeps its owner, whoever writes it.
    assert (directory / "the user's").stat().st_uid == reached.own_uid
    assert (directory / "new").stat().st_uid == files.stat_file(place, made, follow=False).uid == uid
    write(place, b"~/at home", b"1")
    assert (home / "at home").stat().st_uid == uid
    (home / "at home").unlink()
    files.remove(place, made, recursive=True, timeout=20)
    if uid:
        for path in (b"/etc/shadow", b"/root/x"):
            with pytest.raises((errors.PermissionDenied, errors.NoSuchFile)):
                content_of(place, path)
            with pytest.raises(errors.PermissionDenied):
                write(place, path, b"not allowed")
    else:
        assert content_of(place, b"/etc/shadow").startswith(b"root:")


def test_refusals_of_the_remote_host_are_reported_at_once(place: RemoteFileSystem, write: Write) -> None:
    with pytest.raises(errors.NoSuchFile):
        content_of(place, b"missing")
    with pytest.raises(errors.NoSuchDirectory):
        write(place, b"missing/file", CONTROL)
    with pytest.raises(errors.WrongFileType):
        write(place, b"/dev", CONTROL)


LOGIN_SHELLS = [
    pytest.param(name, marks=pytest.mark.needs(name))
    for name in ("bash", "dash", "zsh", "ksh93", "mksh", "fish", "tcsh")
]


@pytest.mark.parametrize("shell", LOGIN_SHELLS)
@pytest.mark.parametrize("inhabitant", [False, pytest.param(True, marks=pytest.mark.needs("machine"))])
def test_login_shells_of_any_language(
    request: pytest.FixtureRequest, write: Write, tmp_path: Path, shell: str, inhabitant: bool
) -> None:
    with ExitStack() as links:
        if inhabitant:
            machine: Machine = request.getfixturevalue("running_machine")
            user = machine.add_user(shell_path(shell))
            transport = links.enter_context(request.getfixturevalue("places").reach(SSH, user))
            place, home = RemoteFileSystem(transport, user.home.encode()), machine.path(user.home)
        else:
            home = tmp_path / "home"
            home.mkdir()
            server = links.enter_context(ssh_server(home, shell_path(shell)))
            place = RemoteFileSystem(links.enter_context(ssh_link(server)), bytes(home))
        # Each shell uses each name on one of its two servers.
        names = ODD_NAMES[inhabitant::2]
        for name in names:
            write(place, name, name)
            assert content_of(place, name) == name
        assert {entry.name for entry in files.list_directory(place, b".")} >= set(names)
        assert litter(home) == []


def test_start_up_files_that_print_do_no_harm(write: Write, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    noise = "echo Welcome; head -c 20000 /dev/zero; printf 'ok 5\\nno newline'; echo oops >&2\n"
    (home / ".bashrc").write_text(noise)
    with ssh_server(home, shell_path("bash")) as server, ssh_link(server) as transport:
        place = RemoteFileSystem(transport, bytes(home))
        write(place, b"file", CONTROL)
        assert content_of(place, b"file") == CONTROL
        assert b"file" in [entry.name for entry in files.list_directory(place, b".")]


def test_a_link_that_breaks_while_a_file_is_written(blobs: Blobs, write: Write, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with ssh_server(home) as server:
        with ssh_link(server) as transport, stored(blobs, CONTROL * 2000) as blob:
            place = RemoteFileSystem(transport, bytes(home))
            write(place, b"file", b"old")
            pieces = blob.pieces()

            def cut() -> Iterator[bytes]:
                yield next(pieces)
                server.kill_sessions()
                yield from pieces

            blob.pieces = cut  # type: ignore[method-assign]
            with pytest.raises(errors.TransferFailed):
                files.write(place, b"file", blob, None)
        assert (home / "file").read_bytes() == b"old"
        with ssh_link(server) as transport:
            place = RemoteFileSystem(transport, bytes(home))

            def left() -> list[str]:
                # A process that has lost its link may end slightly later.
                write(place, b"file", b"new")
                return litter(home)

            eventually_equal(left, [], "litter stays")
    assert (home / "file").read_bytes() == b"new"
