"""A plugin of mypy: :func:`connmgr.contract.message.message_of` fills a message by the names of attributes, and this
proves that each attribute exists and has the field's type. Without it a field that is renamed on one side fails only
when a request comes. ``mypy_message_of_cases.py`` proves that it reports each kind of fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from mypy.checker import TypeChecker
from mypy.messages import format_type
from mypy.nodes import TypeInfo, Var
from mypy.plugin import FunctionContext, Plugin
from mypy.subtypes import is_subtype
from mypy.types import AnyType, Instance, Type, get_proper_type

MESSAGE = "connmgr.contract.message.Message"


class MessageOfPlugin(Plugin):
    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        return _check if fullname == "connmgr.contract.message.message_of" else None


def _check(context: FunctionContext) -> Type:
    """Report each field of the message whose value is missing or of a wrong type; return the call's type."""
    kind = get_proper_type(context.default_return_type)
    source = context.arg_types[1][0]
    if not isinstance(kind, Instance) or isinstance(get_proper_type(source), AnyType):
        context.api.fail("message_of: mypy must know the message's class and the source's type", context.context)
        return context.default_return_type
    checker = cast(TypeChecker, context.api)
    own = {name: type for name, type in zip(context.arg_names[2], context.arg_types[2], strict=True) if name}
    fields = _fields(kind.type)
    for name in own.keys() - fields.keys():
        context.api.fail(f'message_of: {kind.type.name} has no field "{name}"', context.context)
    for name, expected in fields.items():
        # mypy itself reports an attribute that the source does not have.
        value = own.get(name) or checker.expr_checker.analyze_external_member_access(name, source, context.context)
        if not is_subtype(value, expected):
            shown, wanted = (format_type(type, context.api.options) for type in (value, expected))
            context.api.fail(
                f'message_of: field "{name}" of {kind.type.name} is {wanted}, and its value {shown}', context.context
            )
    return context.default_return_type


def _fields(kind: TypeInfo) -> dict[str, Type]:
    """Return the types of a message's fields, those of its parents too."""
    fields: dict[str, Type] = {}
    for base in reversed(kind.mro):
        if base.has_base(MESSAGE) and base.fullname != MESSAGE:
            for name, symbol in base.names.items():
                variable = symbol.node
                # mypy adds `__match_args__`.
                if isinstance(variable, Var) and variable.type is not None and not name.startswith("__"):
                    fields[name] = variable.type
    return fields


def plugin(_version: str) -> type[Plugin]:
    """Return the plugin; mypy calls this."""
    return MessageOfPlugin
