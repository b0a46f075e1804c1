"""The secret sources of this installation: what a reference to one may say, and fetching by it.

A reference, ``{"from": {"source": NAME, …}}``, stands in data wherever a secret could. It is stored as it is; the
secret is fetched when a link logs in, and nowhere kept. Links that open at the same time share one fetch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from connmgr.errors import SecretUnavailable
from connmgr.fields import FROM, ValidationError, is_reference, map_secrets
from connmgr.plugin import Deadline, Schema, SecretSource

FETCH_SECONDS = 30.0
"""A source has this long, or as long as the link may take to open if that is less."""

MAX_BYTES = 64 * 1024
"""Longest secret that a source may return."""

_NO_MORE_THAN = f"more than {MAX_BYTES // 1024} KiB"


class SecretSources:
    """Secret sources by their names; safe to use from several threads."""

    def __init__(self, sources: Iterable[SecretSource] = ()) -> None:
        self._sources = {source.name: source for source in sources}
        self._lock = threading.Lock()
        self._under_way: dict[str, tuple[Deadline, Future[str]]] = {}

    def __iter__(self) -> Iterator[SecretSource]:
        return iter(self._sources.values())

    def checked(self, reference: Mapping[str, Any]) -> dict[str, Any]:
        """Return a reference as its source's schema loads it; raise ValidationError for an unknown or invalid one."""
        return self._checked(reference, may_refer=True)

    def _checked(self, reference: Mapping[str, Any], *, may_refer: bool) -> dict[str, Any]:
        def inner(secret: Any) -> Any:
            if not is_reference(secret):
                return secret
            if not may_refer:
                raise ValidationError(
                    "A reference within a reference cannot hold another one: keep this secret in the vault."
                )
            return self._checked(secret, may_refer=False)

        source, members = self._parts(reference)
        try:
            loaded = map_secrets(source.schema(), source.schema().load(members), inner)
        except ValidationError as error:
            raise ValidationError({FROM: error.messages}) from None
        return {FROM: {"source": source.name, **loaded}}

    def loaded(self, schema: Schema, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``data`` as ``schema`` loads it, with its references checked; raise ValidationError as both do."""
        return map_secrets(
            schema, schema.load(data), lambda value: self.checked(value) if is_reference(value) else value
        )

    def inside(self, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that applies ``change`` to a secret, or to the secrets within a reference to one."""

        def changed(secret: Any) -> Any:
            return self.mapped(secret, changed) if is_reference(secret) else change(secret)

        return changed

    def plain(self, secret: Any, deadline: Deadline, unseal: Callable[[Mapping[str, Any]], str]) -> str:
        """Return a stored secret: fetched, opened by ``unseal``, or as it is; raises as both do."""
        if is_reference(secret):
            return self.fetch(secret, deadline, lambda inner: self.plain(inner, deadline, unseal))
        return secret if isinstance(secret, str) else unseal(secret)

    def mapped(self, reference: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
        """Return a checked reference with ``change`` applied to each secret within, such as a token for a server."""
        source, members = self._parts(reference)
        return {FROM: {"source": source.name, **map_secrets(source.schema(), members, change)}}

    def fetch(self, reference: Mapping[str, Any], deadline: Deadline, unseal: Callable[[Any], str]) -> str:
        """Return the secret of a stored reference; ``unseal`` opens the secrets within.

        :raises SecretUnavailable: it could not be fetched, or not before ``deadline``.
        :raises connmgr.errors.SecretLocked: ``unseal``, which is called for every caller, may not open a secret.
        """
        try:
            source, _ = self._parts(reference)
        except ValidationError as error:
            raise SecretUnavailable(f"{error.messages[0]} Install the plugin that has it.") from None
        plain = self.mapped(reference, unseal)[FROM]
        del plain["source"]
        deadline, key = deadline.within(FETCH_SECONDS), json.dumps(reference, sort_keys=True)
        while True:
            with self._lock:
                other = self._under_way.get(key)
                if other is None:
                    fetching: Future[str] = Future()
                    self._under_way[key] = (deadline, fetching)
            if other is None:
                return self._lead(source, plain, deadline, key, fetching)
            try:
                return other[1].result(deadline.left())
            except NotYet:
                raise _late(source.name) from None
            except SecretUnavailable as error:
                # Who fetched had less time, so the next one fetches again.
                if not other[0].passed or deadline.passed:
                    raise _again(error) from None

    def _lead(
        self, source: SecretSource, plain: Mapping[str, Any], deadline: Deadline, key: str, fetching: Future[str]
    ) -> str:
        """Fetch, for all who wait for ``fetching``."""
        try:
            secret = _fetched(source, plain, deadline)
        except BaseException as error:
            self._done(key)
            # A copy, because whoever gets an error adds the name of its own connection.
            fetching.set_exception(_again(error) if isinstance(error, SecretUnavailable) else error)
            raise
        # First removed, so that who comes now fetches anew and nothing lasts.
        self._done(key)
        fetching.set_result(secret)
        return secret

    def _done(self, key: str) -> None:
        with self._lock:
            del self._under_way[key]

    def _parts(self, reference: Mapping[str, Any]) -> tuple[SecretSource, dict[str, Any]]:
        members = dict(reference[FROM])
        name = members.pop("source")
        if name not in self._sources:
            raise ValidationError(f"Unknown secret source: {name} (installed: {', '.join(sorted(self._sources))}).")
        return self._sources[name], members


def _fetched(source: SecretSource, plain: Mapping[str, Any], deadline: Deadline) -> str:
    try:
        secret = source.fetch(plain, deadline)
    except SecretUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's own, whose text could have the secret
        raise SecretUnavailable(f"The secret source {source.name} failed ({type(error).__name__}).") from None
    if deadline.passed:
        raise _late(source.name)
    problem = _problem(secret)
    if problem is not None:
        raise SecretUnavailable(f"The secret source {source.name} returned {problem}.")
    return secret


def _problem(secret: object) -> str | None:
    if not isinstance(secret, str):
        return "something that is not a text"
    if not secret:
        return "nothing"
    if "\0" in secret:
        return "a NUL character, which no password has"
    return _NO_MORE_THAN if len(secret.encode()) > MAX_BYTES else None


def _late(name: str) -> SecretUnavailable:
    return SecretUnavailable(f"The secret source {name} did not answer in time.")


def _again(error: SecretUnavailable) -> SecretUnavailable:
    """Return the error for another caller, who may add to it."""
    copy = SecretUnavailable(error.message)
    copy.for_tokens = error.for_tokens
    return copy
