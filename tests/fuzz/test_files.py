"""Files of strangers and damaged ones: each is read, or refused with one error that a person can read."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import strategies as st

from connmgr import paths
from connmgr.ansible_inventory import Lineage
from connmgr.audit.query import _entry
from connmgr.cli.declarative.document import _content
from connmgr.cli.declarative.imports import read
from connmgr.cli.exits import Failure
from tests.fuzz.rounds import fuzz

SCALARS = """
    a 1 0x 0o9 0b_ 1_0 .inf 2001-99-99 2001-01-01T99:00:00Z !!int !!float !!binary !!timestamp
    !vault !unsafe !!python/name:os
    all: hosts: vars: children: connmgr: connections: categories: *a &a <<: ? | > [ ] { } - , : # % @ ` ! ~ null yes
    "a 'b [web] [web:children] [web:vars] [:] web[1:3] web[a:z:2] web[9:1] [::1]:22 h:99999 ansible_port=x
    ansible_host="a b" x='
    $ANSIBLE_VAULT;
"""
TOKEN = st.one_of(
    st.sampled_from(SCALARS.split()),
    st.sampled_from(["\n", "\n  ", "\n    ", " ", "\t", "\0", "\ufeff"]),
    st.text(max_size=4),
)
TEXT = st.one_of(
    st.lists(TOKEN, max_size=25).map(" ".join),
    st.lists(TOKEN, max_size=25).map("".join),
    st.builds(
        lambda token, count: token * count,
        st.sampled_from(["[", '{"a":', "- ", "{", "a: &b [*b, "]),
        st.integers(1, 3000),
    ),
)
CONTENT = st.one_of(TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=40))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files") / "inventory.yml"


@fuzz(examples=35, content=CONTENT, suffix=st.sampled_from([".yml", ".ini", ""]))
def test_an_inventory_is_read_or_refused(path: Path, content: bytes, suffix: str) -> None:
    file = path.with_suffix(suffix)
    file.write_bytes(content)
    with suppress(Failure):
        inventory = read(file)
        lineage = Lineage(inventory)
        for host in inventory.hosts:
            lineage.variables(host)


class Named(BytesIO):
    name = "file"


@fuzz(examples=35, content=CONTENT)
def test_a_document_of_apply_is_read_or_refused(content: bytes) -> None:
    with suppress(Failure):
        _content(Named(content))


WHERE = st.one_of(
    CONTENT,
    st.builds(
        lambda url, pid, started: f'{{"url": {url}, "version": "1", "pid": {pid}, "started": {started}}}'.encode(),
        *(
            st.sampled_from(['"http://a"', "null", "1", "-1", "true", "1e999", "9" * 400, "[]", "NaN"])
            for _ in range(3)
        ),
    ),
)


@fuzz(examples=35, content=WHERE)
def test_the_file_of_a_daemon_is_read_or_refused(path: Path, content: bytes) -> None:
    file = path.with_name("daemon.json")
    file.write_bytes(content)
    file.chmod(0o600)
    with suppress(OSError):
        assert paths.read_daemon_file(file).pid > 0


@fuzz(examples=35, content=CONTENT)
def test_a_damaged_line_of_the_audit_log_is_passed_over(content: bytes) -> None:
    entry = _entry(content)
    assert entry is None or isinstance(entry["seq"], int)
