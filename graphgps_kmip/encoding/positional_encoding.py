"""Positional and structural encodings: base classes, their encoder modules, and the transform `AddEncoding`.

An encoding is one class, see docs/extending.md. Its fields are its options, the config group ``posenc_<name>``;
`compute` depends on a graph and the `settings`, which key the cache on disk; `encoder` builds the module.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import BatchNorm
from torch_geometric.transforms import BaseTransform

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.encoding.feature_encoders import read_features
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.ranges import HEADS, NATURAL, SOME_LAYERS, Default, Registered, refusal
from graphgps_kmip.registry import Spec, lookup, named
from graphgps_kmip.signatures import options, read_rules


@dataclass(frozen=True, kw_only=True)
class PositionalEncoding:
    """Base class of encodings; every subclass becomes a frozen dataclass, whose fields are its options.

    A field of a dataclass type is a group inside the config group. An annotated rule limits a field's values.

    Args:
        name (str, optional): Name under which it is registered. (default: the name of the class)

    Attributes:
        FROM_CONFIG: Fields that are no options of their own group: name -> config key that has the value.
        on_edges: It is a part of ``dataset.edge_encoder_name``, not of ``dataset.node_encoder_name``.
        random: `compute` draws: it needs a field ``seed``, and graphs have their number in the data set, ``graph_id``.
        reads: Attributes of a graph, next to ``num_nodes``, on which the values depend.
        version: To be raised when the definition changes, so that values of before are not read from disk.
        needs_data: Only the graphs of the data set say how wide it is.
        computed_in_batch: Its module computes the values for each mini-batch, so that none are precomputed.
        float64: Precomputed values stay float64; otherwise floats are kept as float32.
    """

    name: str = ""
    FROM_CONFIG: ClassVar[Mapping[str, str]] = {}
    on_edges: ClassVar[bool] = False
    random: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("edge_index",)
    version: ClassVar[int] = 1
    needs_data: ClassVar[bool] = False
    computed_in_batch: ClassVar[bool] = False
    float64: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", type(self).__name__)

    @property
    def group(self) -> str:
        """Config group, for errors."""
        return f"posenc_{self.name}"

    @property
    def width(self) -> int:
        """Columns of the node or edge features that it takes."""
        return getattr(self, "dim_pe", 0)

    def settings(self) -> dict[str, Any]:
        """Return all that decides the values next to the graph: plain values; here the fields that a subclass adds."""
        names = [field.name for field in fields(self) if field.name not in ENCODER_OPTIONS]
        return {name: getattr(self, name) for name in names}

    def facts(self, graphs: Sequence[Data]) -> dict[str, int]:  # noqa: ARG002
        """Return facts of the whole data set; further instances get them as the setting ``share.<key>``."""
        return {}

    @staticmethod
    def compute(graph: Data, **settings: Any) -> Any:  # noqa: ARG004
        """Return the values of one graph: a dict of attributes, or what a base class says."""
        raise InputError("an encoding has no static method compute(graph, **settings): define it in its class")

    def attributes(self, graphs: Sequence[Data], settings: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Return the new attributes of each graph, given its `settings`; overridden where many at once are faster."""
        return [self.compute(graph, **settings) for graph in graphs]

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:  # noqa: ARG002
        """Return the module ``batch -> batch`` that reads the attributes.

        Args:
            dim (int): Width C of the features after it.
            dim_x (int or None): Width of the raw features, which it maps to C - `width`; None: they have that width.
        """
        name = type(self).__name__
        raise InputError(f"{self.group}: {name} has no method encoder(dim, dim_x): define it in its class")


class NodeEncoding(PositionalEncoding):
    """Encoding whose values are ``num_columns`` numbers of each node, which `KernelEncoder` maps to ``dim_pe`` columns.

    ``compute(graph, **settings)`` returns them as (N, num_columns), kept as ``pestat_<name>``.

    Args:
        model (str, optional): ``"Linear"`` or ``"mlp"``. (default: ``"Linear"``)
        dim_pe (int, optional): Columns that it appends to the features. (default: 16)
        layers (int, optional): Linear layers of the MLP. (default: 3)
        n_heads (int, optional): Not read: a key that every public block has, as the next one. (default: 4)
        post_layers (int, optional): Not read. (default: 0)
        raw_norm_type (str, optional): ``"BatchNorm"`` of the values, or ``"none"``. (default: ``"none"``)
        pass_as_var (bool, optional): Keep the encoded columns as ``batch.pe_<name>``, too. (default: ``False``)
    """

    model: Annotated[str, Registered("of the encoder")] = "Linear"
    dim_pe: Annotated[int, NATURAL] = 16
    layers: Annotated[int, SOME_LAYERS] = 3
    n_heads: Annotated[int, HEADS] = 4
    post_layers: Annotated[int, SOME_LAYERS] = 0
    raw_norm_type: Annotated[str, Registered("BatchNorm or none")] = "none"
    pass_as_var: bool = False
    num_columns: ClassVar[int] = 1

    @property
    def attribute(self) -> str:
        """Attribute of the graphs that holds the values."""
        return f"pestat_{self.name}"

    def attributes(self, graphs: Sequence[Data], settings: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Return the values of each graph."""
        return [{self.attribute: self.compute(graph, **settings)} for graph in graphs]

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return a `KernelEncoder`."""
        return KernelEncoder(self, dim, dim_x)


class EdgeEncoding(NodeEncoding):
    """Encoding whose values are ``num_columns`` numbers of each edge, kept as ``edge_pestat_<name>``.

    Attributes:
        norm: The features before it pass a BatchNorm.
    """

    on_edges: ClassVar[bool] = True
    norm: ClassVar[bool] = False

    @property
    def attribute(self) -> str:
        """Attribute of the graphs that holds the values."""
        return f"edge_{super().attribute}"

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return a `KernelEncoder` that is applied to edges."""
        return OnEdges(super().encoder(dim, dim_x), f"pestat_{self.name}", dim - self.dim_pe if self.norm else None)


ENCODER_OPTIONS = frozenset(field.name for field in fields(NodeEncoding))
NORMS = {"none": nn.Identity, "batchnorm": nn.BatchNorm1d}


class ColumnEncoder(nn.Module):
    """Base class of encoders that append ``dim_pe`` columns to the node features.

    Args:
        encoding (PositionalEncoding): Options, with ``dim_pe``, and maybe ``layers`` and ``pass_as_var``.
        dim (int): Width C of the result.
        dim_x (int or None): Columns of ``batch.x``, which a linear layer maps to C - dim_pe; None: it is that wide.

    Raises:
        InputError: no room for raw features (after another encoder it may take all columns, as in GraphGPS), no layer.
    """

    def __init__(self, encoding: PositionalEncoding, dim: int, dim_x: int | None) -> None:
        super().__init__()
        room, dim_pe, layers = dim - bool(dim_x), encoding.dim_pe, getattr(encoding, "layers", 1)
        if not 1 <= dim_pe <= room or layers < 1:
            raise InputError(
                f"{encoding.group} needs dim_pe from 1 to {room} and layers >= 1, got {dim_pe=}, {layers=}"
            )
        self.name, self.pass_as_var = encoding.name, getattr(encoding, "pass_as_var", False)
        self.linear_x = nn.Identity() if dim_x is None else nn.Linear(dim_x, dim - dim_pe)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return next(self.parameters()).dtype

    def append(self, batch: Batch, encoding: Tensor) -> Batch:
        """Replace ``batch.x`` by the mapped features with the encoding (N, dim_pe) appended."""
        batch.x = torch.cat([self.linear_x(batch.x.to(self.dtype)), encoding], dim=1)
        if self.pass_as_var:
            batch[f"pe_{self.name}"] = encoding
        return batch


class KernelEncoder(ColumnEncoder):
    """Map the K precomputed values of a node to ``dim_pe`` numbers and append them to its features.

    The model is Linear, or mlp (hidden width 2 dim_pe, ReLU after every layer, the last one too).

    Args:
        encoding (NodeEncoding): Options; the values are read from ``batch.pestat_<name>``.
        dim, dim_x: As of `ColumnEncoder`.

    Shapes: batch.x (N, dim_x), batch.pestat_<name> (N, K) -> batch.x (N, C), in the dtype of the weights.

    Raises:
        InputError: an unknown option, or no room for features when built; values of other than K columns when called.
    """

    def __init__(self, encoding: NodeEncoding, dim: int, dim_x: int | None) -> None:
        if encoding.model.lower() not in ("linear", "mlp"):
            raise InputError(f"{encoding.group}.model must be Linear or mlp, got {encoding.model!r}")
        super().__init__(encoding, dim, dim_x)
        columns, dim_pe = encoding.num_columns, encoding.dim_pe
        self.num_columns, self.raw_norm = columns, raw_norm(encoding, columns)
        hidden = [2 * dim_pe] * (encoding.layers - 1)
        linear = encoding.model.lower() == "linear"
        self.pe_encoder = nn.Linear(columns, dim_pe) if linear else relu_layers([columns, *hidden, dim_pe])

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        return self.encode(batch, read_encoding(batch, self.name, f"pestat_{self.name}", (self.num_columns,)))

    def encode(self, batch: Batch, values: Tensor) -> Batch:
        """Replace ``batch.x``, with the encoding of values (N, K)."""
        return self.append(batch, self.pe_encoder(self.raw_norm(values.to(self.dtype))))


class OnEdges(nn.Module):
    """Apply a node encoder to edge attributes.

    Args:
        encoder (Module): Reads ``x`` and precomputed values, and replaces ``x``.
        attribute (str): The values that it reads, in the batch ``edge_<attribute>``: torch_geometric goes by names.
        dim_norm (int, optional): Columns of the edge features, which pass a BatchNorm first. (default: ``None``, none)

    Shapes: batch.edge_attr (E, C'), batch.edge_<attribute> (E, K) -> batch.edge_attr (E, C).
    """

    def __init__(self, encoder: nn.Module, attribute: str, dim_norm: int | None = None) -> None:
        super().__init__()
        self.encoder, self.attribute = encoder, attribute
        self.norm = nn.Identity() if dim_norm is None else BatchNorm(dim_norm, allow_single_element=True)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        edges = Data(x=self.norm(read_features(batch, "edge_attr", self.attribute)))
        if f"edge_{self.attribute}" in batch:
            edges[self.attribute] = batch[f"edge_{self.attribute}"]
        batch.edge_attr = self.encoder(edges).x
        return batch


def read_encoding(
    batch: Batch, name: str, attribute: str, shape: tuple[int, ...] | None = None, key: str = ""
) -> Tensor:
    """Return the precomputed values of an encoding, checked: the shape is that after the first dimension.

    Raises:
        InputError: they are missing or of another shape; names the encoding, and the option ``key`` for the shape.
    """
    if attribute not in batch:
        raise InputError(f"{name} needs {attribute}, but the graphs do not have it: set posenc_{name}.enable True")
    if shape is not None and tuple(batch[attribute].shape[1:]) != shape:
        expected = ", ".join(map(str, ("nodes", *shape)))
        hint = f": check posenc_{name}.{key}" if key else ""
        raise InputError(f"{attribute} must be ({expected}), got {tuple(batch[attribute].shape)}{hint}")
    return batch[attribute]


def relu_layers(widths: Sequence[int]) -> nn.Sequential:
    """Return linear layers from each width to the next, with ReLU after every one, the last one too."""
    return nn.Sequential(*[module for pair in pairwise(widths) for module in (nn.Linear(*pair), nn.ReLU())])


def raw_norm(encoding: Any, num_columns: int) -> nn.Module:
    """Return the norm of the precomputed values of an encoding: its ``raw_norm_type``, in any capitals."""
    if encoding.raw_norm_type.lower() not in NORMS:
        raise InputError(f"{encoding.group}.raw_norm_type must be BatchNorm or none, got {encoding.raw_norm_type!r}")
    return NORMS[encoding.raw_norm_type.lower()](num_columns)


def edge_array(edge_index: Tensor, num_nodes: int, name: str = "edge_index") -> np.ndarray:
    """Return edges as an array (2, E), int64; an `InputError` where one names a node that does not exist."""
    edges = edge_index.cpu().numpy().astype(np.int64).reshape(2, -1)
    if edges.size and (edges.min() < 0 or edges.max() >= num_nodes):
        node = edges.min() if edges.min() < 0 else edges.max()
        raise InputError(f"{name} names node {node}, but the graph has {num_nodes} nodes: number them from 0")
    return edges


class AddEncoding(BaseTransform):
    """Transform that adds the precomputed values of an encoding to a graph, as ``AddLaplacianEigenvectorPE`` does.

    ::

        data = AddEncoding("LapPE", eigen={"max_freqs": 4})(data)  # data.EigVecs (N, 4), data.EigVals (N, 4, 1)

    Args:
        name (str): Name of a registered encoding.
        **options: Its options, as in the YAML: groups inside the group are mappings.

    Raises:
        ConfigError: no such encoding or option, with near misses, or a value that is out of range.
    """

    def __init__(self, name: str, **options: Any) -> None:
        spec = lookup("encoding", name)
        self.encoding = with_options(spec.component, options, spec.group, name=spec.name)

    def forward(self, data: Data) -> Data:
        """Return the graph with its new attributes; floats are float32, as in training, unless it keeps float64."""
        graph = copy.copy(data)
        graph.graph_id = data.get("graph_id", 0)
        for name, value in self.encoding.attributes([graph], self.encoding.settings())[0].items():
            data[name] = value.float() if value.is_floating_point() and not self.encoding.float64 else value
        return data

    def __repr__(self) -> str:
        return f"AddEncoding({self.encoding})"


def encoding_parts(on_edges: bool = False) -> dict[str, Spec]:
    """Return the encodings that can be parts of a node encoder's name, or of an edge encoder's, by name and alias."""
    return {name: spec for name, spec in named("encoding").items() if spec.component.on_edges is on_edges}


def from_settings(component: type[PositionalEncoding], name: str, settings: Any) -> PositionalEncoding:
    """Return an encoding with the options that a config, a mapping of groups, gives it; ``name`` is as registered.

    Raises:
        ConfigError: a value that is not allowed.
    """
    group = settings.get(f"posenc_{name}", {})
    values = {key: group[key] for key in option_defaults(component) if key in group}
    outside = {"name": name}
    for field, key in component.FROM_CONFIG.items():
        value = reduce(lambda node, part: (node or {}).get(part), key.split("."), settings)
        outside |= {} if value is None else {field: value}
    return with_options(component, values, f"posenc_{name}", **outside)


def with_options(base: Any, changes: Mapping[str, Any], group: str, **outside: Any) -> Any:
    """Return an encoding with some of its options changed (groups are mappings), and arguments ``outside`` its group.

    Raises:
        ConfigError: an unknown option of the config group ``group``, or a value that is not allowed.
    """
    if not isinstance(changes, Mapping):
        raise ConfigError(f"{group}: expected a group of options, {', '.join(option_defaults(base))}, got {changes!r}")
    base = base() if isinstance(base, type) else base
    defaults, rules, values = options(type(base)), read_rules(type(base)), {}
    for key, value in changes.items():
        if key not in defaults:
            raise ConfigError(f"{group}.{key}: unknown option.{suggest(key, defaults)}")
        if is_dataclass(getattr(base, key)):
            values[key] = with_options(getattr(base, key), value, f"{group}.{key}")
        elif key in rules and (why := refusal(rules[key], value)):
            raise ConfigError(f"{group}.{key}: {why}")
        else:
            values[key] = value
    return replace(base, **values, **outside)


def option_defaults(base: Any) -> dict[str, Any]:
    """Return the options of a config group with their defaults: a group inside it as a dict, a sequence as a list."""
    base = base() if isinstance(base, type) else base
    outside = {"name", *getattr(base, "FROM_CONFIG", ())}
    defaults = {name: getattr(base, name) for name in options(type(base)) if name not in outside}
    return {
        name: option_defaults(value) if is_dataclass(value) else list(value) if type(value) is tuple else value
        for name, value in defaults.items()
    }


def option_keys(base: Any) -> dict[str, Any]:
    """Return key below the config group -> default, with its rule where it has one; those of groups inside it too."""
    base = base() if isinstance(base, type) else base
    rules, keys = read_rules(type(base)), {}
    for name, value in option_defaults(base).items():
        if isinstance(value, dict):
            keys |= {f"{name}.{key}": default for key, default in option_keys(getattr(base, name)).items()}
        else:
            keys[name] = Default(value, rules[name]) if name in rules else value
    return keys
