"""SignNet: the public code's records, invariance, options, errors."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch

from graphgps_kmip.encoding.signnet import SignNetEncoder
from tests.recorded import check, load

RECORDS = {
    "signnet_mlp_l2_post1": {"model": "MLP", "layers": 2, "post_layers": 1, "max_freqs": 4},
    "signnet_deepset": {"model": "DeepSet", "layers": 3, "post_layers": 2, "max_freqs": 10},
}
DEEPSET = RECORDS["signnet_deepset"] | {"max_freqs": 3}


def signnet(dim: int = 8, dim_x: int | None = 8, **options: object) -> SignNetEncoder:
    return SignNetEncoder(dim, dim_x, dim_pe=4, phi_hidden_dim=6, phi_out_dim=4, **options)


def rename(key: str) -> str:
    """Linear layer, ReLU and norm follow each other in a Sequential; the first GIN layer has no norm before it."""
    key = key.replace("sign_inv_net.rho", "rho").replace("sign_inv_net.enc", "phi")
    key = re.sub(r"phi\.bns\.(\d)", lambda match: f"phi.norms.{int(match[1]) + 1}", key)
    key = re.sub(r"lins\.(\d)", lambda match: f"{3 * int(match[1])}", key)
    return re.sub(r"bns\.(\d)", lambda match: f"{3 * int(match[1]) + 2}", key)


def run(encoder: SignNetEncoder, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"x": encoder(Batch(**inputs)).x}


@pytest.mark.parametrize("name", RECORDS)
def test_outputs_and_gradients_match_the_public_code(name: str) -> None:
    encoder = signnet(**RECORDS[name]).double()
    check(encoder, partial(run, encoder), load(f"D_encoders/{name}"), rename)


def example(num_freqs: int = 3) -> dict[str, Tensor]:
    """A path of 4 nodes and an edge: the second has no third eigenvector."""
    torch.manual_seed(0)
    vectors = torch.randn(6, num_freqs)
    vectors[4:, 2:] = torch.nan
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 4, 5], [1, 0, 2, 1, 3, 2, 5, 4]])
    return {"x": torch.randn(6, 8), "eigvecs_sn": vectors, "edge_index": edges}


@pytest.mark.parametrize("model", ["MLP", "DeepSet"])
@pytest.mark.parametrize("training", [False, True])
def test_signs_change_nothing_and_nodes_may_be_renumbered(model: str, training: bool) -> None:
    encoder = signnet(**(DEEPSET | {"model": model})).double().train(training)
    inputs = {key: value.double() if value.is_floating_point() else value for key, value in example().items()}
    expected = encoder(Batch(**inputs)).x
    assert expected.isfinite().all()
    signs = torch.tensor([-1.0, -1.0, -1.0] if training else [1.0, -1.0, -1.0])  # phi(v) has its own batch statistics
    flipped = inputs | {"eigvecs_sn": inputs["eigvecs_sn"] * signs}
    torch.testing.assert_close(encoder(Batch(**flipped)).x, expected)
    order = torch.randperm(6)
    moved = {key: inputs[key][order] for key in ("x", "eigvecs_sn")} | {
        "edge_index": order.argsort()[inputs["edge_index"]]
    }
    torch.testing.assert_close(encoder(Batch(**moved)).x, expected[order])


def test_a_deepset_leaves_padding_out_and_reads_every_eigenvector() -> None:
    encoder, wide = signnet(**DEEPSET).eval(), signnet(**(DEEPSET | {"max_freqs": 5})).eval()
    wide.load_state_dict(encoder.state_dict())
    inputs = example()
    expected = encoder(Batch(**inputs)).x
    padded = torch.nn.functional.pad(inputs["eigvecs_sn"], (0, 2), value=torch.nan)
    torch.testing.assert_close(wide(Batch(**(inputs | {"eigvecs_sn": padded}))).x, expected)
    changed = inputs | {"eigvecs_sn": inputs["eigvecs_sn"] * torch.tensor([1.0, 1.0, 2.0])}
    differs = (encoder(Batch(**changed)).x - expected).abs().amax(dim=1) > 1e-4
    assert differs.tolist() == [True] * 4 + [False] * 2


def test_the_encoding_can_be_kept_and_features_of_another_encoder_pass() -> None:
    inputs = example()
    out = signnet(12, None, pass_as_var=True, **DEEPSET).eval()(Batch(**inputs))
    torch.testing.assert_close(out.x, torch.cat([inputs["x"], out.pe_SignNet], dim=1), rtol=0, atol=0)


def test_one_layer_of_phi_is_built_as_two_like_in_the_public_code() -> None:
    assert len(signnet(**(DEEPSET | {"layers": 1})).phi.layers) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "none"}, "posenc_SignNet.model must be MLP or DeepSet, got 'none'"),
        ({"post_layers": 0}, "post_layers >= 1"),
        ({"layers": 0}, "layers >= 1"),
        ({"dim": 4}, "1 <= dim_pe < width 4"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        signnet(**(DEEPSET | options))


def test_missing_or_other_statistics_are_refused() -> None:
    inputs = example()
    with pytest.raises(ValueError, match="check posenc_SignNet.eigen.max_freqs"):
        signnet(**(DEEPSET | {"max_freqs": 4}))(Batch(**inputs))
    with pytest.raises(ValueError, match="set posenc_SignNet.enable True"):
        signnet(**DEEPSET)(Batch(x=inputs["x"]))
