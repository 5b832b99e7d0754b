"""Errors of the config: registry look-ups with near misses, and the key behind an operator's error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError, InputError, is_users

__all__ = ["ConfigError", "is_users", "look_up", "naming_group"]


@contextmanager
def naming_group(group: str, arguments: Mapping[str, str] = {}) -> Iterator[None]:  # noqa: B006
    """Raise a component's `InputError` again as a `ConfigError` that names the config group behind its arguments.

    Args:
        group: full key of the component's config group.
        arguments: name of an argument -> config key, of those that do not come from the group.
    """
    try:
        yield
    except InputError as error:
        text = str(error)
        keys = ", ".join(f"{name} is {key}" for name, key in arguments.items() if name in text)
        raise ConfigError(f"{'' if group in text else f'{group}: '}{text}{f' ({keys})' if keys else ''}") from error
