"""Encoders of LapPE, EquivStableLapPE, SignNet, RWSE and the kernels: the public code's records, symmetries, errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.feature_encoders import LinearNodeEncoder
from graphgps_kmip.encoding.laplacian import Eigen, EquivStableLapPE, LapPE, SignNet
from graphgps_kmip.encoding.positional_encoding import KernelEncoder, NodeEncoding

DEEPSET = {"model": "DeepSet", "dim_pe": 4, "layers": 2}
SIGNNET = {"model": "DeepSet", "layers": 3, "post_layers": 2, "max_freqs": 3}


def lappe(dim: int = 8, dim_x: int | None = 8, max_freqs: int = 10, **options: Any) -> nn.Module:
    return LapPE(eigen=Eigen(max_freqs=max_freqs), **(DEEPSET | options)).encoder(dim, dim_x)


def signnet(dim: int = 8, dim_x: int | None = 8, max_freqs: int = 10, **options: Any) -> nn.Module:
    options = {"dim_pe": 4, "phi_hidden_dim": 6, "phi_out_dim": 4} | options
    return SignNet(eigen=Eigen(max_freqs=max_freqs), **options).encoder(dim, dim_x)


def equivstable(**options: Any) -> nn.Module:
    return EquivStableLapPE(**options).encoder(8, None)


def kernel(name: str, columns: int, model: str, dim: int = 8, dim_x: int | None = 8, **options: Any) -> KernelEncoder:
    class Columns(NodeEncoding):
        num_columns = columns

    return KernelEncoder(Columns(name=name, model=model, **{"dim_pe": 4} | options), dim, dim_x)


RECORDS: dict[str, Callable[[], nn.Module]] = {
    "lappe_deepset_l1_post1": partial(lappe, layers=1, post_layers=1),
    "lappe_deepset_l2": lappe,
    "lappe_deepset_l2_k4_noexpand": partial(lappe, 12, None, max_freqs=4),
    "lappe_deepset_l3_post2_bn": partial(lappe, layers=3, post_layers=2, raw_norm_type="BatchNorm"),
    "lappe_transformer_l1": partial(lappe, model="Transformer", layers=1, n_heads=2),
    "equivstable_bn": partial(equivstable, raw_norm_type="BatchNorm"),
    "composed_linearnode_lappe": lambda: nn.Sequential(LinearNodeEncoder(8, 4), lappe(dim_x=None)),
    "composed_linearnode_equivstable": lambda: nn.Sequential(LinearNodeEncoder(8, 8), equivstable()),
    "composed_linearnode_lappe_rwse": lambda: nn.Sequential(
        LinearNodeEncoder(8, 8), lappe(16, None), kernel("RWSE", 8, "Linear", 16, None)
    ),
    "signnet_mlp_l2_post1": partial(signnet, model="MLP", layers=2, post_layers=1, max_freqs=4),
    "signnet_deepset": partial(signnet, **SIGNNET | {"max_freqs": 10}),
    "rwse_linear": partial(kernel, "RWSE", 8, "Linear"),
    "rwse_mlp1": partial(kernel, "RWSE", 8, "mlp", layers=1),
    "rwse_mlp2": partial(kernel, "RWSE", 8, "mlp", layers=2),
    "rwse_mlp3_bn": partial(kernel, "RWSE", 8, "mlp", raw_norm_type="BatchNorm"),
    "hkdiagse_linear_bn": partial(kernel, "HKdiagSE", 8, "Linear", raw_norm_type="BatchNorm"),
    "elstaticse_linear_bn": partial(kernel, "ElstaticSE", 10, "Linear", raw_norm_type="BatchNorm"),
}


def example(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """A path of 4 nodes and an edge: the second graph has no third eigenvector."""
    torch.manual_seed(0)
    vectors, values = torch.randn(6, 3, dtype=dtype), torch.rand(6, 3, 1, dtype=dtype)
    vectors[4:, 2:] = values[4:, 2:] = torch.nan
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 4, 5], [1, 0, 2, 1, 3, 2, 5, 4]])
    x = torch.randn(6, 8, dtype=dtype)
    return {"x": x, "EigVecs": vectors, "EigVals": values, "eigvecs_sn": vectors, "edge_index": edges}


def run(encoder: nn.Module, inputs: dict[str, Tensor], **changes: Tensor) -> Tensor:
    return encoder(Batch(**inputs | changes)).x


def reorder(inputs: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    moved = {key: value[order] for key, value in inputs.items() if key != "edge_index"}
    return moved | {"edge_index": order.argsort()[inputs["edge_index"]]}


@pytest.mark.parametrize(
    ("make", "options"),
    [(lappe, {}), (lappe, {"model": "Transformer", "n_heads": 2}), (signnet, SIGNNET)],
    ids=["LapPE DeepSet", "LapPE Transformer", "SignNet"],
)
def test_padding_and_the_order_of_nodes_change_nothing(make: Callable[..., nn.Module], options: dict[str, Any]) -> None:
    encoder, wide = (make(**options | {"max_freqs": count}).eval() for count in (3, 5))
    wide.load_state_dict(encoder.state_dict())
    inputs, order = example(), torch.randperm(6)
    expected = run(encoder, inputs)
    assert expected.isfinite().all()
    padded = {
        key: torch.cat([inputs[key], torch.full_like(inputs[key][:, :2], torch.nan)], 1)
        for key in ("EigVecs", "EigVals", "eigvecs_sn")
    }
    torch.testing.assert_close(run(wide, inputs, **padded), expected)
    torch.testing.assert_close(run(encoder, reorder(inputs, order)), expected[order])
    if make is lappe:  # a set of eigenpairs
        flipped = {key: inputs[key].flip(1) for key in ("EigVecs", "EigVals")}
        torch.testing.assert_close(run(encoder, inputs, **flipped), expected)
    else:
        changed = inputs["eigvecs_sn"] * torch.tensor([1.0, 1.0, 2.0])
        differs = (run(encoder, inputs, eigvecs_sn=changed) - expected).abs().amax(dim=1) > 1e-4
        assert differs.tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize("model", ["MLP", "DeepSet"])
@pytest.mark.parametrize("training", [False, True])
def test_signs_change_nothing_in_signnet(model: str, training: bool) -> None:
    encoder, inputs = signnet(**SIGNNET | {"model": model}).double().train(training), example(torch.float64)
    signs = torch.tensor([-1.0, -1.0, -1.0] if training else [1.0, -1.0, -1.0])  # phi(v) has its own batch statistics
    torch.testing.assert_close(run(encoder, inputs, eigvecs_sn=inputs["eigvecs_sn"] * signs), run(encoder, inputs))


def test_signs_are_flipped_by_column_in_training_only() -> None:
    encoder = lappe(max_freqs=3)
    first = run(encoder, example())  # the example seeds torch: the same flips
    torch.testing.assert_close(run(encoder, example()), first, rtol=0, atol=0)
    inputs = example()
    drawn = {tuple(run(encoder, inputs).flatten().tolist()) for _ in range(60)}
    assert len(drawn) == 8  # 2^3 columns' signs, one draw for all nodes of a batch
    encoder.eval()
    assert len({tuple(run(encoder, inputs).flatten().tolist()) for _ in range(5)}) == 1


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (partial(lappe, 12, None, max_freqs=3), "pe_LapPE"),
        (partial(signnet, 12, None, **SIGNNET), "pe_SignNet"),
        (partial(kernel, "RWSE", 6, "linear", 12, None), "pe_RWSE"),
    ],
    ids=["LapPE", "SignNet", "RWSE"],
)
def test_the_encoding_can_be_kept_and_features_of_another_encoder_pass(make: Callable[..., Any], key: str) -> None:
    inputs = example() | {"pestat_RWSE": torch.rand(6, 6).double()}
    out = make(pass_as_var=True).eval()(Batch(**inputs))
    torch.testing.assert_close(out.x, torch.cat([inputs["x"], out[key]], dim=1), rtol=0, atol=0)
    assert key not in make()(Batch(**inputs))
    raw = make(pass_as_var=True).double()(Batch(**inputs | {"x": torch.ones(6, 8, dtype=torch.long)}))
    assert raw.x.dtype == torch.float64  # that of the weights


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lappe, {"model": "none"}, "posenc_LapPE.model must be DeepSet or Transformer, got 'none'"),
        (lappe, {"raw_norm_type": "layer"}, "raw_norm_type must be BatchNorm or none, got 'layer'"),
        (lappe, {"dim_pe": 8}, "dim_pe from 1 to 7"),
        (lappe, {"dim_pe": 9, "dim_x": None}, "dim_pe from 1 to 8"),
        (lappe, {"model": "Transformer", "n_heads": 3}, "must be a multiple of posenc_LapPE.n_heads"),
        (signnet, SIGNNET | {"model": "none"}, "posenc_SignNet.model must be MLP or DeepSet, got 'none'"),
        (signnet, SIGNNET | {"post_layers": 0}, "post_layers >= 1"),
        (partial(kernel, "RWSE", 6, "none", 8, 3), {}, "posenc_RWSE.model must be Linear or mlp, got 'none'"),
        (partial(kernel, "RWSE", 6, "mlp", 8, 3), {"layers": 0}, "layers=0"),
    ],
)
def test_options_that_cannot_be_are_refused(make: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(**options)


@pytest.mark.parametrize(
    ("encoder", "missing", "message"),
    [
        (lappe(max_freqs=4), (), "EigVecs must be .* check posenc_LapPE.eigen.max_freqs"),
        (equivstable(), ("eigvecs_es",), "set posenc_EquivStableLapPE.enable True"),
        (signnet(**SIGNNET | {"max_freqs": 4}), (), "check posenc_SignNet.eigen.max_freqs"),
        (kernel("RWSE", 6, "Linear"), (), r"\(nodes, 6\)"),
        (kernel("RWSE", 6, "Linear"), ("pestat_RWSE",), "posenc_RWSE.enable"),
    ],
)
def test_missing_or_other_statistics_are_refused(encoder: nn.Module, missing: tuple[str, ...], message: str) -> None:
    inputs = {key: value for key, value in example().items() if key not in missing}
    if "pestat_RWSE" not in missing:
        inputs["pestat_RWSE"] = torch.rand(6, 4)
    with pytest.raises(ValueError, match=message):
        encoder(Batch(**inputs))
