"""Reads YAML with the safe loader, which creates only plain values."""

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
    """Return the value of ``text``; ``!vault`` gives :data:`ENCRYPTED`, ``!unsafe`` the plain text.

    :raises Failure: it is no YAML; the message names the line of ``file``, but none of its content.
    """
    import yaml

    # The loader in C, if compiled in, takes a fourth of the time.
    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(safe):  # type: ignore[misc]
        """A class of its own, because constructors are registered by class."""

    Loader.add_constructor("!vault", lambda _, __: ENCRYPTED)
    Loader.add_constructor("!unsafe", _text)
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "characters that YAML does not allow"
        raise Failure(f"{file}{place} is not valid YAML: {problem}.") from None
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError):
        # What its constructors raise for values such as 2001-99-99 and !!int x, as PyYAML 6 does.
        raise Failure(f"{file} is not valid YAML: a date, a number or another value that its tag forbids.") from None
    except RecursionError:
        raise Failure(f"{file} is nested too deeply.") from None


def dump(value: Any) -> str:
    """Return ``value`` as YAML, with members in their order."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


def _text(_: SafeLoader, node: Any) -> str:
    return str(node.value)
