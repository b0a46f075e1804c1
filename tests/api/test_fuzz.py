"""Valid and invalid requests generated from the published description get only documented answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import requests

from tests.api.wire import bearer
from tests.daemon import Daemon

if TYPE_CHECKING:
    from tests.api.made_up import Description

GROUPS = [
    "handshake",
    "category",
    "connection",
    "hostkey",
    "shell",
    "terminal",
    "tunnel",
    "multiplex",
    "job",
    "fs",
    "secret",
    "approval",
    "audit",
    "command",
    "token",
    "vault",
    "daemon",
    "event",
    "fact",
    "recording",
    "run",
    "schedule",
    "web",
    "ca",
    "inventory",
    "undo",
]
EXAMPLES = 8
BROKEN_EXAMPLES = 5


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A separate daemon, since generated requests change its vault and fail many handshakes."""
    daemon = Daemon(tmp_path_factory.mktemp("fuzzed"))
    yield daemon
    assert daemon.running
    assert "Unforeseen" not in daemon.stderr()
    assert "Traceback" not in daemon.stderr()
    daemon.stop()


@pytest.fixture(scope="module")
def description(fuzzed: Daemon) -> Iterator[Description]:
    from tests.api.made_up import Description

    with requests.Session() as session:
        session.headers.update(bearer(fuzzed))
        yield Description(fuzzed.url, session)


@pytest.mark.parametrize("group", GROUPS)
def test_made_up_requests_get_announced_answers(description: Description, group: str) -> None:
    # Each passphrase costs half a second by design.
    examples = 3 if group == "vault" else EXAMPLES
    for operation in description.of_group(group):
        description.try_valid(operation, examples)


@pytest.mark.parametrize("group", GROUPS)
def test_broken_requests_are_refused(description: Description, group: str) -> None:
    for operation in description.of_group(group):
        description.try_broken(operation, BROKEN_EXAMPLES)


def test_every_group_is_tried(description: Description) -> None:
    from tests.api.made_up import STOPS_THE_DAEMON

    paths = {each.path for each in description.operations}
    tried = {each.path for group in GROUPS for each in description.of_group(group)}
    assert paths - tried == {STOPS_THE_DAEMON}
