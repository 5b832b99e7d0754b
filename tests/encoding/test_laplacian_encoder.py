"""LapPE and EquivStableLapPE: the public code's records, symmetries, options, errors."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding import LinearNodeEncoder
from graphgps_kmip.encoding import laplacian as laplacian_encoder
from graphgps_kmip.encoding.kernel_encoder import KernelEncoder
from graphgps_kmip.encoding.laplacian import EquivStableLapPEEncoder, LapPEEncoder, random_signs
from tests.recorded import check, load, part

DEEPSET = {"model": "DeepSet", "dim_pe": 4, "layers": 2}


def lappe(dim: int = 8, dim_x: int | None = 8, **options: object) -> LapPEEncoder:
    return LapPEEncoder(dim, dim_x, **(DEEPSET | options))


RECORDS = {
    "lappe_deepset_l1_post1": lambda: lappe(layers=1, post_layers=1),
    "lappe_deepset_l2": lambda: lappe(),
    "lappe_deepset_l2_k4_noexpand": lambda: lappe(12, None, max_freqs=4),
    "lappe_deepset_l3_post2_bn": lambda: lappe(layers=3, post_layers=2, raw_norm_type="BatchNorm"),
    "lappe_transformer_l1": lambda: lappe(model="Transformer", layers=1, n_heads=2),
    "equivstable_bn": lambda: EquivStableLapPEEncoder(8, raw_norm_type="BatchNorm"),
    "composed_linearnode_lappe": lambda: nn.Sequential(LinearNodeEncoder(8, 4), lappe(dim_x=None)),
    "composed_linearnode_equivstable": lambda: nn.Sequential(LinearNodeEncoder(8, 8), EquivStableLapPEEncoder(8)),
    "composed_linearnode_lappe_rwse": lambda: nn.Sequential(
        LinearNodeEncoder(8, 8), lappe(16, None), KernelEncoder("RWSE", 8, 16, model="Linear", dim_pe=4)
    ),
}


def rename(key: str) -> str:
    """The first linear layer is one of the DeepSet's here, composed encoders are counted from 0."""
    key = re.sub(r"^encoder(\d)\.", lambda match: f"{int(match[1]) - 1}.", key)
    key = re.sub(r"pe_encoder\.(\d)", lambda match: f"pe_encoder.{int(match[1]) + 1}", key)
    return key.replace("linear_A", "pe_encoder.0").replace("linear_encoder_eigenvec", "linear")


def rename_transformer(key: str) -> str:
    return key.replace("linear_A", "linear_in")


@pytest.mark.parametrize("name", RECORDS)
def test_outputs_and_gradients_match_the_public_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record, module = load(f"D_encoders/{name}"), RECORDS[name]().double()
    if "train/extra/sign_flip" in record:
        monkeypatch.setattr(laplacian_encoder, "random_signs", lambda *_, **__: record["train/extra/sign_flip"])

    def run(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = module(Batch(**inputs))
        return {key: batch[key] for key in part(record, "eval/out")}

    names = rename_transformer if "transformer" in name else rename
    if name == "composed_linearnode_lappe_rwse":  # its second pe_encoder is one linear layer
        names = {key: rename(key) for key in part(record, "state")} | {
            key: rename(key).replace("pe_encoder.0", "pe_encoder") for key in part(record, "state") if "encoder3" in key
        }
        names = names.__getitem__
    check(module, run, record, names)


def example(num_freqs: int = 3) -> dict[str, Tensor]:
    """Two graphs of 4 and 2 nodes: the second has no third eigenvector."""
    torch.manual_seed(0)
    vectors, values = torch.randn(6, num_freqs), torch.rand(6, num_freqs, 1)
    vectors[4:, 2:] = values[4:, 2:] = torch.nan
    return {"x": torch.randn(6, 5), "EigVecs": vectors, "EigVals": values}


@pytest.mark.parametrize("model", ["DeepSet", "Transformer"])
def test_padding_and_the_order_of_nodes_and_eigenpairs_change_nothing(model: str) -> None:
    encoder = lappe(8, 5, model=model, n_heads=2, max_freqs=3).eval()
    wide = lappe(8, 5, model=model, n_heads=2, max_freqs=5).eval()
    wide.load_state_dict(encoder.state_dict())
    inputs, order = example(), torch.randperm(6)
    expected = encoder(Batch(**inputs)).x
    assert expected.isfinite().all()
    padded = inputs | {
        "EigVecs": nn.functional.pad(inputs["EigVecs"], (0, 2), value=torch.nan),
        "EigVals": nn.functional.pad(inputs["EigVals"], (0, 0, 0, 2), value=torch.nan),
    }
    torch.testing.assert_close(wide(Batch(**padded)).x, expected)
    torch.testing.assert_close(
        encoder(Batch(**{key: value[order] for key, value in inputs.items()})).x, expected[order]
    )
    flipped = inputs | {key: inputs[key].flip(1) for key in ("EigVecs", "EigVals")}
    torch.testing.assert_close(encoder(Batch(**flipped)).x, expected)


def test_signs_are_flipped_by_column_in_training_only() -> None:
    encoder = lappe(8, 5, max_freqs=3)
    first = encoder(Batch(**example())).x  # the example seeds torch: the same flips
    torch.testing.assert_close(encoder(Batch(**example())).x, first, rtol=0, atol=0)
    inputs = example()
    drawn = {tuple(encoder(Batch(**inputs)).x.flatten().tolist()) for _ in range(60)}
    assert len(drawn) == 8  # 2^3 columns' signs, one draw for all nodes of a batch
    encoder.eval()
    assert len({tuple(encoder(Batch(**inputs)).x.flatten().tolist()) for _ in range(5)}) == 1


def test_half_of_the_signs_are_negative() -> None:
    torch.manual_seed(0)
    signs = random_signs(torch.zeros(1, 10000, dtype=torch.float64))
    assert signs.dtype == torch.float64
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert abs(float(signs.mean())) < 0.04


def test_the_encoding_can_be_kept_and_features_of_another_encoder_pass() -> None:
    encoder, inputs = lappe(9, None, max_freqs=3, pass_as_var=True).eval(), example()
    out = encoder(Batch(**inputs))
    torch.testing.assert_close(out.x, torch.cat([inputs["x"], out.pe_LapPE], dim=1), rtol=0, atol=0)
    assert "pe_LapPE" not in lappe(9, None, max_freqs=3)(Batch(**example()))


def test_statistics_of_another_precision_are_taken() -> None:
    inputs = example()
    inputs |= {key: inputs[key].double() for key in ("EigVecs", "EigVals")}
    assert lappe(9, None, max_freqs=3)(Batch(**inputs)).x.dtype == torch.float32
    assert EquivStableLapPEEncoder(4, max_freqs=3)(Batch(**inputs)).pe_EquivStableLapPE.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "none"}, "posenc_LapPE.model must be DeepSet or Transformer, got 'none'"),
        ({"raw_norm_type": "layer"}, "raw_norm_type must be BatchNorm or none, got 'layer'"),
        ({"dim_pe": 8}, "dim_pe from 1 to 7"),
        ({"dim_pe": 9, "dim_x": None}, "dim_pe from 1 to 8"),
        ({"layers": 0}, "layers >= 1"),
        ({"model": "Transformer", "n_heads": 3}, "must be a multiple of posenc_LapPE.n_heads"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        lappe(**options)


def test_missing_or_other_statistics_are_refused() -> None:
    inputs = example()
    with pytest.raises(ValueError, match="EigVecs must be .* check posenc_LapPE.eigen.max_freqs"):
        lappe(8, 5, max_freqs=4)(Batch(**inputs))
    with pytest.raises(ValueError, match="LapPE needs EigVecs.* set posenc_LapPE.enable True"):
        lappe(8, 5)(Batch(x=inputs["x"]))
    with pytest.raises(ValueError, match="set posenc_EquivStableLapPE.enable True"):
        EquivStableLapPEEncoder(8)(Batch(x=inputs["x"]))
