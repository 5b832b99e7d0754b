"""Component registry: `register` and `lookup` of attentions, message passing layers, encodings, heads, losses, metrics.

The keyword-only arguments of a component are its options, the first line of its docstring is its summary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from graphgps_kmip.common.near_misses import look_up, suggest
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.signatures import options


@dataclass(frozen=True)
class NoTraits:
    """Traits of kinds that have none."""


@dataclass(frozen=True)
class AttentionTraits:
    """What an attention does not promise, and where its dropout is.

    Args:
        breaks (tuple[str], optional): Laws that it does not promise, such as ``"permutation"``, which the law tests
            skip. (default: ``()``)
        zero_grad (tuple[str], optional): Patterns of parameters whose gradient is zero by mathematics, such as a key
            bias under softmax. (default: ``()``)
        dropout (str, optional): Key below ``gt`` of its dropout. (default: ``"attn_dropout"``)
        group (str, optional): Its config group below ``gt``. (default: its name in lower case)
    """

    breaks: tuple[str, ...] = ()
    zero_grad: tuple[str, ...] = ()
    dropout: str = "attn_dropout"
    group: str = ""


@dataclass(frozen=True)
class LossTraits:
    """Tasks of a loss, names as of ``Task.name``; none where the component is a mapping from tasks to functions."""

    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class MetricTraits(LossTraits):
    """Tasks of a metric, and whether larger is better."""

    maximize: bool = True


@dataclass(frozen=True)
class SchedulerTraits:
    """Whether a learning rate schedule is stepped with the validation loss of the epoch, ``step(loss)``."""

    needs_metric: bool = False


@dataclass(frozen=True)
class SearchTraits:
    """Functions of a problem: why a search backend cannot solve it, and why ``auto`` passes over it."""

    not_supported_reasons: Callable[[Any], list[str]] = lambda _: []
    not_preferred_reasons: Callable[[Any], list[str]] = lambda _: []


@dataclass(frozen=True)
class Kind:
    """One kind of component.

    Args:
        title (str): Heading in ``--list``.
        key (str): Config key that names the components.
        group (str, optional): Config group of a component's options, with ``{}`` for its name in lower case or
            ``{!s}`` for its name. (default: none, the options come from elsewhere)
        traits (type, optional): Type of `Spec.traits`. (default: `NoTraits`)
        part (bool, optional): Names are joined by a plus, so that none may have one. (default: ``False``)
        supplied (tuple[str], optional): Keyword-only arguments whose values come from elsewhere. (default: ``()``)
    """

    title: str
    key: str
    group: str = ""
    traits: type = NoTraits
    part: bool = False
    supplied: tuple[str, ...] = ()


_BRANCH_ARGUMENTS = ("heads", "equivstable_pe", "num_virt_node", "add_edge_index", "use_exp_edges")
_NODES, _EDGES = "dataset.node_encoder_name", "dataset.edge_encoder_name"
_OF_NODES, _OF_EDGES = ("plan", "dim_in", "num_types"), ("plan", "edge_dim", "num_types")
_HEAD_ARGUMENTS = ("plan", "num_layers", "pooling", "dropout", "act")
KINDS: dict[str, Kind] = {
    "attention": Kind("attention", "gt.layer_type", "gt.{}", AttentionTraits, part=True, supplied=_BRANCH_ARGUMENTS),
    "message_passing": Kind("message passing", "gt.layer_type", "gt.{}", part=True, supplied=_BRANCH_ARGUMENTS),
    "network": Kind("network", "model.type", "network.{}", supplied=("plan",)),
    "node_encoder": Kind("node encoder", _NODES, "node_encoder.{}", part=True, supplied=_OF_NODES),
    "edge_encoder": Kind("edge encoder", _EDGES, "edge_encoder.{}", part=True, supplied=_OF_EDGES),
    "encoding": Kind("encoding", _NODES, "posenc_{!s}", part=True, supplied=("name",)),
    "dataset": Kind("data set", "dataset.format"),
    "head": Kind("head", "gnn.head", "head.{}", supplied=_HEAD_ARGUMENTS),
    "pooling": Kind("pooling", "model.graph_pooling"),
    "activation": Kind("activation", "gnn.act"),
    "loss": Kind("loss", "model.loss_fun", "loss.{}", LossTraits),
    "metric": Kind("metric", "metric_best", "metric.{}", MetricTraits),
    "optimizer": Kind("optimizer", "optim.optimizer", "optimizer.{}"),
    "scheduler": Kind("scheduler", "optim.scheduler", "scheduler.{}", SchedulerTraits),
    "search_backend": Kind("k-MIP search", "gt.kmip.search", traits=SearchTraits),
    "train_mode": Kind("train mode", "train.mode"),
}
_SPECS: dict[str, dict[str, Spec]] = {kind: {} for kind in KINDS}
_WATCHERS: list[Callable[[Spec], None]] = []


@dataclass(frozen=True)
class Spec:
    """Registry entry of one component.

    Args:
        kind (str): A key of `KINDS`.
        name (str): Its name in YAML files.
        component (Any): Class or function; of a data set its record.
        summary (str): One line for ``--list``.
        aliases (tuple[str], optional): Other names, those of public YAML files. (default: ``()``)
        traits (Any, optional): What only its kind has, see `Kind`. (default: `NoTraits`)
    """

    kind: str
    name: str
    component: Any
    summary: str
    aliases: tuple[str, ...] = ()
    traits: Any = NoTraits()

    @property
    def group(self) -> str:
        """Config group of its options, such as ``gt.kmip``; empty for a kind without."""
        form = KINDS[self.kind].group
        return form.format(getattr(self.traits, "group", "") or (self.name if "{!s}" in form else self.name.lower()))

    @property
    def module(self) -> str:
        """Module that defines the component."""
        return getattr(self.component, "__module__", "")

    @cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """Its keyword-only arguments by name, but those that come from elsewhere, see `Kind`."""
        row = KINDS[self.kind]
        return options(self.component, row.supplied) if row.group and callable(self.component) else {}


def register(
    kind: str,
    name: str,
    component: Any = None,
    *,
    aliases: tuple[str, ...] = (),
    summary: str | None = None,
    **traits: Any,
) -> Any:
    """Register a component under a name, once and for all; also a decorator, ``@register("attention", "Mine")``.

    Args:
        kind (str): A key of `KINDS`.
        name (str): Its name in YAML files.
        component (Any, optional): Class or function. (default: what is decorated)
        aliases (tuple[str], optional): Other names. (default: ``()``)
        summary (str, optional): One line for ``--list``. (default: first line of the component's docstring)
        **traits: What only the kind has, such as ``breaks`` of an attention or ``tasks`` of a loss; see `KINDS`.

    Returns:
        The component.

    Raises:
        ConfigError: no such kind or trait, a name that is taken or invalid, or options that cannot be listed.
    """
    row = look_up_kind(kind)
    if component is None:
        return partial(register, kind, name, aliases=aliases, summary=summary, **traits)
    names = [field.name for field in fields(row.traits)]
    for trait in traits:
        if trait not in names:
            raise ConfigError(f"register {kind} {name!r}: no argument {trait!r}.{suggest(trait, [*names, 'aliases'])}")
    if not isinstance(name, str) or not name or (row.part and (set(name) & set("+.") or name == "None")):
        raise ConfigError(
            f"register {kind}: invalid name {name!r}: {row.key} joins names by a plus, keys have dots, and None is none"
        )
    spec = Spec(kind, name, component, summary or _summary(component), tuple(aliases), row.traits(**traits))
    # the kinds whose names are values of one key: of these, a name has one meaning
    branches = ("attention", "message_passing")
    others = named(*(branches if kind in branches else (kind,)))
    for alias in (name, *spec.aliases):
        other = others.get(alias)
        if other is not None and other.component is not component:
            origin = getattr(other.component, "__name__", None) or getattr(other.component, "title", other.name)
            conflict = f"the name {alias!r} is taken by the {other.kind} {origin}"
            raise ConfigError(f"register {kind}: {conflict}: choose another")
    for other in others.values() if spec.group else ():
        if other.group == spec.group and other.name != name:
            raise ConfigError(f"register {kind}: {name!r} and {other.name!r} would share {spec.group}: choose another")
    spec.options  # noqa: B018 (what cannot be listed is refused here, not when a YAML file names it)
    _SPECS[kind][name] = spec
    for watcher in _WATCHERS:
        watcher(spec)
    return component


register_attention = partial(register, "attention")  # for files of earlier versions


def watch(watcher: Callable[[Spec], None]) -> None:
    """Call a function with every registry entry: those of now, and each later one when it is registered."""
    for specs in _SPECS.values():
        for spec in specs.values():
            watcher(spec)
    _WATCHERS.append(watcher)


def look_up_kind(kind: str) -> Kind:
    """Return a row of `KINDS`; an unknown kind is an error with near misses."""
    if kind not in KINDS:
        raise ConfigError(f"register: unknown kind {kind!r}.{suggest(str(kind)[:100], KINDS)}")
    return KINDS[kind]


def entries(kind: str) -> Mapping[str, Spec]:
    """Return the registry entries of a kind by name, a view."""
    look_up_kind(kind)
    return MappingProxyType(_SPECS[kind])


def with_groups() -> list[Spec]:
    """Return the registry entries that have a config group of options; encodings declare theirs themselves."""
    return [spec for kind in KINDS if kind != "encoding" for spec in _SPECS[kind].values() if spec.options]


def named(*kinds: str) -> dict[str, Spec]:
    """Return the registry entries of some kinds by name and by alias."""
    specs = [spec for kind in kinds for spec in entries(kind).values()]
    return {alias: spec for spec in specs for alias in spec.aliases} | {spec.name: spec for spec in specs}


def components(kind: str) -> dict[str, Any]:
    """Return the components of a kind by name and by alias, without their registry entries."""
    return {name: spec.component for name, spec in named(kind).items()}


def lookup(kind: str | tuple[str, ...], name: str) -> Spec:
    """Return the registry entry of a name or alias.

    Args:
        kind (str or tuple[str]): One kind, or several whose names share a key.
        name (str): What a user wrote.

    Raises:
        ConfigError: no such name; near misses are suggested.
    """
    kinds = (kind,) if isinstance(kind, str) else kind
    return look_up(named(*kinds), name, KINDS[kinds[0]].key)


def build(
    spec: Spec,
    *positional: Any,
    settings: Mapping[str, Any],
    supplied: Mapping[str, Any] = {},  # noqa: B006
) -> Any:
    """Return a new module.

    Args:
        spec (Spec): What to build.
        *positional (Any): Arguments that every sibling takes.
        settings (Mapping): Values of its options by name: its config group.
        supplied (Mapping, optional): Values of options that do not come from its group; further ones are left out.

    Raises:
        ConfigError: a value that the component does not allow; names the config group.
    """
    names = [p.name for p in inspect.signature(spec.component).parameters.values() if p.kind is p.KEYWORD_ONLY]
    arguments = {name: supplied[name] if name in supplied else settings[name] for name in names}
    keys = {"num_heads": "gt.n_heads", "dropout": f"gt.{getattr(spec.traits, 'dropout', 'dropout')}"}
    with naming_group(spec.group, keys):
        return spec.component(*positional, **arguments)


@contextmanager
def naming_group(group: str, arguments: Mapping[str, str] = {}) -> Iterator[None]:  # noqa: B006
    """Raise a component's `InputError` as a `ConfigError` that names the group, or key, of its ``arguments``."""
    try:
        yield
    except InputError as error:
        text = str(error)
        keys = ", ".join(f"{name} is {key}" for name, key in arguments.items() if name in text)
        raise ConfigError(f"{'' if group in text else f'{group}: '}{text}{f' ({keys})' if keys else ''}") from error


def _summary(component: Any) -> str:
    return (getattr(component, "summary", None) or inspect.getdoc(component) or "(no docstring)").splitlines()[0]
