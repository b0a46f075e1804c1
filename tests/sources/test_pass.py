"""The secret source pass, with the real program and gpg in a private home."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.errors import SecretUnavailable
from connmgr.plugin import Deadline
from connmgr_sources.stores import PassSource
from tests.deadlines import DEADLINE_SECONDS
from tests.sources.stores import pass_store, run

pytestmark = pytest.mark.needs("pass", "gpg")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with pass_store() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield Path(environment["PASSWORD_STORE_DIR"])


def fetched(**members: object) -> str:
    source = PassSource()
    return source.fetch(source.schema().load(members), Deadline(DEADLINE_SECONDS))


def test_an_entry_is_read_by_its_lines(store: Path) -> None:
    run("pass", "insert", "--multiline", "servers/web1", stdin="hunter2\nuser: deploy\n")
    assert (store / "servers" / "web1.gpg").exists()
    assert fetched(entry="servers/web1") == "hunter2"
    assert fetched(entry="servers/web1", line=2) == "user: deploy"
    assert fetched(entry="servers/web1", line=None) == "hunter2\nuser: deploy"
    with pytest.raises(SecretUnavailable, match="the entry has no line 3"):
        fetched(entry="servers/web1", line=3)


def test_what_fails_is_said_in_the_words_of_pass(store: Path) -> None:
    with pytest.raises(SecretUnavailable, match=r"exited with 1: Error: nowhere is not in the password store\."):
        fetched(entry="nowhere")
    run("pass", "insert", "--multiline", "web1", stdin="hunter2\n")
    # Without the private key the entry cannot be opened, and nothing asks for one.
    run("gpgconf", "--kill", "all")
    shutil.rmtree(Path(os.environ["GNUPGHOME"]) / "private-keys-v1.d")
    with pytest.raises(SecretUnavailable, match="The secret source pass failed") as failure:
        fetched(entry="web1")
    assert "hunter2" not in failure.value.message
