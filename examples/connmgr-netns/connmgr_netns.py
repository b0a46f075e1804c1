"""The connection type ``netns``: a shell in a network namespace of any machine that connmgr reaches."""

from connmgr.errors import ElevationFailed, ShellStartFailed
from connmgr.plugin import Reference, Schema, Text, ValidationError, Wrapper, hookimpl


def absolute(path):
    if not path.startswith("/"):
        raise ValidationError("Not an absolute path.")


class NetnsSchema(Schema):
    host = Reference(required=True, metadata={"description": "The connection on whose machine the namespace is."})
    namespace = Text(required=True, validate=absolute, metadata={"description": "The namespace's file, absolute."})


class Netns(Wrapper):
    name = "netns"
    description = "A shell in another network namespace; needs root on the machine that has it."
    schema = NetnsSchema
    example = {"host": "f0ec68aa-63f5-405c-b178-9a4454556d6b", "namespace": "/run/netns/blue"}
    via = "host"

    def wrap(self, argv, data, prompt, *, pty):
        return ["nsenter", f"--net={data['namespace']}", "--", *argv]

    def needs_login(self, data):
        return True

    def login(self, dialogue, data):
        try:
            dialogue.expect([dialogue.ready], timeout=10)
        except ElevationFailed as error:
            raise ShellStartFailed(f"No shell in {data['namespace']}: {dialogue.printed}") from error


@hookimpl
def connmgr_connection_types():
    return [Netns()]
