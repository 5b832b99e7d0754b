"""The encoder of RWSE, HKdiagSE and ElstaticSE: precomputed numbers of a node, mapped and put beside its features."""

from __future__ import annotations

from torch import Tensor, cat, nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.layers import raw_norm, relu_layers
from graphgps_kmip.errors import InputError

MODELS = ("linear", "mlp")


class KernelEncoder(nn.Module):
    """Map a node's statistics to ``dim_pe`` numbers and append them to its features.

    The keyword-only arguments are options of the config group ``posenc_<name>``.

    Args:
        name: RWSE, HKdiagSE or ElstaticSE; the statistics are read from ``batch.pestat_<name>``.
        num_stats: their columns, K (RWSE and HKdiagSE: the number of times; ElstaticSE: 10).
        dim: width C of the result.
        dim_x: columns of ``batch.x``, which a linear layer maps to C - dim_pe. None: another encoder has made
            ``batch.x`` that wide, and it passes as it is.
        model: Linear, or mlp (hidden width 2 dim_pe, ReLU after every layer, the last one too).
        dim_pe: width of the encoding in the result.
        layers: linear layers of the mlp.
        raw_norm_type: BatchNorm (of the statistics) or none.
        pass_as_var: whether ``batch.pe_<name>`` keeps the encoding too.

    Shapes: batch.x (N, dim_x), batch.pestat_<name> (N, K) -> batch.x (N, C), in the dtype of the weights.

    Raises:
        ValueError: an unknown option, or no room for features when built; other statistics than K columns when called.
    """

    def __init__(
        self,
        name: str,
        num_stats: int,
        dim: int,
        dim_x: int | None = None,
        *,
        model: str = "none",
        dim_pe: int = 16,
        layers: int = 3,
        raw_norm_type: str = "none",
        pass_as_var: bool = False,
    ) -> None:
        super().__init__()
        group = f"posenc_{name}"
        if model.lower() not in MODELS:
            raise InputError(f"{group}.model must be Linear or mlp, got {model!r}")
        if not 1 <= dim_pe < dim or layers < 1:
            raise InputError(f"{group} needs 1 <= dim_pe < width {dim} and layers >= 1, got {dim_pe=}, {layers=}")
        self.name, self.num_stats, self.pass_as_var = name, num_stats, pass_as_var
        self.linear_x = nn.Identity() if dim_x is None else nn.Linear(dim_x, dim - dim_pe)
        self.raw_norm = raw_norm(name, raw_norm_type, num_stats)
        hidden = [2 * dim_pe] * (layers - 1)
        linear = model.lower() == "linear"
        self.pe_encoder = nn.Linear(num_stats, dim_pe) if linear else relu_layers([num_stats, *hidden, dim_pe])

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        dtype = next(self.pe_encoder.parameters()).dtype
        encoding = self.pe_encoder(self.raw_norm(self._statistics(batch).to(dtype)))  # (N, dim_pe)
        batch.x = cat([self.linear_x(batch.x.to(dtype)), encoding], dim=1)
        if self.pass_as_var:
            batch[f"pe_{self.name}"] = encoding
        return batch

    def _statistics(self, batch: Batch) -> Tensor:
        key = f"pestat_{self.name}"
        if key not in batch:
            raise InputError(
                f"{self.name} needs {key}, but the graphs do not have it: set posenc_{self.name}.enable True"
            )
        if batch[key].dim() != 2 or batch[key].size(1) != self.num_stats:
            raise InputError(f"{key} must be (nodes, {self.num_stats}), got {tuple(batch[key].shape)}")
        return batch[key]
