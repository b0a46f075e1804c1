"""The declaration of an endpoint's action, by which it is decided which tokens may use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connmgr.rights.grant import Grant
from connmgr.rights.visibility import Visibility

Limit = Callable[[Visibility, Grant, Mapping[str, Any]], None]
"""Raises :class:`connmgr.errors.ScopeDenied` or PolicyDenied if a token may not have a loaded request carried out.

Called when the token has the scopes of the action, and sees everything that the request names.
"""


@dataclass(frozen=True)
class Action:
    """An action, as its endpoint declares it."""

    name: str
    """Such as ``shell.exec``; used in the audit log, for plugins, and in :mod:`connmgr.rights.scopes`."""

    runs: bool = False
    """Whether the request says what to run, which needs a scope too and is subject to the rules over commands."""

    takes_input: bool = False
    """Whether the program that runs reads input that the caller sends later."""

    in_shell: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Whether what runs begins with the directory and the variables of a shell."""

    on_terminal: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Whether what runs gets a terminal."""

    limits: Sequence[Limit] = ()
    """Further conditions of a request, in this order."""

    paths: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The fields of a request that are paths, each with the rules that apply to it: ``fs.read``, ``fs.write``.

    Used for dry runs only: when a request is carried out, the far side reports the real paths.
    """

    whole: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Whether a request covers everything below its paths that are directories; see :func:`always`."""


def always(_request: Mapping[str, Any]) -> bool:
    """Return True for any request."""
    return True
