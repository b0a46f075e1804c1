"""The complete suite, for types that open a transport and for wrappers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from connmgr.errors import OperationError
from connmgr.plugin import AnyConnectionType, Reference, Transport, Wrapper
from connmgr.testing.channel import ChannelConformance, assert_leaves_nothing
from connmgr.testing.link import WAIT_SECONDS, connect, local, run, script
from connmgr.testing.schema import SchemaConformance, secrets_of
from connmgr.testing.session import SessionConformance

Connect = Callable[[], Transport]


class _Conformance(SchemaConformance, ChannelConformance, SessionConformance):
    @pytest.fixture
    def via(self, kind: AnyConnectionType, data: Mapping[str, Any]) -> Iterator[Transport | None]:
        """The transport for the reference in ``data``: this machine, unless a subclass opens another."""
        if kind.via is None or data.get(kind.via) is None:
            yield None
            return
        transport = local()
        yield transport
        transport.close()

    @pytest.fixture
    def connected(
        self, kind: AnyConnectionType, data: Mapping[str, Any], via: Transport | None, loaded: dict[str, Any]
    ) -> Connect:
        """A function that opens another link."""
        return lambda: connect(kind, data, via)

    @pytest.fixture
    def transport(self, connected: Connect) -> Iterator[Transport]:
        """The link that most tests share."""
        transport = connected()
        yield transport
        transport.close()


class ConnectionConformance(_Conformance):
    """Checks everything that the engine expects of a connection type with a transport.

    Fixtures of the subclass: ``kind`` and ``data``; ``via`` if the connection does not run over this machine.
    """

    def test_closing_the_transport_wakes_its_channels(self, transport: Transport) -> None:
        channel = transport.open_channel(script("sleep 120"), timeout=WAIT_SECONDS)
        transport.close()
        with pytest.raises((EOFError, OSError)):
            channel.recv(WAIT_SECONDS)
        channel.close()

    def test_a_closed_transport_opens_nothing(self, transport: Transport) -> None:
        transport.close()
        transport.close()
        with pytest.raises(OperationError):
            transport.open_channel(script("exit"), timeout=WAIT_SECONDS)

    def test_closed_transports_leave_nothing_behind(self, connected: Connect) -> None:
        def use() -> None:
            transport = connected()
            transport.open_channel(script("sleep 120"), timeout=WAIT_SECONDS)
            transport.close()

        assert_leaves_nothing(use)


class WrapperConformance(_Conformance):
    """Checks everything that the engine expects of a wrapper.

    Fixtures of the subclass: ``kind`` and ``data``; ``via`` if it does not run over this machine.
    """

    PROMPT = "connmgr-test-prompt:"

    def test_it_runs_over_a_connection_that_must_be_named(self, kind: AnyConnectionType) -> None:
        assert kind.via is not None, "a wrapper says in `via` which field names the connection that it runs in"
        field = kind.schema().fields[kind.via]
        assert isinstance(field, Reference)
        assert field.required

    def test_no_secret_is_in_the_argv(self, kind: Wrapper, loaded: dict[str, Any]) -> None:
        for data in (loaded, kind.schema().load(kind.example)):
            words = kind.wrap(["printf", "%s", "a b"], data, self.PROMPT, pty=False)
            assert all(isinstance(word, str) for word in words)
            assert not [secret for secret in secrets_of(kind, data) if any(secret in word for word in words)]

    def test_the_argv_that_it_is_given_is_not_changed(self, kind: Wrapper, loaded: dict[str, Any]) -> None:
        argv = ["printf", "%s", "a b"]
        kind.wrap(argv, loaded, self.PROMPT, pty=False)
        assert argv == ["printf", "%s", "a b"]
        assert kind.wrap(tuple(argv), loaded, self.PROMPT, pty=False) == kind.wrap(argv, loaded, self.PROMPT, pty=False)

    def test_it_runs_the_argv_and_nothing_else(self, transport: Transport) -> None:
        assert run(transport, ["printf", "%s", "only this"]).stdout == b"only this"
