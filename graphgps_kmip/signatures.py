"""Options of a component from its signature: names, defaults, types and ranges of its keyword-only arguments."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.ranges import Rule, optional, refusal

read_signature = functools.cache(inspect.signature)  # every load of a config asks for those of all components


def options(component: Callable[..., Any], supplied: Collection[str] = ()) -> dict[str, inspect.Parameter]:
    """Return the keyword-only arguments of a component by name, but those that are supplied, not set in its group.

    Raises:
        ConfigError: one of them has no default, or the component takes ``**kwargs`` (its options could not be listed).
    """
    parameters = read_signature(component).parameters.values()
    name = getattr(component, "__name__", repr(component))
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ConfigError(f"{name} takes **kwargs: name its options as keyword-only arguments with defaults instead")
    keywords = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in supplied}
    for p in keywords.values():
        if p.default is p.empty:
            raise ConfigError(f"{name}: the keyword-only argument {p.name!r} needs a default, it is a config key")
    return keywords


@functools.cache
def read_rules(component: Callable[..., Any]) -> dict[str, Rule]:
    """Return the rules that annotations declare for a component's arguments, ``k: Annotated[int, Range(1)] = 10``."""
    rules = {}
    for name, hint in _hints(component, include_extras=True).items():
        rule = next((extra for extra in getattr(hint, "__metadata__", ()) if hasattr(extra, "allows")), None)
        if rule is not None:
            rules[name] = optional(rule) if type(None) in typing.get_args(hint.__origin__) else rule
    return rules


def check_arguments(component: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check arguments of a component, in its constructor, against the rules of its annotations.

    Raises:
        InputError: the first value that is not allowed, by the name of its argument.
    """
    for name, rule in read_rules(component).items():
        if name in arguments and (why := refusal(rule, arguments[name])):
            raise InputError(f"{name}: {why}")


def _hints(component: Callable[..., Any], include_extras: bool = False) -> dict[str, Any]:
    try:
        plain = inspect.isclass(component) and not dataclasses.is_dataclass(component)
        called = component.__init__ if plain else component  # fields are annotated in the module of their own class
        return typing.get_type_hints(called, include_extras=include_extras)
    except NameError:  # an annotation imported for type checkers only: nothing to check against
        return {}
