"""A token's path rules, through the daemon: they apply to the real path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.api.wire import LOCAL, send
from tests.daemon import Daemon
from tests.rights.wire import Holder, create


@dataclass
class Tree:
    """A directory of the local machine: ``open`` is allowed, ``closed`` is not."""

    root: Path
    daemon: Daemon

    def __truediv__(self, name: str) -> str:
        return str(self.root / name)

    def holder(self, *scopes: str, rules: list[dict[str, Any]] | None = None) -> Holder:
        allowed = [{"effect": "allow", "path": f"{self.root}/open/**"}] if rules is None else rules
        holder = create(self.daemon, *(scopes or ("fs.read", "fs.write")), rules=allowed)
        holder.ok("/shell/start", connection=LOCAL)
        return holder


@pytest.fixture
def tree(daemon: Daemon, tmp_path: Path) -> Iterator[Tree]:
    root = tmp_path.resolve()
    (root / "open" / "below").mkdir(parents=True)
    (root / "closed").mkdir()
    (root / "open" / "file").write_text("open")
    (root / "closed" / "secret").write_text("secret")
    (root / "open" / "link").symlink_to(root / "closed" / "secret")
    (root / "open" / "directory").symlink_to(root / "closed")
    return Tree(root, daemon)


def blob(holder: Holder, content: bytes) -> str:
    headers = {"Authorization": f"Bearer {holder.secret}", "Content-Type": "application/octet-stream"}
    return str(send(holder.url, "/fs/blob", content, headers).json["blob"])


WAYS_OUT = [
    "closed/secret",
    "open/link",
    "open/directory/secret",
    "open/../closed/secret",
    "open/below/../../closed/secret",
]


@pytest.mark.parametrize("path", WAYS_OUT)
def test_nothing_outside_the_allowed_tree_is_read(tree: Tree, path: str) -> None:
    holder = tree.holder()
    # The link is inside, its target is not.
    for missing in ("", *(["-not-there"] if path != "open/link" else [])):
        answer = holder.send("/fs/read", connection=LOCAL, path=tree / (path + missing))
        assert (answer.status, answer.code, answer.json["rule"]) == (403, "policy_denied", None)
        assert b"secret" not in answer.body.replace(path.encode(), b"")
    for endpoint in ("/fs/stat", "/fs/checksum", "/fs/archive"):
        assert holder.refused(endpoint, connection=LOCAL, path=tree / path) == "policy_denied", endpoint
    assert (
        send(
            holder.url,
            "/fs/read",
            {"connection": LOCAL, "path": tree / "open/file"},
            {"Authorization": f"Bearer {holder.secret}"},
        ).body
        == b"open"
    )


@pytest.mark.parametrize("path", WAYS_OUT)
def test_nothing_outside_the_allowed_tree_is_written_moved_or_removed(tree: Tree, path: str) -> None:
    holder = tree.holder()
    content = blob(holder, b"changed")
    assert holder.refused("/fs/write", connection=LOCAL, path=tree / path, blob=content) == "policy_denied"
    moved = {"source": tree / path, "target": tree / "open/new"}
    back = {"source": tree / "open/file", "target": tree / (path + "-new")}
    if path != "open/link":
        assert holder.refused("/fs/mkdir", connection=LOCAL, path=tree / (path + "-new")) == "policy_denied"
        assert holder.refused("/fs/move", connection=LOCAL, **moved) == "policy_denied"
        assert holder.refused("/fs/remove", connection=LOCAL, path=tree / path) == "policy_denied"
        assert holder.refused("/fs/move", connection=LOCAL, **back) == "policy_denied"
    assert (tree.root / "closed" / "secret").read_text() == "secret"
    assert sorted(one.name for one in (tree.root / "closed").iterdir()) == ["secret"]


def test_files_inside_the_allowed_tree_are_read_and_written(tree: Tree) -> None:
    holder = tree.holder()
    holder.ok("/fs/write", connection=LOCAL, path=tree / "open/new", blob=blob(holder, b"new"))
    assert (tree.root / "open" / "new").read_text() == "new"
    holder.ok("/fs/mkdir", connection=LOCAL, path=tree / "open/made")
    holder.ok("/fs/move", connection=LOCAL, source=tree / "open/new", target=tree / "open/made/moved")
    holder.ok("/fs/remove", connection=LOCAL, path=tree / "open/made", recursive=True)
    listed = holder.ok("/fs/list", connection=LOCAL, path=tree / "open")
    assert {"file", "below"} <= {one["name"] for one in listed["entries"]}
    assert holder.refused("/fs/list", connection=LOCAL, path=str(tree.root)) == "policy_denied"
    assert holder.refused("/fs/script", connection=LOCAL, blob=blob(holder, b"#!/bin/sh\n")) == "policy_denied"


def test_rules_may_differ_for_reading_and_writing(tree: Tree) -> None:
    rules = [
        {"effect": "deny", "name": "no secrets", "path": "/**/secret"},
        {"effect": "allow", "path": f"{tree.root}/**", "action": "fs.read"},
        {"effect": "allow", "path": f"{tree.root}/open/**", "action": "fs.write"},
    ]
    holder = tree.holder(rules=rules)
    (tree.root / "closed" / "other").write_text("other")
    assert holder.ok("/fs/stat", connection=LOCAL, path=tree / "closed/other")
    written = {"path": tree / "closed/other", "blob": blob(holder, b"x")}
    assert holder.refused("/fs/write", connection=LOCAL, **written) == "policy_denied"
    answer = holder.send("/fs/read", connection=LOCAL, path=tree / "closed/secret")
    assert answer.json["rule"] == "no secrets"


def test_a_write_waits_for_its_approval(tree: Tree) -> None:
    holder = tree.holder(rules=[{"effect": "ask", "path": f"{tree.root}/open/**"}])
    path = tree / "open/file"

    def write(content: bytes) -> Any:
        return holder.send("/fs/write", connection=LOCAL, path=path, blob=blob(holder, content))

    asked = write(b"approved")
    assert (asked.status, asked.code) == (403, "approval_required")
    [waiting] = [
        one
        for one in tree.daemon.client.post("/approval/query")["approvals"]
        if one["approval"] == asked.json["approval"]
    ]
    assert waiting["asked"]["path"] == waiting["asked"]["realPath"] == path
    tree.daemon.client.post("/approval/decide", approval=asked.json["approval"], decision="once")
    assert write(b"something else").code == "approval_required"
    assert write(b"approved").status == 200
    assert write(b"approved").code == "approval_required", "it was used up"
    assert Path(path).read_text() == "approved"


def test_path_rules_do_not_limit_the_owner_or_a_token_without_them(tree: Tree) -> None:
    holder = tree.holder(rules=[])
    assert holder.ok("/fs/stat", connection=LOCAL, path=tree / "closed/secret")
    assert tree.daemon.client.post("/fs/stat", connection=LOCAL, path=tree / "open/link")
