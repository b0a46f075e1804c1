"""The page tells whoever sits at it to touch a security key that a login waits for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.conftest import StartDaemon
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.security_key import SecurityKey
from tests.plugins.sshd import Sshd, privilege_separation

if TYPE_CHECKING:
    from tests.page.browser import Visitor

pytestmark = [pytest.mark.needs("chromium", "libatomic", "sshd")]


def test_a_login_that_waits_for_a_touch_is_told(visitor: Visitor, start_daemon: StartDaemon) -> None:
    key = SecurityKey()
    with privilege_separation():
        host = Sshd()
        try:
            host.authorized_keys.write_text(f"{key.public}\n")
            daemon = start_daemon(environment={"SSH_AUTH_SOCK": str(key.socket)})
            data = {"type": "ssh", "host": "127.0.0.1", "port": host.port, "user": host.user, "agent": True}
            connection = daemon.client.connection.add("web1", {**data, "hostKeyChecking": "acceptNew"})
            page = visitor.opened(daemon)
            page.get_by_text("web1").first.wait_for()
            with daemon.client.clone() as other:
                login = threading.Thread(target=other.shell.start, args=[connection])
                login.start()
                page.get_by_text("Touch your security key: the login to web1 waits for it.").wait_for()
                key.touch()
                login.join(DEADLINE_SECONDS)
            assert not login.is_alive()
        finally:
            host.close()
            key.close()
