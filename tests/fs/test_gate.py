"""Rules over paths: what is not allowed stays out of reach by whatever path, over each kind of link, in each shell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.fs import files
from connmgr.fs.blobs import Blob, Blobs
from connmgr.fs.files import Place
from tests.fs.far_sides import SHELLS, Elsewhere, busybox_tools, content_of, shell_called_sh, stored
from tests.fs.gates import (
    FOLLOWING,
    LEADING_OUT,
    NAMING,
    OPEN,
    REFUSAL,
    SHUT,
    Patterns,
    facts_of,
    plant_ways_out,
)
from tests.fs.test_places import inhabitant_by, oneself_by


@dataclass(frozen=True)
class Guarded:
    """A far side where ``allowed`` may be used and nothing else."""

    place: Place
    folder: Path
    blob: Blob

    def path(self, text: str) -> bytes:
        """Return a path of the tables as bytes."""
        folder = os.fsdecode(self.place.directory)
        return os.fsencode(text.replace("{folder}", folder).replace("{name}", Path(folder).name))


WAYS = [
    *(pytest.param(shell.values[0], marks=shell.marks) for shell in SHELLS),
    pytest.param("busybox's tools", marks=pytest.mark.needs("busybox")),
    pytest.param("ssh to oneself", marks=pytest.mark.needs("sshd", "bash")),
    pytest.param("sudo over ssh", marks=pytest.mark.needs("machine", "sudo", "su", "sshd", "bash")),
    pytest.param("su on a terminal", marks=pytest.mark.needs("machine", "sudo", "su", "sshd", "bash")),
]


@pytest.fixture(scope="module", params=WAYS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with ExitStack() as held:
        blobs = Blobs(tmp_path_factory.mktemp("blobs") / "spool", quota=1 << 30, ttl=600)
        held.callback(blobs.close)
        blob = held.enter_context(stored(blobs, b"written"))
        place, folder = _reached(request, held, tmp_path_factory)
        plant_ways_out(folder)
        yield Guarded(replace(place, gate=Patterns(place.directory + b"/allowed/**")), folder, blob)


def _reached(
    request: pytest.FixtureRequest, held: ExitStack, directories: pytest.TempPathFactory
) -> tuple[Place, Path]:
    way = str(request.param)
    if "ssh" in way or "su " in way:
        reached = (oneself_by if "oneself" in way else inhabitant_by)(request, held)
        return reached.place, reached.directory
    directory = directories.mktemp("far")
    folder = directory / "folder"
    folder.mkdir()
    busybox = way.startswith("busybox's")
    tools = busybox_tools(directory) if busybox else os.environ["PATH"]
    transport = Elsewhere(shell_called_sh(directory, "busybox" if busybox else way), tools, folder / "secret")
    held.callback(transport.close)
    return Place(transport, bytes(folder)), folder


@pytest.mark.parametrize("path", SHUT, ids=repr)
def test_what_is_not_allowed_is_refused_alike_whether_it_is_there(guarded: Guarded, path: str) -> None:
    before = facts_of(guarded.folder)
    for name, operation in {**FOLLOWING, **NAMING}.items():
        with pytest.raises(errors.PolicyDenied) as refusal:
            operation(guarded.place, guarded.path(path), guarded.blob)
        assert refusal.value.message == REFUSAL, name
    assert facts_of(guarded.folder) == before


@pytest.mark.parametrize("path", LEADING_OUT, ids=repr)
def test_a_link_that_leads_out_leads_nowhere(guarded: Guarded, path: str) -> None:
    before = facts_of(guarded.folder)
    for name, operation in FOLLOWING.items():
        with pytest.raises(errors.PolicyDenied) as refusal:
            operation(guarded.place, guarded.path(path), guarded.blob)
        assert refusal.value.message == REFUSAL, name
    assert files.stat_file(guarded.place, guarded.path(path), follow=False).type == "link"
    assert facts_of(guarded.folder) == before


@pytest.mark.parametrize("path", OPEN, ids=repr)
def test_what_is_allowed_is_reached_by_every_path(guarded: Guarded, path: str) -> None:
    assert content_of(guarded.place, guarded.path(path)) == b"content"
    assert files.stat_file(guarded.place, guarded.path(path), follow=True).size == len(b"content")
