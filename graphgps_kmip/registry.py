"""Rows of configurable components (attentions, message passing layers): name -> class, config group, promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.signatures import bind, options


@dataclass(frozen=True)
class Row:
    """One component under its name; its keyword-only arguments are the config group ``gt.<group>``.

    Args:
        name: its part of ``gt.layer_type``.
        component: the class.
        summary: one line for ``--list``.
        group: name of the config group below ``gt``.
        aliases: names of the same component in public YAML files.
        breaks: laws that it does not promise ("permutation"); the law tests skip these and say so.
        zero_grad: patterns of parameters whose gradient is zero by mathematics (a key bias under softmax).
        dropout: key below ``gt`` of an attention's dropout.
    """

    name: str
    component: Callable[..., nn.Module]
    summary: str
    group: str
    aliases: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()
    zero_grad: tuple[str, ...] = ()
    dropout: str = "attn_dropout"


def add_row(
    table: dict[str, Row],
    name: str,
    component: Callable[..., nn.Module],
    *,
    aliases: tuple[str, ...] = (),
    breaks: tuple[str, ...] = (),
    zero_grad: tuple[str, ...] = (),
    dropout: str = "attn_dropout",
) -> Row:
    """Add a component to a table; its summary is the first line of its docstring.

    Args:
        table: rows by name, changed in place.
        name: its name; in lower case that of its config group.
        component: the class; for it and the other arguments see `Row`.
        aliases: other names.
        breaks: laws not promised.
        zero_grad: parameters without gradient.
        dropout: key of its dropout.

    Raises:
        ConfigError: the name is taken by another component, cannot stand in ``gt.layer_type``, or the component's
            options cannot be listed.
    """
    if not name or "+" in name or name == "None":
        raise ConfigError(f"a component cannot be called {name!r}: gt.layer_type joins names by a plus, None is none")
    taken = {alias: row for row in table.values() for alias in (row.name, *row.aliases)}
    if name in taken and taken[name].component is not component:
        raise ConfigError(f"the name {name!r} is taken by {taken[name].component.__name__}: choose another")
    options(component)  # a class whose options cannot be listed is refused here, not when a YAML names it
    summary = (component.__doc__ or "(no docstring)").strip().splitlines()[0]
    table[name] = Row(name, component, summary, name.lower(), aliases, breaks, zero_grad, dropout)
    return table[name]


def named(table: dict[str, Row]) -> dict[str, Row]:
    """Return the rows by name and by alias."""
    return {alias: row for row in table.values() for alias in row.aliases} | table


def dropout_of(row: Row, gt: Any) -> float:
    """Return the dropout of an attention from the config node ``gt``; None there stands for ``gt.attn_dropout``."""
    return gt.attn_dropout if gt[row.dropout] is None else gt[row.dropout]


def build_row(row: Row, groups: Any, *positional: Any, given: Mapping[str, Any] = {}) -> nn.Module:  # noqa: B006
    """Return a new module.

    Args:
        row: what it is.
        groups: config node that holds the rows' groups (``cfg.gt``).
        *positional: the arguments that every sibling takes.
        given: values of options that do not come from the row's group; those that the component lacks are left out.

    Raises:
        ConfigError: a value that the component does not allow; names the config group.
    """
    options_given = bind(row.component, groups[row.group], f"gt.{row.group}", given)
    with naming_group(f"gt.{row.group}", {"num_heads": "gt.n_heads", "dropout": f"gt.{row.dropout}"}):
        return row.component(*positional, **options_given)


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
