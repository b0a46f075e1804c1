"""What helps an agent after an error, by the error's code."""

from __future__ import annotations

from collections.abc import Mapping

from connmgr.client import ClientError

_ASK = "Ask the person whom you work for: "
_WAIT = "Wait some seconds, and repeat the call."

NEXT: Mapping[str, str] = {
    # What the call says
    "invalid_arguments": "Correct the arguments as the tool's schema has them.",
    "invalid_request": "Correct what the message names, and call again.",
    "unknown_connection": "Call list_systems for the names that there are.",
    "unknown_type": _ASK + "this kind of system needs a plugin that is not installed.",
    "unknown_job": "Call list_jobs for the jobs that there are. One is kept for a day after its end.",
    "unknown_command": "Call list_commands for the saved commands that there are.",
    "unknown_terminal": "Open one with open_terminal. One that has ended is kept for five minutes.",
    "unknown_blob": "Repeat the call.",
    "no_shell": "Repeat the call: it starts the shell.",
    "no_such_directory": "Make it with create_directory, or name another. Where you named none for a command, yours is "
    "gone: the next command begins in the home directory.",
    "job_running": "Stop it first with stop_job, or wait for its end with read_job.",
    "job_finished": "It has ended: read_job tells how.",
    "stdin_closed": "It takes no input: only run_command with openStdin lets a command have input later.",
    "terminal_ended": "Its program has ended: read_screen shows how. Open another with open_terminal.",
    "output_gone": "Somebody removed what it printed. Run it again if that does no harm.",
    # Files
    "no_such_file": "Look with list_files or find_file at what there is. A relative path begins in your directory.",
    "wrong_file_type": "Look with get_file_info at what it is.",
    "file_exists": "Something is there. Choose another path, or leave createOnly out to replace a file.",
    "directory_not_empty": "Look with list_files at what it holds.",
    "text_not_found": "Read the file with read_file, and take `old` from it to the letter, with blanks and line ends.",
    "text_not_unique": "Take more of the lines around it into `old`, so that it stands there once.",
    "file_changed": "Somebody else has changed it. Read it again, and repeat the edit if it is still right.",
    "not_text": "It is no UTF-8 text. read_file gives base64 with binary=true; change it with run_command.",
    "file_too_large": "Read a part of it with offset and limit, or work on it with run_command.",
    "permission_denied": "This system's user may not. list_systems may show one with more rights, such as NAME/root.",
    "no_space": "The disk or a quota is full there. Nothing was changed.",
    "transfer_failed": "It did not arrive whole, and nothing was changed. Repeat the call.",
    "file_operation_failed": "The message has what the machine said.",
    "tar_missing": "Work on single files.",
    "archive_refused": "Work on single files.",
    "body_too_large": "Send less at once.",
    "blob_quota_exceeded": _WAIT,
    # What the token may do
    "scope_denied": "The token does not allow it. Do not try another way, but ask whom you work for, who may widen it.",
    "policy_denied": "A rule denies it. Do not try to get round it, but ask whom you work for, who may change it.",
    "approval_required": "Tell the person what waits and how to approve it. Then repeat the very same call.",
    "approval_denied": "A person decided against it. Do not try to reach the same in another way; ask what they want.",
    "quota_exceeded": "Wait, and send fewer requests. The message tells which quota it is.",
    "token_expired": _ASK + "the token is over and needs to be renewed.",
    "token_revoked": _ASK + "the token was revoked. Nothing more is allowed.",
    "invalid_token": _ASK + "the token is not valid.",
    "invalid_credential": _ASK + "the token is not valid.",
    "not_authenticated": _ASK + "the token is not valid.",
    "secret_locked": _ASK + "a password or key of this system is locked with a passphrase.",
    "vault_locked": _ASK + "the vault has to be unlocked.",
    # The way to the machine
    "host_unresolved": "The machine's name has no address. Try another system, or ask whether it is still there.",
    "host_refused": "The machine does not let a connection in now. Try again later, or ask whether it runs.",
    "host_unreachable": "No way leads to the machine. Try again later, or ask whether it runs.",
    "connect_timeout": "The machine does not answer. Try again later, or ask whether it runs.",
    "host_key_unknown": _ASK + "they have to compare and accept the machine's key.",
    "host_key_changed": _ASK + "the machine is not the one that it was. Do not use it until they have looked.",
    "auth_failed": _ASK + "the machine refuses the login that is stored for it.",
    "elevation_failed": _ASK + "sudo, su or doas does not let in with what is stored.",
    "transport_unsupported": "This system cannot do that. Use another one.",
    "channel_refused": "The machine opens nothing more over this link. " + _WAIT,
    "unsupported_shell": "The login shell there runs no commands. Use another system.",
    "shell_start_failed": "The message tells why no shell starts there.",
    "shell_lost": "The link broke. Whether the command began is not known: look, then repeat the call.",
    "shell_stopped": "Somebody stopped the shell. Repeat the call if that does no harm.",
    "command_timeout": "It took longer than it may. Run it with run_command, which lets it run on.",
    "command_cancelled": "Repeat the call if that does no harm.",
    "recording_failed": _ASK + "recordings cannot be written.",
    "integrity": _ASK + "what is stored about this system was changed from outside, and is refused.",
    # The daemon
    "not_toggleable": "It can be neither started nor stopped. list_systems tells by `usage` what can.",
    "port_in_use": "Another program listens there. Ask whom you work for: they may free the port or choose another.",
    "connection_cycle": _ASK + "a system would run over itself.",
    "runtime_unreachable": "The program that runs the containers does not answer there. Look whether it runs.",
    "no_shell_inside": "There is no shell inside. It can only be used from the system around it.",
    "busy": _WAIT,
    "shell_busy": "Another command holds the shell. " + _WAIT,
    "session_limit": "Leave out session, or use one that list_jobs shows: a system has 16 at most.",
    "job_limit": "Too many jobs run. Wait for one with read_job, or stop one with stop_job.",
    "terminal_limit": "Too many terminals are open. Close one with close_terminal.",
    "stream_limit": _WAIT,
    "temporary_limit": _WAIT,
    "vault_unavailable": _WAIT,
    "audit_unavailable": _ASK + "the audit trail cannot be written, and nothing is done without it.",
    "stopping": "The daemon is stopping. What was started as a job goes on. " + _WAIT,
    "unreachable": "The daemon or the machine does not answer. What was started goes on. "
    + _WAIT
    + " A command that was started is then found, not started twice.",
    "internal": _ASK + "it is a fault of the program, and its log has more.",
}


def advice(error: ClientError) -> str | None:
    """Return what to do after ``error``, None where nothing helps."""
    return NEXT.get(error.code)
