"""Pair stem of PPGT: features of pairs of nodes from RRWP, sinusoidal encoding and MLP, then residual blocks.

Ma et al. 2025 (PPGT), section on the architecture; `NodeStem` of node_stem.py is its counterpart for nodes.

The sinusoidal encoding of real numbers (SPE; section on sinusoidal enhancement of relative encodings, as NeRF's
encoding of positions) stands here alone and together with the linear layer behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import BatchNorm

from graphgps_kmip.encoding.node_stem import check_names, locations
from graphgps_kmip.encoding.rrwp import RRWP, with_rrwp
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.host_copies import host_copy
from graphgps_kmip.ops.node_pairs import all_pairs, first_nodes, pair_rows, rows_in_list
from graphgps_kmip.ops.row_chunks import RowStage, map_rows
from graphgps_kmip.ops.row_layers import GELUMLP, NORM_LAYERS, DropPath


def sinusoidal_width(channels: int, num_bases: int, raw_channels: bool) -> int:
    """Return the width of the encoding of C channels: 2 C S, and C more with the raw channels or without bases."""
    return channels * (2 * num_bases + (raw_channels or num_bases == 0))


def sinusoidal(x: Tensor, num_bases: int, raw_channels: bool = True) -> Tensor:
    r"""Return the sinusoidal encoding of each channel.

    .. math:: [x_1, \dots, x_C, \; \sin(2^s \pi x_c), \cos(2^s \pi x_c) \text{ for } c = 1..C, s = 0..S-1]

    computed in the dtype of x: rounding of x is magnified by 2^S, so that 15 bases need float64.

    Args:
        x (Tensor): Values.
        num_bases (int): S; 0: x itself.
        raw_channels (bool, optional): The values stand in front of their sines and cosines. (default: ``True``)

    Shapes: x (P, C) -> (P, `sinusoidal_width`).
    """
    if num_bases == 0:
        return x
    angles = x[:, :, None] * _bases(x, num_bases)  # (P, C, S)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return torch.cat([x, waves], dim=1) if raw_channels else waves


def _bases(x: Tensor, num_bases: int) -> Tensor:
    """Return 2^s pi, (S,)."""
    return torch.pi * 2.0 ** torch.arange(num_bases, dtype=x.dtype, device=x.device)


def sinusoidal_linear_of_chunk(
    x: Tensor, weight: Tensor, bias: Tensor, num_bases: int, raw_channels: bool = True
) -> Tensor:
    """Return ``linear(sinusoidal(x))`` of few rows, for a caller that divides rows into chunks (`map_rows`).

    Sines and cosines of all bases are two matrices with a product each, so that no wide encoding is put together; the
    backward pass keeps them. They are computed in the dtype of x, and cast to that of the weight or of autocast.

    Args:
        x (Tensor): Values.
        weight (Tensor): Of a linear layer.
        bias (Tensor): Likewise.
        num_bases (int): S.
        raw_channels (bool, optional): As in `sinusoidal`. (default: ``True``)

    Shapes: x (P, C), weight (D, `sinusoidal_width`), bias (D,) -> (P, D).
    """
    device, channels = x.device.type, x.size(1)
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    weight, bias = weight.to(kind), bias.to(kind)
    raw = channels if raw_channels or num_bases == 0 else 0
    y = torch.addmm(bias, x.to(kind), weight[:, :raw].T) if raw else bias
    if num_bases == 0:
        return y
    angles = (x[:, None] * _bases(x, num_bases)[:, None]).flatten(1)  # (p, S C)
    # (D, C, S, 2) as the columns of `sinusoidal` are -> the waves' (2, D, S C)
    waves = weight[:, raw:].unflatten(1, (channels, num_bases, 2)).permute(3, 0, 2, 1).flatten(2)
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
        raw_channels (bool, optional): Keep the values beside their sines. (default: ``True``)
        hidden (Sequence[int], optional): Hidden widths of the MLP. (default: ``(128,)``)
        drop_pairs (float, optional): In training, probability of a pair to have zeros in place of its values, which
            are not scaled. (default: 0.0)
        dim_location (int, optional): Columns of ``batch.pos``. (default: 2)
        act (Callable, optional): Makes the activation of the MLP. (default: ``nn.GELU``)

    Shapes: batch.rrwp (P, K), batch.rrwp_degree (N,), batch.pos (N, dim_location), batch.edge_attr (E, C) or none ->
        batch.pair_attr (P, C) of all P = sum n^2 pairs, graph by graph, query by query; or of the P pairs of
        batch.rrwp_index (2, P), where there is one, which is then batch.pair_index, too.

    Raises:
        InputError: an unknown feature when built; values, locations or edge features missing or too wide when called,
            or an edge that is not in the list of pairs.
    """

    def __init__(
        self,
        encoding: RRWP,
        dim: int,
        *,
        features: Sequence[str] = ("inverse_order", "inverse_degree"),
        num_bases: int = 3,
        raw_channels: bool = True,
        hidden: Sequence[int] = (128,),
        drop_pairs: float = 0.0,
        dim_location: int = 2,
        act: Callable[[], nn.Module] = nn.GELU,
    ) -> None:
        super().__init__()
        check_names("ppgt.pair_features", features, PAIR_FEATURES)
        widths = {"location": dim_location, "inverse_order": 1, "inverse_degree": 2}
        self.encoding, self.features, self.dim = encoding, tuple(features), dim
        self.num_bases, self.raw_channels, self.drop_pairs = num_bases, raw_channels, drop_pairs
        self.dim_location = dim_location
        channels = encoding.num_channels + sum(widths[name] for name in self.features)
        sizes = [sinusoidal_width(channels, num_bases, raw_channels), *hidden, dim]
        layers = [module for pair in pairwise(sizes) for module in (nn.Linear(*pair), act())]
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
        columns = self._columns(batch)
        if columns:
            rows["columns"] = torch.cat(columns, dim=1), None
        if self.training and self.drop_pairs:
            rows["kept"] = torch.rand(len(batch.rrwp), 1, device=batch.rrwp.device) >= self.drop_pairs, None
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
        """Return the features of the pairs of a slice; the shapes are those of `RowStage`."""
        given = dict(zip(names, rows, strict=True))
        values = given["values"]
        if "columns" in given:
            values = torch.cat([values, given["columns"]], dim=1)
        if "kept" in given:
            values = values * given["kept"]
        pairs = call(rest, sinusoidal_linear_of_chunk(values, *shared, self.num_bases, self.raw_channels))
        if "pairs" in given:
            pairs = pairs + given["pairs"]
        if "edges" in given:
            pairs = pairs.index_add(0, given["place"] - part.start, given["edges"].to(pairs.dtype))
        return pairs

    def _columns(self, batch: Batch) -> list[Tensor]:
        """Return what stands beside the probabilities in the input of the sinusoidal encoding, (P, 1 or more) each."""
        kind, columns = batch.rrwp.dtype, []
        ptr, listed = first_nodes(batch), batch.get("rrwp_index")
        query, key = (all_pairs(ptr) if listed is None else listed) if self.features else (None, None)
        if "location" in self.features:
            place = locations(batch, "ppgt.pair_features", self.dim_location)
            columns.append((place[query] - place[key]).to(kind))
        if "inverse_order" in self.features:
            sizes = ptr.diff()
            columns.append(_of_pairs(1 / sizes.to(kind), ptr, listed)[:, None])
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
        (key, query), listed = batch.edge_index, batch.get("rrwp_index")
        if listed is None:
            row = pair_rows(first_nodes(batch), query, key)
        else:
            row = rows_in_list(listed, query, key, len(batch.rrwp_degree))
            if (row < 0).any():
                raise InputError(
                    "an edge has features, but is not among the pairs of rrwp_index: set posenc_RRWP.k_hop to 1 or "
                    "more, and dataset.edge_encoder False for directed graphs whose directions are kept"
                )
        place, order = row.sort(stable=True)
        return batch.edge_attr[order], place


class PairFFN(nn.Module):
    r"""Refine the features of pairs by residual MLPs, each pair for itself.

    .. math:: y = x + \alpha \, \mathrm{droppath}(W_2 \, \sigma(W_1 \, \mathrm{norm}(x)))

    Args:
        dim (int): Width C.
        num_blocks (int): Number of MLPs.
        ffn_ratio (float, optional): Their hidden width over C. (default: 2.0)
        norm (str, optional): In front of each MLP, of ``NORM_LAYERS``. (default: ``"ada_rms_norm"``)
        first_norm (str, optional): Before the first block. (default: ``"none"``)
        last_norm (str, optional): After the last block. (default: ``"ada_rms_norm"``)
        drop_path (float, optional): Rate of stochastic depth, by graph and block. (default: 0.0)
        drop_path_scale (bool, optional): Scale what is kept. (default: ``True``)
        layer_scale (float, optional): Start of the learned alpha of each channel; 0: alpha is 1. (default: 0.0)
        act (Callable, optional): Makes the activation. (default: ``nn.GELU``)

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
        drop_path_scale: bool = True,
        layer_scale: float = 0.0,
        act: Callable[[], nn.Module] = nn.GELU,
    ) -> None:
        super().__init__()
        for key, name in (("norm", norm), ("first_norm", first_norm), ("last_norm", last_norm)):
            check_names(f"ppgt.stem_{key}", [name], NORM_LAYERS)
        self.first_norm, self.last_norm = NORM_LAYERS[first_norm](dim), NORM_LAYERS[last_norm](dim)
        self.norms = nn.ModuleList(NORM_LAYERS[norm](dim) for _ in range(num_blocks))
        self.dim, hidden = dim, int(dim * ffn_ratio)
        self.mlps = nn.ModuleList(
            GELUMLP(nn.Linear(dim, hidden), act(), nn.Linear(hidden, dim)) for _ in range(num_blocks)
        )
        self.drop_path = DropPath(drop_path, drop_path_scale)
        self.scales = nn.ParameterList(
            nn.Parameter(torch.full((dim,), layer_scale)) for _ in range(num_blocks if layer_scale else 0)
        )

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.pair_attr``."""
        stage, pairs = self.stage(batch), batch.pair_attr
        if stage is None:
            batch.pair_attr = self._blocks(pairs, self._kept(batch), lambda module, x: module(x), tuple(self.scales))
        else:
            given = RowStage(lambda x, part, rows, shared, call: rows[0], pairs.size(1), ((pairs, None),))  # noqa: ARG005
            batch.pair_attr = map_rows([given, stage], len(pairs))
        return batch

    def stage(self, batch: Batch) -> RowStage | None:
        """Return the blocks as a function of some pairs at a time; None: a batch norm needs all of them at once."""
        if any(isinstance(module, BatchNorm) for module in self.modules()):
            return None
        kept = self._kept(batch)
        rows = () if kept is None else ((kept, None),)
        modules = (self.first_norm, *self.norms, *self.mlps, self.last_norm)
        width = max(mlp[0].out_features for mlp in self.mlps) if len(self.mlps) else self.dim
        return RowStage(self._rows, width, rows, tuple(self.scales), modules)

    def _rows(
        self,
        x: Tensor,
        part: slice,  # noqa: ARG002
        rows: Sequence[Tensor],
        shared: Sequence[Tensor],
        call: Callable[[nn.Module, Tensor], Tensor],
    ) -> Tensor:
        """Return the features of some pairs; the shapes are those of `RowStage`."""
        return self._blocks(x, rows[0] if rows else None, call, shared)

    def _blocks(
        self,
        x: Tensor,
        kept: Tensor | None,
        call: Callable[[nn.Module, Tensor], Tensor],
        scales: Sequence[Tensor],
    ) -> Tensor:
        x = call(self.first_norm, x)
        for number, (norm, mlp) in enumerate(zip(self.norms, self.mlps, strict=True)):
            update = call(mlp, call(norm, x))
            update = update if kept is None else update * kept[:, number, None].to(update.dtype)
            x = torch.addcmul(x, update, scales[number]) if len(scales) else x + update
        return call(self.last_norm, x)

    def _kept(self, batch: Batch) -> Tensor | None:
        """Return the factor of each pair in each block, (P, blocks): one draw for a graph; None: all are 1."""
        if not self.training or not self.drop_path.rate or not len(self.mlps):
            return None
        ptr = first_nodes(batch)
        ones = self.mlps[0][0].weight.new_ones(len(ptr) - 1, 1)
        factors = torch.cat([self.drop_path(ones) for _ in self.mlps], dim=1)
        return _of_pairs(factors, ptr, batch.get("rrwp_index"))


def _of_pairs(values: Tensor, ptr: Tensor, listed: Tensor | None) -> Tensor:
    """Return for each pair, all or those of a list (2, P), what its graph has: (B, ...) -> (P, ...)."""
    if listed is None:
        count, number = ptr.diff().square(), int(host_copy(ptr).diff().square().sum())
    else:
        count, number = torch.searchsorted(listed[0].contiguous(), ptr).diff(), listed.size(1)
    return values.repeat_interleave(count, dim=0, output_size=number)
