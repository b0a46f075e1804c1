"""The daemon: this module makes all collaborators and connects them."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path

from connmgr.api.app import create_app
from connmgr.api.archive import STREAMED_PATHS
from connmgr.api.auth import Caller, Credentials, Scraper, Tokens
from connmgr.api.counts import Counts
from connmgr.api.fs import BLOB_PATH
from connmgr.api.origin import Addresses
from connmgr.api.parking import turns
from connmgr.api.services import Services
from connmgr.api.slots import STOPS, RequestSlots
from connmgr.api.tickets import Tickets
from connmgr.daemon import apikey, metrics_token
from connmgr.daemon.authfile import AuthFile
from connmgr.daemon.daemon_file import DaemonFile
from connmgr.daemon.ending import Ending
from connmgr.daemon.files import private_directory
from connmgr.daemon.notify import tell_ready
from connmgr.daemon.parser import Uploads
from connmgr.daemon.process import prepare_process
from connmgr.daemon.server import Server, bind, url_of
from connmgr.daemon.stop import CLOSE_SECONDS, FINISH_SECONDS, Stop, guard, ignore_signals
from connmgr.daemon.storage import database_url, key_store
from connmgr.daemon.unix_socket import SocketFile
from connmgr.engine.script import programs
from connmgr.errors import StartupError, UnknownJob
from connmgr.fs.blobs import Blobs
from connmgr.jobs.jobs import Jobs
from connmgr.jobs.keeper import Keeper
from connmgr.jobs.orphans import Orphans
from connmgr.jobs.reach import Reach
from connmgr.jobs.starting import JobLimits, Starts
from connmgr.links.kept import KeptLinks
from connmgr.links.table import LinkTable
from connmgr.registry import Registry
from connmgr.rights.approvals import Approvals
from connmgr.rights.audit_trail import AuditTrail
from connmgr.rights.authorisation import Authorisation
from connmgr.rights.chain import open_chain
from connmgr.rights.grants import Grants
from connmgr.rights.saved_commands import SavedCommands
from connmgr.rights.subject_names import SubjectNames
from connmgr.rights.subjects import SubjectsOf, Work
from connmgr.rights.trail_files import FILE_NAME
from connmgr.secrets.keyfile import load_from
from connmgr.secrets.principals import Access
from connmgr.settings import Settings
from connmgr.shell.shells import Shells
from connmgr.streams.streams import Streams
from connmgr.streams.websocket import GOODBYE_SECONDS
from connmgr.terminals.recording import Recordings
from connmgr.terminals.terminals import TerminalLimits, Terminals
from connmgr.tunnels.tunnels import Tunnels
from connmgr.vault import Vault, VaultLock, open_database
from connmgr.whereabouts import url_of as reached_at

FAR_SIDE = ("connmgr.engine", "connmgr.links", "connmgr.fs", "connmgr.jobs", "connmgr.terminals", "connmgr.tunnels")
"""The packages whose programs for the far side are read at the start: later another version may be in their place."""

logger = logging.getLogger("connmgr.daemon")


def serve(settings: Settings) -> None:
    """Run the daemon until a signal or a client stops it.

    :raises StartupError: it cannot start safely; nothing was changed but for new directories.
    """
    stop = Stop()
    prepare_process(settings.log_level, settings.log_format)
    if settings.metrics_token_file:
        metrics_token.read(settings.metrics_token_file)
    with contextlib.ExitStack() as cleanup:
        private_directory(settings.data_dir, "data directory")
        lock = cleanup.enter_context(VaultLock(settings.data_dir / "lock"))
        bound = cleanup.enter_context(contextlib.closing(bind(settings.host, settings.port)))
        url = reached_at(*bound.getsockname()[:2])
        lock.tell(url)
        vault = _open_vault(settings, cleanup)
        registry = _prepared(Registry.load(), settings.data_dir)
        for package in FAR_SIDE:
            programs(package)
        links, slots = LinkTable(vault, registry), RequestSlots(settings.threads)
        shells = _open_shells(settings, vault, registry, links, cleanup)
        streams = Streams()
        cleanup.callback(streams.close, CLOSE_SECONDS)
        terminals = _open_terminals(settings, vault, links, streams, cleanup)
        tunnels = Tunnels(vault, registry, links, settings.start_timeout)
        cleanup.callback(tunnels.close, CLOSE_SECONDS)
        kept = KeptLinks()
        cleanup.callback(kept.let_go, 0.0)
        reach = Reach(links, kept)
        jobs = _open_jobs(vault, reach, kept, slots, cleanup)
        starts = Starts(vault, jobs, JobLimits(settings.max_connection_jobs, settings.max_jobs))
        auth_file = AuthFile(settings.auth_file)
        found_by = cleanup.enter_context(contextlib.ExitStack())
        found_by.callback(auth_file.remove)
        socket_file = SocketFile(settings.auth_file, bound.getsockname()[1])
        cleanup.callback(socket_file.close)
        found_by.callback(socket_file.remove)
        blobs = Blobs(settings.data_dir / "spool", quota=settings.blob_quota, ttl=settings.blob_ttl)
        cleanup.callback(blobs.close)
        subject_names = SubjectNames(vault)
        audit = _open_audit(settings, vault, registry, subject_names, cleanup)
        anonymous = Caller("anonymous", Access(), time.monotonic())
        key = vault.principals.lasting_key(b"connmgr.tokens")
        grants = Grants(vault.tokens, key, Ending(vault, streams, terminals, tunnels, jobs))
        cleanup.callback(grants.close)
        approvals = _open_approvals(vault, registry, cleanup)
        tokens = Tokens(settings.session_ttl, settings.unlock_ttl, anonymous, grants)
        cleanup.callback(tokens.close)
        tokens.watch()
        services = Services(
            settings=settings,
            vault=vault,
            registry=registry,
            links=links,
            kept=kept,
            shells=shells,
            streams=streams,
            terminals=terminals,
            tunnels=tunnels,
            jobs=jobs,
            starts=starts,
            orphans=Orphans(vault, reach, jobs, starts),
            authorisation=_authorisation(vault, registry, approvals, jobs, terminals),
            approvals=approvals,
            commands=SavedCommands(vault.commands),
            grants=grants,
            credentials=Credentials(lambda: auth_file.content, lambda: _api_key(settings.data_dir)),
            tokens=tokens,
            tickets=Tickets(),
            scraper=Scraper(lambda: _metrics_token(settings)),
            anonymous=anonymous,
            slots=slots,
            blobs=blobs,
            audit=audit,
            subject_names=subject_names,
            counts=Counts(),
            stopping=lambda: stop.requested,
            stop=stop.request,
        )
        server = _open_server(services, bound, socket_file.bound)
        cleanup.callback(server.shut_down)
        stop.wake = server.wake
        tunnels.resume()
        found_by.callback(DaemonFile(settings.auth_file, url).remove)
        _announce(settings, url_of(bound))
        server.run(until=lambda: stop.requested)
        logger.info("Stopping.")
        guard(found_by.close)
        found_by.close()
        _finish(server, shells, streams, terminals)
    ignore_signals()


def _open_vault(settings: Settings, cleanup: contextlib.ExitStack) -> Vault:
    database = open_database(database_url(settings))
    cleanup.callback(database.close)
    key = load_from(key_store(settings), create=database.empty, verifier=database.key_verifier)
    return Vault(database, key)


def _open_shells(
    settings: Settings, vault: Vault, registry: Registry, links: LinkTable, cleanup: contextlib.ExitStack
) -> Shells:
    shells = Shells(
        vault,
        registry,
        links,
        max_output=settings.max_output,
        idle_timeout=settings.idle_timeout,
        start_timeout=settings.start_timeout,
        orphans=settings.data_dir / "shells.json",
    )
    cleanup.callback(shells.close, CLOSE_SECONDS)
    return shells


def _open_terminals(
    settings: Settings, vault: Vault, links: LinkTable, streams: Streams, cleanup: contextlib.ExitStack
) -> Terminals:
    recordings = Recordings(
        settings.data_dir / "recordings", limit=settings.max_recording, days=settings.recording_days
    )
    limits = TerminalLimits(settings.max_connection_terminals, settings.max_terminals, settings.terminal_timeout)
    terminals = Terminals(vault, links, streams, recordings, limits, settings.start_timeout)
    cleanup.callback(terminals.close, CLOSE_SECONDS)
    return terminals


def _open_jobs(vault: Vault, reach: Reach, kept: KeptLinks, slots: RequestSlots, cleanup: contextlib.ExitStack) -> Jobs:
    jobs = Jobs(vault, reach, slots.taken)
    cleanup.callback(jobs.close, CLOSE_SECONDS)
    keeper = Keeper(vault, jobs, reach, kept)
    cleanup.callback(keeper.close, CLOSE_SECONDS)
    return jobs


def _open_audit(
    settings: Settings, vault: Vault, registry: Registry, names: SubjectNames, cleanup: contextlib.ExitStack
) -> AuditTrail:
    audit = AuditTrail(
        settings.data_dir / FILE_NAME,
        *open_chain(vault.principals, vault.database),
        vault.audit_mac,
        commands=settings.audit_commands,
        names=names.of,
        ship=registry.plugins.hook.connmgr_audit,
    )
    cleanup.callback(audit.close)
    return audit


def _open_approvals(vault: Vault, registry: Registry, cleanup: contextlib.ExitStack) -> Approvals:
    key, requested = vault.principals.lasting_key(b"connmgr.approval"), registry.plugins.hook.connmgr_approval_requested
    approvals = Approvals(vault.approvals, key, turns, lambda shown: requested(approval=shown))
    cleanup.callback(approvals.close)
    return approvals


def _authorisation(
    vault: Vault, registry: Registry, approvals: Approvals, jobs: Jobs, terminals: Terminals
) -> Authorisation:
    def job(id: str) -> Work | None:
        try:
            stored = jobs.find(id).stored
        except UnknownJob:
            return None
        return Work(stored.connection, stored.token)

    def terminal(id: str) -> Work | None:
        origin = terminals.origin_of(id)
        return None if origin is None else Work(origin.connection, origin.token)

    subjects = SubjectsOf(registry, vault, {"job": job, "terminal": terminal})
    return Authorisation(registry, vault, subjects, approvals)


def _open_server(services: Services, bound: socket.socket, beside: socket.socket | None) -> Server:
    settings = services.settings
    addresses = Addresses(bound.getsockname()[1], settings.host, settings.allowed_hosts)
    return Server(
        create_app(services, addresses),
        bound,
        beside,
        slots=settings.threads + STOPS,
        max_body=settings.max_body,
        trusted=lambda header: settings.no_auth or services.tokens.accepts(header),
        uploads=Uploads(BLOB_PATH, services.blobs.spool, settings.max_blob, STREAMED_PATHS),
    )


def _finish(server: Server, shells: Shells, streams: Streams, terminals: Terminals) -> None:
    """Let running requests end, then end streams, terminals, shells and commands, and deliver the last answers."""
    server.resume_all()
    server.run(until=lambda: not server.busy, timeout=FINISH_SECONDS)
    closed = threading.Event()

    def close() -> None:
        streams.stop(GOODBYE_SECONDS)
        terminals.close(CLOSE_SECONDS)
        shells.close(CLOSE_SECONDS)
        closed.set()
        server.wake()

    threading.Thread(target=close, name="close-shells", daemon=True).start()
    server.run(until=lambda: closed.is_set() and not server.busy, timeout=CLOSE_SECONDS)


def _prepared(registry: Registry, data_dir: Path) -> Registry:
    """Tell every connection type where it may keep files, and log the plugins that cannot be used."""
    registry.prepare(data_dir)
    for problem in registry.problems:
        logger.warning("Plugin %s of %s: %s", problem.plugin, problem.distribution, problem.reason)
    return registry


def _metrics_token(settings: Settings) -> str | None:
    try:
        return metrics_token.read(settings.metrics_token_file) if settings.metrics_token_file else None
    except StartupError as error:
        logger.warning("The metrics token is not accepted. %s", error.message)
        return None


def _api_key(data_dir: Path) -> str | None:
    try:
        return apikey.read(data_dir)
    except StartupError as error:
        logger.warning("The API key is not accepted. %s", error.message)
        return None


def _announce(settings: Settings, url: str) -> None:
    if settings.no_auth:
        logger.warning("Authentication is switched off: every program on this machine may use every connection.")
    if not _is_loopback(settings.host):
        logger.warning("Listening on %s: whoever reaches it over the network may try to get in.", settings.host)
    # All objects up to now live as long as the daemon; the collector skips them.
    gc.freeze()
    gc.enable()
    tell_ready()
    try:
        sys.stdout.write(f"connmgr listening on {url}\n")
        sys.stdout.flush()
    except OSError:
        # The rest of the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
