"""Stems of PPGT (Ma et al. 2025): structural features of nodes and pairs, node mask, target node, class token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import BatchNorm

from graphgps_kmip.encoding.rrwp import RRWP, diagonal, with_rrwp
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import all_pairs, first_nodes, pair_rows, rows_in_list
from graphgps_kmip.ops.host_copies import host_copy
from graphgps_kmip.ops.row_chunks import RowStage, map_rows
from graphgps_kmip.ops.row_layers import GELUMLP, NORM_LAYERS, DropPath

NODE_FEATURES = ("rrwp", "log_degree", "log_order", "location")
INITIAL_STD = 0.02  # of tokens, as in the public code


def get_locations(batch: Batch, key: str, dim: int) -> Tensor:
    """Return ``batch.pos`` (N, dim) for a config key; an `InputError` where it is missing or of another width."""
    if batch.get("pos") is None:
        raise InputError(f"{key}: location needs batch.pos, which the data does not have: leave it out")
    if batch.pos.size(1) != dim:
        raise InputError(
            f"{key}: location has {batch.pos.size(1)} columns, ppgt.dim_location says {dim}: set it to the former"
        )
    return batch.pos


class NodeStem(nn.Module):
    r"""Add linear maps of structural features to the node features.

    .. math:: x_i' = x_i + \sum_f W_f f_i + b_f

    with f of: ``rrwp`` (the probabilities P_ii), ``log_degree`` log(1 + d_i), ``log_order`` log(1 + N), ``location``
    (batch.pos). Without ``batch.x`` it is the sum alone.

    Args:
        encoding (RRWP): Its values are precomputed, or computed here for each mini-batch.
        dim (int): Width C.
        features (Sequence[str], optional): Of `NODE_FEATURES`. (default: ``("rrwp", "log_degree", "log_order")``)
        dim_location (int, optional): Columns of ``batch.pos``. (default: 2)

    Shapes: batch.x (N, C), batch.rrwp (P, K), batch.rrwp_degree (N,), batch.pos (N, dim_location) -> batch.x (N, C).
    """

    def __init__(
        self,
        encoding: RRWP,
        dim: int,
        *,
        features: Sequence[str] = ("rrwp", "log_degree", "log_order"),
        dim_location: int = 2,
    ) -> None:
        super().__init__()
        widths = {"rrwp": encoding.num_channels, "log_degree": 1, "log_order": 1, "location": dim_location}
        self.encoding = encoding
        self.linears = nn.ModuleDict({name: nn.Linear(widths[name], dim) for name in features})

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        if self.linears.keys() & {"rrwp", "log_degree"}:
            batch = with_rrwp(batch, self.encoding)
        for name, linear in self.linears.items():
            added = linear(self._feature(batch, name).to(linear.weight.dtype))
            batch.x = added if batch.get("x") is None else batch.x + added
        return batch

    def _feature(self, batch: Batch, name: str) -> Tensor:
        ptr = first_nodes(batch)
        if name == "rrwp":
            return diagonal(batch.rrwp, ptr, batch.get("rrwp_index"))
        if name == "log_degree":
            return batch.rrwp_degree.double().log1p()[:, None]
        if name == "log_order":
            return ptr.diff().double().log1p().repeat_interleave(ptr.diff())[:, None]
        return get_locations(batch, "ppgt.node_features", self.linears[name].in_features)


class NodeMask(nn.Module):
    """Set the features of randomly chosen nodes to 0 while training; the others are not scaled up, unlike in dropout.

    Args:
        rate (float): Probability of each node, in [0, 1).

    Shapes: batch.x (N, C) -> (N, C).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        if self.training:
            batch.x = batch.x * (torch.rand(len(batch.x), 1, device=batch.x.device) >= self.rate)
        return batch


class TargetNode(nn.Module):
    """Add one learned vector to the nodes whose class is asked for, such as the centre of a sampled subgraph.

    Args:
        dim (int): Width C.

    Shapes: batch.x (N, C), batch.target_mask (N,) -> batch.x (N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, dim) * INITIAL_STD)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        if batch.get("target_mask") is None:
            raise InputError(
                "ppgt.node_features: target needs batch.target_mask, which a sampler of subgraphs sets: leave it out"
            )
        batch.x = batch.x + batch.target_mask[:, None] * self.token
        return batch


class ClassToken(nn.Module):
    """Make the class token of each graph: one learned vector (C,), and an MLP of the number of nodes.

    Args:
        dim (int): Width C.
        order (str, optional): ``"order"``, or ``"none"``: without the MLP. (default: ``"none"``)

    Shapes: batch.ptr (B + 1,) -> batch.class_token (B, C).
    """

    def __init__(self, dim: int, *, order: str = "none") -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, dim) * INITIAL_STD)
        layers = nn.Linear(1, dim // 2), nn.GELU(), nn.Linear(dim // 2, dim)
        self.mlp = None if order == "none" else nn.Sequential(*layers)

    def forward(self, batch: Batch) -> Batch:
        """Set ``batch.class_token``."""
        sizes = first_nodes(batch).diff()[:, None].to(self.token.dtype)
        batch.class_token = self.token.expand(len(sizes), -1) if self.mlp is None else self.token + self.mlp(sizes)
        return batch


def sinusoidal(x: Tensor, num_bases: int) -> Tensor:
    r"""Return the sinusoidal encoding of each channel.

    .. math:: [x_1, \dots, x_C, \; \sin(2^s \pi x_c), \cos(2^s \pi x_c) \text{ for } c = 1..C, s = 0..S-1]

    with S = ``num_bases`` (0: x itself). It is computed in the dtype of x: rounding of x is magnified by 2^S, so that
    15 bases need float64.

    Shapes: x (P, C) -> (P, C (2 S + 1)).
    """
    angles = x[:, :, None] * _bases(x, num_bases)  # (P, C, S)
    return torch.cat([x, torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)], dim=1)


def _bases(x: Tensor, num_bases: int) -> Tensor:
    return torch.pi * 2.0 ** torch.arange(num_bases, dtype=x.dtype, device=x.device)


def sinusoidal_linear_of_chunk(x: Tensor, weight: Tensor, bias: Tensor, num_bases: int) -> Tensor:
    """Return ``linear(sinusoidal(x))`` of few rows, for a caller that divides rows into chunks (`map_rows`).

    Sines and cosines are computed in the dtype of x, and cast to that of the weight or of autocast.

    Shapes: x (P, C), weight (D, C (2 S + 1)), bias (D,) -> (P, D).
    """
    device, channels = x.device.type, x.size(1)
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    weight, bias = weight.to(kind), bias.to(kind)
    y = torch.addmm(bias, x.to(kind), weight[:, :channels].T)
    if num_bases == 0:
        return y
    angles = (x[:, None] * _bases(x, num_bases)[:, None]).flatten(1)  # (p, S C)
    # (D, C, S, 2) as the columns of `sinusoidal` are -> the waves' (2, D, S C)
    waves = weight[:, channels:].unflatten(1, (channels, num_bases, 2)).permute(3, 0, 2, 1).flatten(2)
    return torch.addmm(torch.addmm(y, angles.sin().to(kind), waves[0].T), angles.cos().to(kind), waves[1].T)


# In the order of the columns, which public checkpoints fix.
PAIR_FEATURES = ("location", "inverse_order", "inverse_degree")


class PairStem(nn.Module):
    r"""Make features of the pairs of nodes that have random walk probabilities (`RRWP`): all, or those of its list.

    .. math:: p_{ij} = \mathrm{MLP}(\mathrm{SPE}([P_{ij}, \; l_i - l_j, \; 1/N, \; 1/d_j, \; 1/d_i])) + e_{ji}

    for query i and key j, with location l, N nodes of the graph, degree d (1/0 is 0) and the features e of an edge from
    j to i. What ``batch.pair_attr`` holds already (`I2GINEncoder`) is added.

    Args:
        encoding (RRWP): Its values are precomputed, or computed here for each mini-batch.
        dim (int): Width C of the result.
        features (Sequence[str], optional): Of `PAIR_FEATURES`. (default: ``("inverse_order", "inverse_degree")``)
        num_bases (int, optional): S of the sinusoidal encoding; 0: none. (default: 3)
        hidden (Sequence[int], optional): Hidden widths of the MLP, with GELU. (default: ``(128,)``)
        dim_location (int, optional): Columns of ``batch.pos``. (default: 2)

    Shapes: batch.rrwp (P, K), batch.rrwp_degree (N,), batch.pos (N, dim_location), batch.edge_attr (E, C) or none ->
        batch.pair_attr (P, C) of all P = sum n^2 pairs, or of those of batch.rrwp_index, then batch.pair_index, too.

    Raises:
        InputError: when called: values missing or of another width, or an edge that is not in the list of pairs.
    """

    def __init__(
        self,
        encoding: RRWP,
        dim: int,
        *,
        features: Sequence[str] = ("inverse_order", "inverse_degree"),
        num_bases: int = 3,
        hidden: Sequence[int] = (128,),
        dim_location: int = 2,
    ) -> None:
        super().__init__()
        widths = {"location": dim_location, "inverse_order": 1, "inverse_degree": 2}
        self.encoding, self.features, self.dim = encoding, tuple(features), dim
        self.num_bases, self.dim_location = num_bases, dim_location
        channels = encoding.num_channels + sum(widths[name] for name in self.features)
        sizes = [channels * (2 * num_bases + 1), *hidden, dim]
        layers = [module for pair in pairwise(sizes) for module in (nn.Linear(*pair), nn.GELU())]
        self.mlp = GELUMLP(*layers[:-1])

    def forward(self, batch: Batch) -> Batch:
        """Set ``batch.pair_attr``."""
        stage = self.stage(batch)
        batch.pair_attr = map_rows([stage], len(batch.rrwp))
        return batch

    def stage(self, batch: Batch) -> RowStage:
        """Return the stem as a function of some pairs at a time; the batch is given ``rrwp`` where it has none."""
        batch = with_rrwp(batch, self.encoding)
        if "rrwp_index" in batch:
            batch.pair_index = batch.rrwp_index
        rows: dict[str, tuple[Tensor, Tensor | None]] = {"values": (batch.rrwp, None)}
        if self.features:
            rows["columns"] = torch.cat(self._columns(batch), dim=1), None
        if batch.get("pair_attr") is not None:
            rows["pairs"] = batch.pair_attr, None
        if batch.get("edge_attr") is not None:
            edges, place = self._edges(batch)
            rows |= {"edges": (edges, place), "place": (place, place)}
        first, rest = self.mlp[0], self.mlp[1:]
        function = partial(self._rows, tuple(rows), rest)
        width = max(layer.weight.numel() // layer.bias.numel() for layer in self.mlp if isinstance(layer, nn.Linear))
        return RowStage(function, max(width, self.dim), tuple(rows.values()), (first.weight, first.bias), (rest,))

    def _rows(
        self,
        names: Sequence[str],
        rest: nn.Module,
        x: None,  # noqa: ARG002
        part: slice,
        rows: Sequence[Tensor],
        shared: Sequence[Tensor],
        call: Callable[[nn.Module, Tensor], Tensor],
    ) -> Tensor:
        tensors = dict(zip(names, rows, strict=True))
        values = tensors["values"]
        if "columns" in tensors:
            values = torch.cat([values, tensors["columns"]], dim=1)
        pairs = call(rest, sinusoidal_linear_of_chunk(values, *shared, self.num_bases))
        if "pairs" in tensors:
            pairs = pairs + tensors["pairs"]
        if "edges" in tensors:
            pairs = pairs.index_add(0, tensors["place"] - part.start, tensors["edges"].to(pairs.dtype))
        return pairs

    def _columns(self, batch: Batch) -> list[Tensor]:
        kind, columns = batch.rrwp.dtype, []
        ptr, pairs = first_nodes(batch), batch.get("rrwp_index")
        query, key = all_pairs(ptr) if pairs is None else pairs
        if "location" in self.features:
            place = get_locations(batch, "ppgt.pair_features", self.dim_location)
            columns.append((place[query] - place[key]).to(kind))
        if "inverse_order" in self.features:
            columns.append(_repeat_for_pairs(1 / ptr.diff().to(kind), ptr, pairs)[:, None])
        if "inverse_degree" in self.features:
            degree = batch.rrwp_degree.to(kind)
            inverse = torch.where(degree > 0, 1 / degree, 0)
            columns += [inverse[key, None], inverse[query, None]]
        return columns

    def _edges(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the features of edges (u, v) in order of their pairs, and these pairs: query v, key u."""
        if batch.edge_attr.dim() != 2 or batch.edge_attr.size(1) != self.dim:
            raise InputError(
                f"edge features are {tuple(batch.edge_attr.shape)}, the features of pairs {self.dim} wide: set "
                "dataset.edge_encoder True, and ppgt.dim_pair to the width of its result"
            )
        (key, query), pairs = batch.edge_index, batch.get("rrwp_index")
        if pairs is None:
            row = pair_rows(first_nodes(batch), query, key)
        else:
            row = rows_in_list(pairs, query, key, len(batch.rrwp_degree))
            if (row < 0).any():
                raise InputError(
                    "an edge has features, but is not among the pairs of rrwp_index: set posenc_RRWP.k_hop to 1 or "
                    "more, and dataset.edge_encoder False for directed graphs whose directions are kept"
                )
        place, order = row.sort(stable=True)
        return batch.edge_attr[order], place


class PairFFN(nn.Module):
    r"""Refine the features of pairs by residual MLPs, each pair for itself.

    .. math:: y = x + \alpha \, \mathrm{droppath}(W_2 \, \mathrm{GELU}(W_1 \, \mathrm{norm}(x)))

    Args:
        dim (int): Width C.
        num_blocks (int): Number of MLPs.
        ffn_ratio (float, optional): Their hidden width over C. (default: 2.0)
        norm (str, optional): In front of each MLP, of ``NORM_LAYERS``. (default: ``"ada_rms_norm"``)
        first_norm (str, optional): Before the first block. (default: ``"none"``)
        last_norm (str, optional): After the last block. (default: ``"ada_rms_norm"``)
        drop_path (float, optional): Rate of stochastic depth, by graph and block. (default: 0.0)
        layer_scale (float, optional): Start of the learned alpha of each channel; 0: alpha is 1. (default: 0.0)

    Shapes: batch.pair_attr (P, C) -> (P, C).
    """

    def __init__(
        self,
        dim: int,
        num_blocks: int,
        *,
        ffn_ratio: float = 2.0,
        norm: str = "ada_rms_norm",
        first_norm: str = "none",
        last_norm: str = "ada_rms_norm",
        drop_path: float = 0.0,
        layer_scale: float = 0.0,
    ) -> None:
        super().__init__()
        self.first_norm, self.last_norm = NORM_LAYERS[first_norm](dim), NORM_LAYERS[last_norm](dim)
        self.norms = nn.ModuleList(NORM_LAYERS[norm](dim) for _ in range(num_blocks))
        self.dim, hidden = dim, int(dim * ffn_ratio)
        self.mlps = nn.ModuleList(
            GELUMLP(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim)) for _ in range(num_blocks)
        )
        self.drop_path = DropPath(drop_path)
        self.scales = nn.ParameterList(
            nn.Parameter(torch.full((dim,), layer_scale)) for _ in range(num_blocks if layer_scale else 0)
        )

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.pair_attr``."""
        pairs, factors = batch.pair_attr, self._factors(batch)
        batch.pair_attr = self._rows(pairs, slice(None), factors, tuple(self.scales), lambda module, x: module(x))
        return batch

    def stage(self, batch: Batch) -> RowStage | None:
        """Return the blocks as a function of some pairs at a time; None: a batch norm needs all of them at once."""
        if any(isinstance(module, BatchNorm) for module in self.modules()):
            return None
        rows = tuple((factors, None) for factors in self._factors(batch))
        modules = (self.first_norm, *self.norms, *self.mlps, self.last_norm)
        width = max((mlp[0].out_features for mlp in self.mlps), default=self.dim)
        return RowStage(self._rows, width, rows, tuple(self.scales), modules)

    def _rows(
        self,
        x: Tensor,
        part: slice,  # noqa: ARG002
        factors: Sequence[Tensor],
        scales: Sequence[Tensor],
        call: Callable[[nn.Module, Tensor], Tensor],
    ) -> Tensor:
        x = call(self.first_norm, x)
        for number, (norm, mlp) in enumerate(zip(self.norms, self.mlps, strict=True)):
            update = call(mlp, call(norm, x))
            update = update * factors[0][:, number, None].to(update.dtype) if factors else update
            x = torch.addcmul(x, update, scales[number]) if len(scales) else x + update
        return call(self.last_norm, x)

    def _factors(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the factor of each pair in each block, (P, blocks): one draw for a graph; (): all are 1."""
        if not self.training or not self.drop_path.rate or not len(self.mlps):
            return ()
        ptr = first_nodes(batch)
        ones = self.mlps[0][0].weight.new_ones(len(ptr) - 1, 1)
        factors = torch.cat([self.drop_path(ones) for _ in self.mlps], dim=1)
        return (_repeat_for_pairs(factors, ptr, batch.get("rrwp_index")),)


def _repeat_for_pairs(values: Tensor, ptr: Tensor, pairs: Tensor | None) -> Tensor:
    """Return for each pair, all or those of a list (2, P), what its graph has: (B, ...) -> (P, ...)."""
    if pairs is None:
        count, number = ptr.diff().square(), int(host_copy(ptr).diff().square().sum())
    else:
        count, number = torch.searchsorted(pairs[0].contiguous(), ptr).diff(), pairs.size(1)
    return values.repeat_interleave(count, dim=0, output_size=number)
