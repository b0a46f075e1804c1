"""The connection type ``chroot``: a shell in another root directory of any machine that connmgr reaches."""

from connmgr.errors import ElevationFailed, ShellStartFailed
from connmgr.plugin import Reference, Schema, Text, ValidationError, Wrapper, hookimpl


def absolute(path):
    if not path.startswith("/"):
        raise ValidationError("Not an absolute path.")


class ChrootSchema(Schema):
    host = Reference(required=True, metadata={"description": "The connection on whose machine the directory is."})
    directory = Text(required=True, validate=absolute, metadata={"description": "The root directory, absolute."})
    user = Text(allow_none=True, metadata={"description": "Whom to run as: a user of that system; root otherwise."})


class Chroot(Wrapper):
    name = "chroot"
    description = "A shell in another root directory; needs root on the machine that has it."
    schema = ChrootSchema
    example = {"host": "f0ec68aa-63f5-405c-b178-9a4454556d6b", "directory": "/srv/jail", "user": "build"}
    via = "host"

    def wrap(self, argv, data, prompt, *, pty):
        user = [f"--userspec={data['user']}"] if data.get("user") else []
        # The host's login shell need not exist in there.
        return ["env", "SHELL=/bin/sh", "chroot", *user, data["directory"], *argv]

    def needs_login(self, data):
        return True

    def login(self, dialogue, data):
        try:
            dialogue.expect([dialogue.ready], timeout=10)
        except ElevationFailed as error:
            raise ShellStartFailed(f"No shell in {data['directory']}: {dialogue.printed}") from error


@hookimpl
def connmgr_connection_types():
    return [Chroot()]
