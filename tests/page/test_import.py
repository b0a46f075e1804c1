"""What `connmgr export` writes, read back by the page: each text as it was, and connections after a preview."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connmgr.cli.declarative.document import categories, document_of, dump
from connmgr.cli.declarative.plan import Stored
from tests.daemon import Daemon
from tests.page.axe import hindrances

if TYPE_CHECKING:
    from playwright.sync_api import Route

    from tests.page.conftest import Visit

pytestmark = pytest.mark.needs("chromium")

TEXTS = [
    *(
        "",
        " ",
        "yes",
        "No",
        "null",
        "~",
        "12",
        "1.5e3",
        "- x",
        "a: b",
        "a #b",
        "it's",
        '"',
        "'",
        "{x}",
        "[x",
        "&x",
        "*x",
    ),
    *("é\x07", "two\nlines", "two\n\n  lines \n", "\ttab", "back\\slash", "x " * 90, "'\"\\ " * 60, "ü " * 80 + "\x85"),
    *("\u2028", "😀", "constructor", "__proto__", "# no", "end:", "a\\", "? x", "2001-01-01", "=", "<<", "x: y" * 60),
]


def test_every_text_of_an_export_is_read_as_it_was(daemon: Daemon, visit: Visit) -> None:
    page = visit().opened(daemon)
    document = {
        "list": TEXTS,
        "under": [{"a": one, "b": [one]} for one in TEXTS],
        "numbers": [1, -2.5, True, None, {}, []],
    }
    parse = "async text => JSON.stringify((await import('/page/views/hub-add.js')).parse(text))"
    assert json.loads(page.evaluate(parse, dump(document))) == document
    for bad in ("a: |\n  text", "a: [1, 2]", "a: &x 1", "a: 1\n  b: 2\n c: 3", "a: 'open", "no key"):
        said = page.evaluate(f"text => ({parse})(text).then(() => '', error => error.message)", bad)
        assert said.endswith("connmgr apply -f reads all of YAML."), bad


def test_an_export_is_previewed_and_imported(clean_daemon: Daemon, visit: Visit, tmp_path: Path) -> None:
    client = clean_daemon.client
    gate = {"type": "ssh", "host": "gate.example", "user": "me", "password": "s3cret"}
    one = client.connection.add("gate <1>", gate, labels={"env": "12"})
    client.connection.add("inner", {"type": "ssh", "host": "10.0.0.7", "port": 2222, "gateway": one})
    client.connection.add("root", {"type": "shellEnvironment", "host": one, "commands": ["export A=1\nexport B=2"]})
    client.post("/connection/apply", categories=[["empty", "inside"]])
    before = document_of(Stored(client), categories(client))
    file = tmp_path / "vault.yaml"
    file.write_text(dump(before))
    client.post("/connection/apply", remove=[one])
    page = visit().opened(clean_daemon, "#/hub")
    page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Or from a file").set_input_files(file)
    dialog.get_by_text("3 connections to add; 1 name is there already").wait_for()
    rows = [row.inner_text().split("\t") for row in dialog.get_by_role("row").all()][1:]
    assert ["default/gate <1>", "gate.example", "me", "", "", "new, without its password"] in rows
    assert ["default/inner", "10.0.0.7", "", "2222", "gate <1>", "new"] in rows
    assert hindrances(page) == []
    dialog.get_by_role("button", name="Add 3 connections").click()
    page.get_by_text("3 connections are added. 1 lacks secrets").wait_for()
    after = document_of(Stored(client), categories(client))
    assert without_secrets(after) == without_secrets(before)
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("treegrid").get_by_text("gate <1>", exact=True).wait_for(state="detached")


def test_an_import_that_is_opened_early_waits_for_what_is_stored(clean_daemon: Daemon, visit: Visit) -> None:
    clean_daemon.client.connection.add("web1", {"type": "ssh", "host": "web1.example"})
    visitor, held = visit(), list["Route"]()
    visitor.context.route("**/connection/query", lambda route: held.append(route))
    page = visitor.opened(clean_daemon, "#/hub")
    page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("A list of machines").fill("web1\nweb2")
    dialog.get_by_role("button", name="Add").click()
    dialog.get_by_text("The connections are still being read").wait_for()
    for route in held:
        route.continue_()
    visitor.context.unroute("**/connection/query")
    dialog.get_by_text("1 connection to add; 1 name is there already").wait_for()
    dialog.get_by_role("button", name="Add 1 connection").click()
    page.get_by_text("1 connection is added.").wait_for()


def without_secrets(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: without_secrets(one) for name, one in document.items() if one != {"secret": "kept"}}
    return [without_secrets(one) for one in document] if isinstance(document, list) else document
