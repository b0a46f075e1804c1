"""A task whose request may wait without a thread; the application is called again later."""

from __future__ import annotations

from typing import Any

from waitress.task import WSGITask

from connmgr.api.account import CANCELLATION, PEER_UID
from connmgr.api.parking import TURNS, Parked
from connmgr.api.stream_endpoint import HAND_OVER
from connmgr.api.streaming import ROOM
from connmgr.daemon.parser import RequestParser


class ResumableTask(WSGITask):
    """One turn of a request; a turn that ends ``parked`` has sent nothing."""

    request: RequestParser  # type: ignore[assignment]

    @property
    def parked(self) -> Parked | None:
        """The event that the request waits for, if this turn gave no answer."""
        return self.request.turns.parked

    def build_response_header(self) -> bytes:
        if not self.request.is_whole:
            # Answered before the whole body came: the rest would be read as another request.
            self.set_close_on_finish()
            self.channel.rejected = True  # type: ignore[attr-defined]
        return bytes(super().build_response_header())

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        turns = self.request.turns
        if turns.parked is not None:
            turns.parked = None
            environ["wsgi.input"].seek(0)
        environ[TURNS] = turns
        environ[CANCELLATION] = self.channel.cancellation  # type: ignore[attr-defined]
        environ[ROOM] = self.channel.drained  # type: ignore[attr-defined]
        if self.channel.peer_uid is not None:  # type: ignore[attr-defined]
            environ[PEER_UID] = self.channel.peer_uid  # type: ignore[attr-defined]
        if self.channel.is_alone:  # type: ignore[attr-defined]
            environ[HAND_OVER] = self.channel.hand_over  # type: ignore[attr-defined]
        return environ
