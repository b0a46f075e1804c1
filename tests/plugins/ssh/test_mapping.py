"""Every error of the library and of sockets is mapped to one of connmgr's."""

from __future__ import annotations

import socket

import pytest
from paramiko import ssh_exception

from connmgr.errors import OperationError, TransportUnsupported
from connmgr.plugin import Deadline
from connmgr_ssh.transport import mapped_errors, operation_error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (socket.gaierror(-2, "Name or service not known"), "host_unresolved"),
        (ConnectionRefusedError(111, "Connection refused"), "host_refused"),
        (ConnectionResetError(104, "Connection reset by peer"), "host_refused"),
        (TimeoutError(), "connect_timeout"),
        (OSError(113, "No route to host"), "host_unreachable"),
        (BrokenPipeError(32, "Broken pipe"), "host_unreachable"),
        (EOFError(), "host_refused"),
        (ssh_exception.IncompatiblePeer("no acceptable ciphers"), "transport_unsupported"),
        (ssh_exception.MessageOrderError("no"), "host_refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_each_cause_has_its_code(error: Exception, code: str) -> None:
    with pytest.raises(OperationError) as caught, mapped_errors("machine:22", "testing", Deadline(1)):
        raise error
    assert caught.value.code == code


def test_errors_of_connmgr_and_faults_of_the_program_pass_unchanged() -> None:
    ours = TransportUnsupported("so it is")
    with pytest.raises(TransportUnsupported) as caught, mapped_errors("machine:22", "testing", Deadline(1)):
        raise ours
    assert caught.value is ours
    with pytest.raises(KeyError), mapped_errors("machine:22", "testing", Deadline(1)):
        raise KeyError("a bug")


def test_text_from_a_host_is_shortened_and_stripped_of_control_characters() -> None:
    error = operation_error(ssh_exception.SSHException("\x1b[2J" + "x" * 1000), "machine:22", "testing")
    assert error.message.isprintable()
    assert len(error.message) < 400
