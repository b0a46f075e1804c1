"""Files in the page: moved in both directions, edited with care, as another user, whatever they are called."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes

import pytest

from connmgr.client import LOCAL_MACHINE
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.jobs.world import SSH, World, world

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

    from tests.page.browser import Visitor

pytestmark = pytest.mark.needs("chromium", "libatomic")

LARGE = 5 << 26
"""Bytes of a file that is larger than any body, piece or buffer."""

PIECE = 1 << 18


def _view(path: Path, connection: str = LOCAL_MACHINE, query: str = "") -> str:
    return f"#/files/{connection}{quote_from_bytes(os.fsencode(path))}{query}"


def _row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def _select(page: Page, name: str) -> None:
    page.get_by_role("checkbox", name=f"Select {name}", exact=True).check()


def _button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


@contextmanager
def _dialog(page: Page, button: str) -> Iterator[Locator]:
    """Yield the dialog that opens, and press its ``button``."""
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    yield dialog
    dialog.get_by_role("button", name=button, exact=True).click()
    dialog.wait_for(state="hidden")


def test_a_large_file_goes_up_and_comes_down(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    # Mostly holes, which take no room here, and random bytes where a mistake would move them.
    with (here / "large").open("wb") as file:
        for place in (0, LARGE // 2 - 12345, LARGE - (1 << 20)):
            file.seek(place)
            file.write(os.urandom(1 << 20))
    page = visitor.opened(daemon, _view(there))
    page.get_by_text("The directory is empty").wait_for()
    page.get_by_label("Files to upload").set_input_files(here / "large")
    page.get_by_role("list", name="Uploads").get_by_role("progressbar").wait_for()
    page.get_by_text("336 MB uploaded").wait_for()
    _check_equal(here / "large", there / "large")
    _select(page, "large")
    with page.expect_download() as download:
        _button(page, "Download").click()
    assert download.value.suggested_filename == "large"
    _check_equal(here / "large", Path(download.value.path()))
    download.value.delete()


def _check_equal(one: Path, other: Path) -> None:
    """Compare two files piece by piece: a digest of a gigabyte takes three times as long."""
    assert one.stat().st_size == other.stat().st_size
    with one.open("rb", buffering=0) as expected, other.open("rb", buffering=0) as found:
        for place in range(0, LARGE, PIECE):
            is_equal = expected.read(PIECE) == found.read(PIECE)
            assert is_equal, f"the files differ behind byte {place}"


def test_a_file_that_is_there_is_replaced_after_a_question(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    page = visitor.opened(daemon, _view(tmp_path))
    _row(page, "file").wait_for()
    given = {"name": "file", "mimeType": "text/plain", "buffer": b"new"}
    page.get_by_label("Files to upload").set_input_files(given)
    with _dialog(page, "Cancel"):
        assert (tmp_path / "file").read_text() == "old"
    page.get_by_label("Files to upload").set_input_files(given)
    with _dialog(page, "Replace"):
        pass
    page.get_by_text("3 B uploaded").wait_for()
    assert (tmp_path / "file").read_text() == "new"


DROP = """names => {
    const transfer = new DataTransfer();
    for (const name of names) transfer.items.add(new File(["content of " + name], name));
    const place = document.querySelector(".files");
    place.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


def test_dropped_files_are_uploaded(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.opened(daemon, _view(tmp_path))
    page.get_by_text("The directory is empty").wait_for()
    page.evaluate(DROP, ["one", "two <b>"])
    _row(page, "two <b>").wait_for()
    _row(page, "one").wait_for()
    assert (tmp_path / "two <b>").read_text() == "content of two <b>"


ARCHIVE = """async members => {
    const { archiveOf } = await import("/page/views/files-transfer.js");
    const file = (path, text) => text === null ? null : new File([text], path);
    const blob = archiveOf(members.map(([path, text]) => ({ path, file: file(path, text) })));
    return [...new Uint8Array(await blob.arrayBuffer())];
}"""


def test_a_dropped_directory_is_a_sound_archive(daemon: Daemon, visitor: Visitor) -> None:
    page = visitor.opened(daemon)
    long = "d/" + "ä" * 120
    members = [["d", None], ["d/empty", ""], ["d/file", "x" * 1000], [long, "long"]]
    with tarfile.open(fileobj=io.BytesIO(bytes(page.evaluate(ARCHIVE, members)))) as archive:
        found = {one.name: archive.extractfile(one).read() if one.isfile() else None for one in archive}  # type: ignore[union-attr]
    assert found == {"d": None, "d/empty": b"", "d/file": b"x" * 1000, long: b"long"}


def test_directories_come_down_as_archives(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "inside").write_text("x")
    (tmp_path / "b").write_text("y")
    (tmp_path / "c").write_text("z")
    page = visitor.opened(daemon, _view(tmp_path))
    _select(page, "a")
    _select(page, "b")
    with page.expect_download() as download:
        _button(page, "Download").click()
    with tarfile.open(download.value.path()) as archive:
        assert sorted(one.name for one in archive if one.isfile()) == ["./a/inside", "./b"]


def test_an_edit_is_saved_only_over_what_was_read(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(b"one\r\ntwo\r\n")
    page = visitor.opened(daemon, _view(tmp_path))
    page.get_by_role("link", name="notes.txt").click()
    editor = page.get_by_role("textbox", name="Content")
    editor.fill("one\ntwo\nthree\n")
    page.keyboard.press("Control+s")
    page.get_by_text("is saved").wait_for()
    assert file.read_bytes() == b"one\r\ntwo\r\nthree\r\n"
    file.write_bytes(b"somebody else\r\n")
    editor.fill("mine\n")
    page.keyboard.press("Control+s")
    with _dialog(page, "Cancel") as dialog:
        dialog.get_by_text("Somebody changed this file meanwhile").wait_for()
    assert file.read_bytes() == b"somebody else\r\n"
    assert editor.input_value() == "mine\n"
    page.keyboard.press("Control+s")
    with _dialog(page, "Replace theirs"):
        pass
    eventually(lambda: file.read_bytes() == b"mine\r\n", "the file has the content of the editor")
    visitor.forgive("400")


def test_an_edit_that_was_left_is_gone_on_with(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("theirs\n")
    page = visitor.opened(daemon, _view(file, query="?edit"))
    editor = page.get_by_role("textbox", name="Content")
    editor.fill("mine\n")
    page.get_by_role("link", name="Close").click()
    _row(page, "notes.txt").wait_for()
    page.get_by_text("notes.txt was left without saving.").wait_for()
    assert file.read_text() == "theirs\n"
    _button(page, "Undo").click()
    eventually(editor.input_value, "what was typed is back", holds="mine\n".__eq__)
    _button(page, "Save").click()
    eventually(file.read_text, "it is saved", holds="mine\n".__eq__)
    page.get_by_text("is saved").wait_for()
    page.get_by_role("link", name="Close").click()
    _row(page, "notes.txt").wait_for()
    assert page.get_by_text("was left without saving").count() == 0


def test_a_listing_that_comes_late_replaces_no_other(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    for name in ("slow", "quick"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of {name}").touch()
    page = visitor.opened(daemon, _view(tmp_path))
    held: list[Route] = []

    def listed(route: Route) -> None:
        if "slow" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.route("**/fs/list", listed)
    page.get_by_role("link", name="slow/").click()
    # A look at the page, since what it asks for is told while it answers.
    eventually(lambda: page.title() and len(held), "the slow one is asked for", holds=(1).__eq__)
    page.evaluate("view => { location.hash = view; }", _view(tmp_path / "quick"))
    _row(page, "of quick").wait_for()
    with page.expect_response("**/fs/list"):
        held[0].continue_()
    visitor.settle(page)
    assert _row(page, "of quick").is_visible()
    assert page.get_by_text("of slow").count() == 0


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\0b", b"a\r\nb\nc"])
def test_what_an_editor_would_damage_is_offered_for_download(
    daemon: Daemon, visitor: Visitor, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)
    page = visitor.opened(daemon, _view(tmp_path / "file", query="?edit"))
    with page.expect_download() as download:
        _button(page, "Download").click()
    assert Path(download.value.path()).read_bytes() == content


def test_names_of_any_bytes(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    names = [b"<img src=x onerror=alert(1)>", b"clear\x1b[2J\nscreen", b"not utf-8 \xff", "right\u202egnp.exe".encode()]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_text("x")
    page = visitor.opened(daemon, _view(tmp_path))
    _row(page, "<img src=x onerror=alert(1)>").wait_for()
    for box in page.locator(".entries .row input[type=checkbox]").all():
        box.check()
    with page.expect_download() as download:
        _button(page, "Download").click()
    with tarfile.open(download.value.path()) as archive:
        assert sorted(os.fsencode(one.name) for one in archive if one.isfile()) == sorted(
            b"./" + name for name in names
        )
    _button(page, "Remove").click()
    with _dialog(page, "Remove") as dialog:
        assert "onerror" in dialog.inner_text()
        assert "\x1b" not in dialog.inner_text()
        assert "\u202e" not in dialog.inner_text()
    page.get_by_text("The directory is empty").wait_for()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_ten_thousand_draws_what_is_seen(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    for number in range(10_000):
        (tmp_path / f"file {number}").touch()
    page = visitor.opened(daemon, _view(tmp_path))
    _row(page, "file 0").wait_for()
    assert page.locator(".entries .row").count() < 100
    page.get_by_role("grid").focus()
    page.keyboard.press("End")
    _row(page, "file 9999").wait_for()


def test_a_mode_is_changed_and_a_name_and_back(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_text("x")
    file.chmod(0o644)
    page = visitor.opened(daemon, _view(tmp_path))
    _select(page, "script")
    _button(page, "Permissions").click()
    with _dialog(page, "Change") as dialog:
        dialog.get_by_label("Mode").fill("755")
    _row(page, "script").get_by_text("-rwxr-xr-x").wait_for()
    assert file.stat().st_mode & 0o777 == 0o755
    _button(page, "Undo").click()
    _row(page, "script").get_by_text("-rw-r--r--").wait_for()
    assert file.stat().st_mode & 0o777 == 0o644
    _button(page, "Rename").click()
    with _dialog(page, "Rename") as dialog:
        dialog.get_by_label("New name").fill("program")
    _row(page, "program").wait_for()
    _button(page, "Undo").wait_for()
    page.keyboard.press("z")
    _row(page, "script").wait_for()


def test_an_error_of_the_machine_is_said(daemon: Daemon, visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.opened(daemon, _view(tmp_path / "<b>nowhere"))
    page.get_by_role("alert").filter(has_text="<b>nowhere").wait_for()
    visitor.forgive("400")


@pytest.fixture(scope="module")
def running_world() -> Iterator[World]:
    with world() as running:
        yield running


@pytest.mark.needs("sshd", "machine", "sudo")
def test_a_file_of_roots_is_edited_as_root(running_world: World, visitor: Visitor, tmp_path: Path) -> None:
    connection = running_world.connection(SSH, "bash")
    tmp_path.chmod(0o755)
    file = tmp_path / "of-root"
    file.write_text("old\n")
    file.chmod(0o600)
    page = visitor.opened(running_world, _view(tmp_path, connection, "?as=root"))
    _row(page, "of-root").wait_for()
    page.get_by_role("link", name="of-root", exact=True).click()
    editor = page.get_by_role("textbox", name="Content")
    assert editor.input_value() == "old\n"
    editor.fill("new\n")
    _button(page, "Save").click()
    page.get_by_text("is saved").wait_for()
    assert (file.read_text(), file.stat().st_uid, file.stat().st_mode & 0o777) == ("new\n", os.getuid(), 0o600)
