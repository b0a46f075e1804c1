"""YAML by the safe loader alone, which makes nothing but plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from connmgr.cli.exits import Failure

if TYPE_CHECKING:
    from yaml import SafeLoader


class Encrypted:
    """The type of :data:`ENCRYPTED`."""


ENCRYPTED: Final = Encrypted()
"""Stands for a value that only ansible-vault can read."""


def load(text: str, file: str) -> Any:
    """Return the value that ``text`` is; ``!vault`` gives :data:`ENCRYPTED`, ``!unsafe`` the text as it stands.

    :raises Failure: it is no YAML; the message names the line of ``file``, and nothing of its content.
    """
    import yaml

    # In C where it is compiled in, which takes a fourth of the time.
    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(safe):  # type: ignore[misc]
        """A loader of its own, since constructors are registered by class."""

    Loader.add_constructor("!vault", lambda _, __: ENCRYPTED)
    Loader.add_constructor("!unsafe", _text)
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "characters that YAML does not allow"
        raise Failure(f"{file}{place} is not valid YAML: {problem}.") from None


def dump(value: Any) -> str:
    """Return ``value`` as YAML, members in their order."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


def _text(_: SafeLoader, node: Any) -> str:
    return str(node.value)
