"""How many logins are under way at a time, and how fast they begin."""

from __future__ import annotations

import threading
import time

import pytest

from connmgr.errors import ConnectTimeout
from connmgr.plugin import Deadline
from connmgr_ssh import places
from connmgr_ssh.places import LoginPlaces, network_of
from tests.deadlines import DEADLINE_SECONDS


def test_one_server_has_few_places_and_others_their_own() -> None:
    found, go, held = LoginPlaces(), threading.Event(), threading.Semaphore(0)

    def log_in() -> None:
        with found.taken("one", "network", Deadline(DEADLINE_SECONDS)):
            held.release()
            go.wait(DEADLINE_SECONDS)

    threads = [threading.Thread(target=log_in) for _ in range(places.AT_ONCE)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert held.acquire(timeout=DEADLINE_SECONDS)
    with (
        pytest.raises(ConnectTimeout, match=f"none of {places.AT_ONCE} places"),
        found.taken("one", "network", Deadline(0.05)),
    ):
        pass
    with found.taken("two", "network", Deadline(DEADLINE_SECONDS)):
        pass
    go.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    with found.taken("one", "network", Deadline(DEADLINE_SECONDS)):
        pass
    assert found._servers == {}


def test_a_network_has_a_pace_after_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [1000.0], list[float]()
    monkeypatch.setattr(places.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(places.time, "sleep", slept.append)
    found = LoginPlaces()
    for number in range(places.BURST + 10):
        with found.taken(number, "10.0.0.0/24", Deadline(60)):
            pass
    # The clock stands still: those after the burst wait for their turns, one after the other.
    assert len(slept) == 10
    assert slept == pytest.approx([(number + 1) / places.A_SECOND for number in range(10)])
    with found.taken("else", "10.0.1.0/24", Deadline(60)):
        assert len(slept) == 10
    now[0] += 60
    with found.taken("later", "10.0.0.0/24", Deadline(60)):
        assert len(slept) == 10


def test_a_turn_after_the_deadline_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "BURST", 0)
    monkeypatch.setattr(places, "A_SECOND", 0.01)
    found, begun = LoginPlaces(), time.monotonic()
    with pytest.raises(ConnectTimeout), found.taken("one", "network", Deadline(0.05)):
        pass
    assert time.monotonic() - begun < DEADLINE_SECONDS / 2


@pytest.mark.parametrize(
    ("address", "network"),
    [("10.1.2.3", "10.1.2.0/24"), ("fe80::1%eth0", "fe80::/64"), ("2001:db8:1:2:3::4", "2001:db8:1:2::/64")],
)
def test_networks(address: str, network: str) -> None:
    assert network_of(address) == network
