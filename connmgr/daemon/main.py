"""The daemon from its start to its end."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path

from connmgr.api.app import Addresses, create_app, endpoints
from connmgr.api.archive import STREAMED_PATHS
from connmgr.api.body import FED_PATHS
from connmgr.api.fs import BLOB_PATH
from connmgr.api.inventory import fault_of, request_as
from connmgr.api.multiplex import Entrance
from connmgr.api.schedule import start_as
from connmgr.api.services import STOPS, Services
from connmgr.contract.message import time_from_json
from connmgr.daemon.files import (
    AuthFile,
    DaemonFile,
    SocketFile,
    database_url,
    key_store,
    private_directory,
    read_metrics_token,
)
from connmgr.daemon.parser import Bodies
from connmgr.daemon.process import (
    CLOSE_SECONDS,
    FINISH_SECONDS,
    Stop,
    guard,
    ignore_signals,
    notify_ready,
    prepare_process,
)
from connmgr.daemon.server import Server, bind, url_of
from connmgr.daemon.wiring import open_services
from connmgr.engine.script import programs
from connmgr.paths import is_loopback
from connmgr.paths import url_of as reached_at
from connmgr.pipes.clients import GOODBYE_SECONDS
from connmgr.registry import Registry
from connmgr.secrets.vault_key import load_from
from connmgr.settings import MEBIBYTE, Settings
from connmgr.shares import Shares
from connmgr.vault import Vault, VaultLock, open_database

WITH_SCRIPTS = tuple(f"connmgr.{room}" for room in ("engine", "links", "fs", "facts", "jobs", "terminals", "tunnels"))
"""Packages with programs for remote hosts, which are read at the start: an upgrade may replace them later."""

logger = logging.getLogger("connmgr.daemon")


def serve(settings: Settings) -> None:
    """Run the daemon until a signal or a client stops it.

    :raises StartupError: it cannot start safely; nothing was changed but for new directories.
    """
    stop = Stop()
    prepare_process(settings.log_level, settings.log_format)
    if settings.metrics_token_file:
        read_metrics_token(settings.metrics_token_file)
    with contextlib.ExitStack() as cleanup:
        private_directory(settings.data_dir, "data directory")
        # Before anything of the vault is read: another daemon may have it open.
        lock = cleanup.enter_context(VaultLock(settings.data_dir / "lock"))
        bound = cleanup.enter_context(contextlib.closing(bind(settings.host, settings.port)))
        url = reached_at(*bound.getsockname()[:2])
        lock.tell(url)
        vault = _open_vault(settings, cleanup)
        registry = _prepare(Registry.load(), settings.data_dir)
        for package in WITH_SCRIPTS:
            programs(package)
        found_by = cleanup.enter_context(contextlib.ExitStack())
        auth_file = AuthFile(settings.auth_file)
        found_by.callback(auth_file.remove)
        socket_file = SocketFile(settings.auth_file, bound.getsockname()[1])
        cleanup.callback(socket_file.close)
        found_by.callback(socket_file.remove)
        services = open_services(settings, vault, registry, auth_file, stop, cleanup)
        server = _open_server(services, bound, socket_file.bound)
        cleanup.callback(server.shut_down)
        stop.wake = server.pull_trigger
        # A client of a control socket passes its own signal on to the process that answers there (mux.c of OpenSSH).
        signal.signal(signal.SIGWINCH, lambda *_: services.sockets.resized())
        services.tunnels.resume()
        if services.audit.vault_before is not None:
            # Also where somebody has put back the file of a vault, or the database, while no daemon ran.
            vault.runs.note_put_back(time_from_json(services.audit.vault_before.time))
        services.runs.begin()
        services.schedules.begin()
        services.inventories.begin()
        vault.announcements.begin()
        cleanup.callback(vault.announcements.close, CLOSE_SECONDS)
        services.kept_config.resume()
        found_by.callback(DaemonFile(settings.auth_file, url).remove)
        _announce(settings, url_of(bound))
        server.run(until=lambda: stop.requested)
        logger.info("Stopping.")
        guard(found_by.close)
        found_by.close()
        _finish(server, services)
    ignore_signals()


def _open_vault(settings: Settings, cleanup: contextlib.ExitStack) -> Vault:
    database = open_database(database_url(settings))
    cleanup.callback(database.close)
    key = load_from(key_store(settings), create=database.empty, verifier=database.key_verifier)
    return Vault(database, key)


def _prepare(registry: Registry, data_dir: Path) -> Registry:
    """Tell every connection type where it may keep files, and log the plugins that cannot be used."""
    registry.prepare(data_dir)
    for problem in registry.problems:
        logger.warning("Plugin %s of %s: %s", problem.plugin, problem.distribution, problem.reason)
    return registry


def _open_server(services: Services, bound: socket.socket, beside: socket.socket | None) -> Server:
    settings = services.settings
    addresses = Addresses(bound.getsockname()[1], settings.host, settings.allowed_hosts)
    content = {endpoint.path: endpoint.action for endpoint in endpoints() if endpoint.has_content or endpoint.raw_body}
    app = create_app(services, addresses)
    services.sockets.pipeline = Entrance(app)
    services.schedules.start = partial(start_as, app, services)
    services.inventories.request = partial(request_as, app)
    services.inventories.fault = partial(fault_of, services.registry)
    return Server(
        app,
        bound,
        beside,
        slots=settings.threads + STOPS,
        max_body=settings.max_body,
        sender_of=lambda header: (
            services.anonymous if settings.no_auth and not header else services.tokens.sender_of(header)
        ),
        bodies=Bodies(
            BLOB_PATH,
            services.blobs.spool,
            settings.max_blob,
            _body_shares(settings.max_body),
            STREAMED_PATHS,
            FED_PATHS,
            allows=lambda caller, path: path in content and caller.may(content[path]),
        ),
        computing=services.computing,
    )


def _body_shares(max_body: int) -> Shares:
    """Return the shares of the memory for request bodies: two of the largest at a time for a token."""
    of_token = max(MEBIBYTE, 2 * max_body)
    return Shares(of_token, 2 * of_token, strangers=MEBIBYTE, owner=8 * of_token)


def _finish(server: Server, services: Services) -> None:
    """Let running requests end, then end streams, terminals, shells and commands, and deliver the last answers."""
    # Suspended requests have no thread that could see the end; they run again, and are answered that it stops.
    server.suspended.resume_all()
    server.run(until=lambda: not server.busy, timeout=FINISH_SECONDS)
    closed = threading.Event()

    def close() -> None:
        services.runs.close(CLOSE_SECONDS)
        services.streams.stop(GOODBYE_SECONDS)
        services.terminals.close(CLOSE_SECONDS)
        services.shells.close(CLOSE_SECONDS)
        closed.set()
        server.pull_trigger()

    threading.Thread(target=close, name="close-shells", daemon=True).start()
    server.run(until=lambda: closed.is_set() and not server.busy, timeout=CLOSE_SECONDS)


def _announce(settings: Settings, url: str) -> None:
    if settings.no_auth:
        logger.warning("Authentication is switched off: every program on this machine may use every connection.")
    if not is_loopback(settings.host):
        logger.warning("Listening on %s: whoever reaches it over the network may try to get in.", settings.host)
    # All objects so far live as long as the daemon, so the garbage collector skips them.
    gc.freeze()
    gc.enable()
    notify_ready()
    try:
        sys.stdout.write(f"connmgr listening on {url}\n")
        sys.stdout.flush()
    except OSError:
        # Otherwise writing the rest of the buffer would fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
