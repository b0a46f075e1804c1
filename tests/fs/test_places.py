"""The same files over every kind of link: as the session's own user, elevated, on pipes and on terminals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connmgr import errors
from connmgr.fs import files
from connmgr.fs.blobs import Blobs
from connmgr.fs.files import Place
from tests.fs.conftest import Write
from tests.fs.far_sides import ODD_NAMES, content_of, eventually, litter, stored
from tests.plugins.machine import Inhabitant, Machine, shell_path
from tests.plugins.places import GATEWAY, LOCAL, SSH, Places, elevate, session_on

pytestmark = pytest.mark.needs("machine", "sudo", "su", "sshd", "bash")

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
ON_A_TERMINAL = [way for way in WAYS if "terminal" in way]
NAMES = st.binary(min_size=1, max_size=200).filter(
    lambda name: not {b"/"[0], 0} & set(name) and name not in {b".", b".."}
)
CONTENTS = st.one_of(st.binary(max_size=3000), st.binary(min_size=1, max_size=3).map(lambda piece: piece * 40_000))
# On a terminal, these would end, erase or stop something.
CONTROL = bytes(range(32)) * 300 + b"\x03\x04\x11\x13\x1a\x1c\x7f\xff" * 2000 + b"\r\n\r\r\n\n"


@pytest.fixture(scope="module", params=WAYS)
def place(
    request: pytest.FixtureRequest, running_machine: Machine, places: Places, user: Inhabitant
) -> Iterator[Place]:
    """A place in the user's home directory, which root too may write to."""
    where, fields = WAYS[request.param]
    tty = ["Defaults requiretty"] if request.param.startswith("sudo on a terminal") else []
    running_machine.allow(*tty, f"{user.name} ALL=(ALL) ALL")
    directory = running_machine.path(user.home) / request.param
    directory.mkdir()
    os.chown(directory, user.uid, user.uid)
    with places.reach(where, user) as inner:
        transport = inner if fields is None else elevate(inner, **fields)
        with session_on(transport) as session:
            assert (session.info.tty_state == "merged") == (request.param in ON_A_TERMINAL)
            yield Place(transport, f"{user.home}/{request.param}".encode())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blobs]:
    blobs = Blobs(tmp_path_factory.mktemp("blobs") / "spool", quota=1 << 30, ttl=600)
    yield blobs
    blobs.close()


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(name=NAMES, content=CONTENTS)
def test_any_content_under_any_name_comes_back(place: Place, kept: Blobs, name: bytes, content: bytes) -> None:
    with stored(kept, content) as blob:
        files.write(place, name, blob, None)
    assert content_of(place, name) == content
    assert name in [entry.name for entry in files.list_directory(place, b".")]
    files.remove(place, name, recursive=False, timeout=20)


def test_odd_names(place: Place, write: Write) -> None:
    for name in ODD_NAMES:
        write(place, name, name)
        assert content_of(place, name) == name
        assert files.stat_file(place, name, follow=True).size == len(name)
    assert {entry.name for entry in files.list_directory(place, b".")} >= set(ODD_NAMES)
    for name in ODD_NAMES:
        files.remove(place, name, recursive=False, timeout=20)


def test_control_characters_and_bulk(place: Place, write: Write) -> None:
    for content in (b"", CONTROL, CONTROL * 100):
        write(place, b"control", content)
        assert content_of(place, b"control") == content


def test_files_are_the_session_s_user_s(
    place: Place, write: Write, request: pytest.FixtureRequest, running_machine: Machine, user: Inhabitant
) -> None:
    way = request.node.callspec.params["place"]
    uid = 0 if way.startswith("su") else user.uid
    directory = running_machine.path(os.fsdecode(place.directory))
    (directory / "the user's").touch()
    os.chown(directory / "the user's", user.uid, user.uid)
    write(place, b"the user's", b"1", 0o600)
    write(place, b"new", b"1")
    made = os.fsdecode(files.make_temporary(place))
    # A file keeps its owner, whoever writes it.
    assert (directory / "the user's").stat().st_uid == user.uid
    assert (directory / "new").stat().st_uid == running_machine.path(made).stat().st_uid == uid
    home = running_machine.path(user.home if uid else "/root")
    write(place, b"~/at home", b"1")
    assert (home / "at home").stat().st_uid == uid
    (home / "at home").unlink()
    running_machine.path(made).rmdir()
    if uid:
        for path in (b"/etc/shadow", b"/root/x"):
            with pytest.raises((errors.PermissionDenied, errors.NoSuchFile)):
                content_of(place, path)
            with pytest.raises(errors.PermissionDenied):
                write(place, path, b"not allowed")
    else:
        assert content_of(place, b"/etc/shadow").startswith(b"root:")


def test_what_the_far_side_refuses_is_told_at_once(place: Place, write: Write) -> None:
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
def test_login_shells_of_any_language(running_machine: Machine, places: Places, write: Write, shell: str) -> None:
    user = running_machine.add_user(shell_path(shell))
    with places.reach(SSH, user) as transport:
        place = Place(transport, user.home.encode())
        for name in ODD_NAMES:
            write(place, name, name)
            assert content_of(place, name) == name
        assert {entry.name for entry in files.list_directory(place, b".")} >= set(ODD_NAMES)
        assert litter(running_machine.path(user.home)) == []


def test_start_up_files_that_print_do_no_harm(running_machine: Machine, places: Places, write: Write) -> None:
    user = running_machine.add_user(shell_path("bash"))
    noise = "echo Welcome; head -c 20000 /dev/zero; printf 'ok 5\\nno newline'; echo oops >&2\n"
    running_machine.write(f"{user.home}/.bashrc", noise, owner=user)
    with places.reach(SSH, user) as transport:
        place = Place(transport, user.home.encode())
        write(place, b"file", CONTROL)
        assert content_of(place, b"file") == CONTROL
        assert b"file" in [entry.name for entry in files.list_directory(place, b".")]


def test_a_link_that_breaks_while_a_file_is_written(
    running_machine: Machine, places: Places, blobs: Blobs, write: Write
) -> None:
    user = running_machine.add_user()
    target: Path = running_machine.path(user.home) / "file"
    with places.reach(SSH, user) as transport, stored(blobs, CONTROL * 2000) as blob:
        place = Place(transport, user.home.encode())
        write(place, b"file", b"old")
        pieces = blob.pieces()

        def cut() -> Iterator[bytes]:
            yield next(pieces)
            places.sshd.kill_sessions()
            yield from pieces

        blob.pieces = cut  # type: ignore[method-assign]
        with pytest.raises(errors.TransferFailed):
            files.write(place, b"file", blob, None)
    assert target.read_bytes() == b"old"
    with places.reach(SSH, user) as transport:

        def cleared() -> bool:
            # What has lost its link may take a moment to end.
            write(Place(transport, user.home.encode()), b"file", b"new")
            return litter(target.parent) == []

        eventually(cleared, "litter stays")
    assert target.read_bytes() == b"new"
