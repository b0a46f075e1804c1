"""What an endpoint does, as far as it decides which tokens may use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connmgr.rights.grant import Grant
from connmgr.rights.sight import Sight

Limit = Callable[[Sight, Grant, Mapping[str, Any]], None]
"""Raises :class:`connmgr.errors.ScopeDenied` or PolicyDenied where a token may not have a loaded request carried out.

It is asked when the token has the scopes of the action, and sees all that the request names.
"""


@dataclass(frozen=True)
class Action:
    """An action, as the endpoint declares it that does it."""

    name: str
    """As ``shell.exec``: in the audit trail, for plugins, and on the page of scopes (:mod:`connmgr.rights.scopes`)."""

    runs: bool = False
    """Whether a request tells what is to be run: that needs a scope too, and the rules over commands hold for it."""

    takes_input: bool = False
    """Whether what is run reads what the caller sends it afterwards."""

    limits: Sequence[Limit] = ()
    """What else has to hold for a request, in this order."""

    paths: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The fields of a request that are paths, and as what (``fs.read``, ``fs.write``) rules over paths look at each.

    It is for what is foretold: when a request is carried out, the far side tells what it is about.
    """

    whole: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Whether a request is about all that is below its paths, where these are directories; see :func:`always`."""


def always(_request: Mapping[str, Any]) -> bool:
    """Return True, whatever is asked."""
    return True
