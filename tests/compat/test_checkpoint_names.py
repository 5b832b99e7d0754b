"""Public checkpoints: heads, input layers, whole networks under public names, and what does not fit."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.models import head as public_heads
from torch_geometric.graphgym.models.gnn import GNNPreMP

from graphgps_kmip.compat.checkpoint_names import PUBLIC
from graphgps_kmip.compat.parameter_renaming import read_state, rename_parameters
from graphgps_kmip.errors import CheckpointError
from graphgps_kmip.gym.network_building import build_network, make_plan
from graphgps_kmip.networks.network_stack import input_part, prediction_head
from graphgps_kmip.train.checkpoint import read_checkpoint
from tests.gym.networks import DATA, configure

FILE = Path("there.ckpt")


GYM = {
    "gnn.l2norm": True,
    "gnn.dim_inner": 8,
    "gnn.batchnorm": True,
    "gnn.dropout": 0.0,
    "gnn.act": "relu",
    "dataset.node_encoder": True,
    "model.graph_pooling": "mean",
    "model.edge_decoding": "dot",
}


def load_part(our_part: nn.Module, public_part: nn.Module, our_name: str, their_name: str) -> nn.Module:
    target = {f"{our_name}{key}": value for key, value in our_part.state_dict().items()}
    state = {f"{their_name}{key}": value for key, value in public_part.state_dict().items()}
    full = rename_parameters(state, target, PUBLIC, FILE)
    our_part.load_state_dict({key.removeprefix(our_name): value for key, value in full.items()})
    return our_part.eval()


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("l2norm", [True, False])
@pytest.mark.parametrize("batchnorm", [True, False])
@pytest.mark.parametrize("act", ["relu", "prelu"])
def test_graphgyms_input_layers_load_with_any_options(layers: int, l2norm: bool, batchnorm: bool, act: str) -> None:
    configure(GYM | {"gnn.layers_pre_mp": layers, "gnn.l2norm": l2norm, "gnn.batchnorm": batchnorm, "gnn.act": act})
    public_part, x = GNNPreMP(8, 8, layers).eval(), torch.randn(5, 8)
    for parameter in public_part.parameters():
        nn.init.normal_(parameter)
    our_part = load_part(input_part(make_plan(), 8), public_part, "pre_mp.", "pre_mp.")
    expected = public_part(Data(x=x)).x if layers else x
    torch.testing.assert_close(our_part(x), expected)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("head", ["graph", "node", "inductive_node", "inductive_edge"])
@pytest.mark.parametrize("act", ["relu", "prelu"])
def test_graphgyms_heads_load_with_any_number_of_layers(head: str, layers: int, act: str) -> None:
    configure(GYM | {"gnn.head": head, "gnn.layers_post_mp": layers, "gnn.act": act})
    cfg.gnn.l2norm = True
    public = {"graph": public_heads.GNNGraphHead, "inductive_edge": public_heads.GNNEdgeHead}
    dim_out = 1 if head == "inductive_edge" else 3
    public_part = public.get(head, public_heads.GNNNodeHead)(8, dim_out).eval()
    for parameter in public_part.parameters():
        nn.init.normal_(parameter)
    our_part = load_part(prediction_head(make_plan(), 8, dim_out), public_part, "head.", "post_mp.")
    x = torch.randn(5, 8)
    torch.testing.assert_close(our_part.mlp(x), public_part.layer_post_mp(x.clone()))


def test_the_other_public_heads_load() -> None:
    linears = {"0.weight": torch.randn(8, 8), "0.bias": torch.randn(8), "1.weight": torch.randn(3, 8),
               "1.bias": torch.randn(3)}  # fmt: skip
    configure(GYM | {"gnn.head": "mlp_graph", "gnn.layers_post_mp": 2})
    our_part = prediction_head(make_plan(), 8, 3)
    target = {f"head.{key}": value for key, value in our_part.state_dict().items()}
    for row in ({"0": "FC_layers.0", "1": "FC_layers.1"}, {"0": "mlp.1", "1": "mlp.4"}):  # SAN's, LRGB's
        state = {f"model.post_mp.{row[key[0]]}{key[1:]}": value for key, value in linears.items()}
        full = list(rename_parameters(state, target, PUBLIC, FILE).values())
        assert all(torch.equal(value, linear) for value, linear in zip(full, linears.values(), strict=True))
    configure(GYM | {"gnn.head": "ogb_code_graph"})
    target = {f"head.{key}": value for key, value in prediction_head(make_plan(), 8, 3).state_dict().items()}
    state = {key.replace("head.", "post_mp."): torch.randn_like(value) for key, value in target.items()}
    assert rename_parameters(state, target, PUBLIC, FILE).keys() == target.keys()


WHOLE = {
    "model.type": "GPSModel",
    "dataset.node_encoder": True,
    "dataset.node_encoder_name": "Atom+RWSE",
    "dataset.node_encoder_bn": True,
    "dataset.edge_encoder": True,
    "dataset.edge_encoder_name": "Bond",
    "dataset.edge_encoder_bn": True,
    "posenc_RWSE.enable": True,
    "posenc_RWSE.model": "Linear",
    "posenc_RWSE.dim_pe": 4,
    "posenc_RWSE.kernel.times_func": "range(1,4)",
    "posenc_RWSE.raw_norm_type": "BatchNorm",
    "gt.layer_type": "GINE+Transformer",
    "gt.layers": 1,
    "gt.n_heads": 2,
    "gt.dim_hidden": 8,
    "gnn.dim_inner": 8,
    "gnn.layers_pre_mp": 1,
    "gnn.layers_post_mp": 2,
    "gnn.l2norm": True,
    "gnn.head": "graph",
    "share.dim_in": 9,
}
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
# name of a public module -> shapes of its weight and bias; () are those of a norm
PUBLIC_NETWORK = {
    **{f"encoder.node_encoder.encoder1.atom_embedding_list.{i}": ((n, 4),)
       for i, n in enumerate((119, 5, 12, 12, 10, 6, 6, 2, 2))},
    "encoder.node_encoder.encoder2.raw_norm": 3,
    "encoder.node_encoder.encoder2.pe_encoder": ((4, 3), (4,)),
    "encoder.node_encoder_bn.bn": 8,
    **{f"encoder.edge_encoder.bond_embedding_list.{i}": ((n, 8),) for i, n in enumerate((5, 6, 2))},
    "encoder.edge_encoder_bn.bn": 8,
    "pre_mp.Layer_0.layer.model": ((8, 8),),
    "pre_mp.Layer_0.post_layer.0": 8,
    "layers.0.local_model.nn.0": ((8, 8), (8,)),
    "layers.0.local_model.nn.2": ((8, 8), (8,)),
    "layers.0.self_attn.out_proj": ((8, 8), (8,)),
    "layers.0.norm1_local": 8,
    "layers.0.norm1_attn": 8,
    "layers.0.ff_linear1": ((16, 8), (16,)),
    "layers.0.ff_linear2": ((8, 16), (8,)),
    "layers.0.norm2": 8,
    "post_mp.layer_post_mp.model.0.Layer_0.layer.model": ((8, 8), (8,)),
    "post_mp.layer_post_mp.model.1.model": ((1, 8), (1,)),
}  # fmt: skip


def public_network() -> dict[str, Tensor]:
    state = {"layers.0.local_model.eps": torch.zeros(1)}
    state |= {
        "layers.0.self_attn.in_proj_weight": torch.randn(24, 8),
        "layers.0.self_attn.in_proj_bias": torch.randn(24),
    }
    for name, shapes in PUBLIC_NETWORK.items():
        if isinstance(shapes, int):
            state |= {f"{name}.{key}": torch.rand(shapes) if key != NORM[-1] else torch.tensor(7) for key in NORM}
        else:
            state |= {f"{name}.{key}": torch.randn(s) for key, s in zip(("weight", "bias"), shapes, strict=False)}
    return state


def network() -> nn.Module:
    configure(WHOLE)
    return build_network("GPSModel", 9, 1)


@pytest.mark.parametrize("wrapper", ["", "model.", "module.model."])
def test_a_whole_network_loads_with_and_without_graphgyms_wrapper(wrapper: str) -> None:
    model, state = network(), public_network()
    target = {f"model.{key}": value for key, value in model.state_dict().items()}
    full = rename_parameters({f"{wrapper}{key}": value for key, value in state.items()}, target, PUBLIC, FILE)
    assert full.keys() == target.keys()
    used = {id(value) for value in full.values()}
    assert {key for key, value in state.items() if id(value) not in used} == {"layers.0.local_model.eps"}
    assert torch.equal(full["model.layers.0.attention.0.qkv.weight"], state["layers.0.self_attn.in_proj_weight"])
    assert torch.equal(
        full["model.encoder.node.1.pe_encoder.bias"], state["encoder.node_encoder.encoder2.pe_encoder.bias"]
    )
    assert torch.equal(full["model.head.mlp.0.bias"], state[f"{list(PUBLIC_NETWORK)[-2]}.bias"])


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_san_loads_with_the_vector_that_its_layers_share(norm: str) -> None:
    norms = {"gt.batch_norm": norm == "batch", "gt.layer_norm": norm == "layer"}
    configure(DATA | {"model.type": "SANTransformer", "gt.layer_type": "SANLayer", "gt.layers": 2, **norms})
    model = build_network("SANTransformer", 5, 3)
    target = {name: value for name, value in model.state_dict().items() if name.startswith("layers.")}
    random = {name: torch.randn_like(value) for name, value in target.items() if not name.endswith("batches_tracked")}
    target |= random
    shared = "trf_layers.0.attention.fake_edge_emb.weight"
    public_part = {public_san(name, norm): value for name, value in target.items() if "num_batches" not in name}
    public_part[shared.replace("0", "1")] = public_part[shared]
    full = rename_parameters(public_part, target, PUBLIC, FILE)
    assert all(torch.equal(full[name], value) for name, value in target.items())
    public_part[shared.replace("0", "1")] = public_part[shared] + 1
    with pytest.raises(CheckpointError, match=r"trf_layers\.1\.attention\.fake_edge_emb"):
        rename_parameters(public_part, target, PUBLIC, FILE)


def public_san(name: str, norm: str) -> str:
    """Return what GraphGPS calls a parameter of a SAN layer."""
    for our_part, public in (
        ("attention.0.initial_state.feature.", "attention.fake_edge_emb."),
        ("attention.0.out.", "O_h."),
        ("attention.0.value.", "attention.V."),
        *((f"attention.0.fake_{part}.", f"attention.{part[0].upper()}_2.") for part in ("query", "key", "edge")),
        *((f"attention.0.{part}.", f"attention.{part[0].upper()}.") for part in ("query", "key", "edge")),
        *((f"{our_part}_norm.0.{mod}", f"{norm}_norm{i}_h.") for i, our_part in ((1, "attention"), (2, "ffn"))
          for mod in ("module.", "")),
        ("ffn.0.", "FFN_h_layer1."),
        ("ffn.3.", "FFN_h_layer2."),
    ):  # fmt: skip
        name = name.replace(our_part, public)
    return f"trf_{name}"


WRONG: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "left over": (
        lambda state: state.update({"layers.1.norm2.weight": torch.ones(8)}),
        r"layers\.1\.norm2\.weight \(8,\) is left over",
    ),
    "missing": (
        lambda state: state.pop("layers.0.self_attn.in_proj_bias"),
        r"layers\.0\.attention\.0\.qkv\.bias \(24,\) is missing in the file",
    ),
    "another shape": (
        lambda state: state.update({"encoder.node_encoder.encoder1.atom_embedding_list.0.weight": torch.ones(120, 4)}),
        r"atom_embedding_list\.0\.weight \(120, 4\) in the file, \(119, 4\) here \(.* versions of ogb\)",
    ),
    "an epsilon that counts": (
        lambda state: state.update({"layers.0.local_model.eps": torch.ones(1)}),
        r"local_model\.eps \(1,\) is left over",
    ),
    "twice": (
        lambda state: state.update({"layers.0.norm1_global.weight": torch.ones(8)}),
        r"norm1_attn\.weight and layers\.0\.norm1_global\.weight both are layers\.0\.attention_norm\.0",
    ),
    "another head": (
        lambda state: state.update({"post_mp.layer_post_mp.model.1.model.weight": torch.ones(5, 8)}),
        r"\(5, 8\) in the file, \(1, 8\) here \(.*reset_prediction_head True\)",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_named_in_one_line(kind: str) -> None:
    change, message = WRONG[kind]
    state, target = public_network(), network().state_dict()
    change(state)
    with pytest.raises(CheckpointError, match=message) as caught:
        rename_parameters(state, target, PUBLIC, FILE)
    assert "\n" not in str(caught.value)
    assert "there.ckpt" in str(caught.value)


@pytest.mark.parametrize("branch", ["norm1_local", "norm1_attn"])
def test_the_norm_of_a_branch_is_dropped_only_where_the_branch_is_not_there(branch: str) -> None:
    state, used = public_network(), {"norm1_local": "local_model", "norm1_attn": "self_attn"}[branch]
    configure(WHOLE | {"gt.layer_type": "GINE+None" if branch == "norm1_attn" else "None+Transformer"})
    target = build_network("GPSModel", 9, 1).state_dict()
    with pytest.raises(CheckpointError, match=f"{used}.* is left over"):
        rename_parameters(state, target, PUBLIC, FILE)
    less = {key: value for key, value in state.items() if used not in key}
    assert any(branch in key for key in less)
    assert rename_parameters(less, target, PUBLIC, FILE).keys() == target.keys()


def test_older_versions_of_the_packages_are_read_too() -> None:
    configure(WHOLE | {"gt.layer_type": "GAT+Transformer"})
    target = build_network("GPSModel", 9, 1).state_dict()
    state = {key: value for key, value in public_network().items() if "local_model" not in key}
    state = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    conv = {
        key.removeprefix("layers.0.local.0.conv."): torch.randn_like(v) for key, v in target.items() if ".conv." in key
    }
    conv["lin_src.weight"] = conv["lin_dst.weight"] = conv.pop("lin.weight")
    state |= {f"layers.0.local_model.{key}": value for key, value in conv.items()}
    full = rename_parameters(state, target, PUBLIC, FILE)
    assert torch.equal(full["layers.0.local.0.conv.lin.weight"], conv["lin_src.weight"])
    state["layers.0.local_model.lin_dst.weight"] = torch.zeros(8, 8)  # another map: this is not the one GAT
    with pytest.raises(CheckpointError, match="lin_dst"):
        rename_parameters(state, target, PUBLIC, FILE)


class Runs:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def make(folder: str) -> None:
    os.mkdir(folder)


class AnotherPackages(Runs):
    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return make, (str(self.folder),)


def test_parameters_beside_the_optimizer_in_a_schedulers_state_are_read(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    content = {"model_state": model.state_dict(), "scheduler_state": vars(scheduler)}  # as GraphGPS saves it
    torch.save(content, tmp_path / "0.ckpt")
    state = read_state(tmp_path / "0.ckpt")
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    torch.save(content, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"it asks for torch\.optim\.adamw\.AdamW, which is neither"):
        read_state(tmp_path / "old.ckpt")
    torch.save({"weights": {}}, tmp_path / "none.ckpt")
    with pytest.raises(CheckpointError, match="has no model_state"):
        read_state(tmp_path / "none.ckpt")


def test_what_lies_beside_the_parameters_never_runs(tmp_path: Path) -> None:
    harmless = {"model_state": {"w": torch.ones(2)}}
    torch.save(harmless | {"more": AnotherPackages(tmp_path / "made")}, tmp_path / "0.ckpt")
    assert read_state(tmp_path / "0.ckpt").keys() == {"w"}
    torch.save(harmless | {"more": Runs(tmp_path / "made")}, tmp_path / "1.ckpt")
    with pytest.raises(CheckpointError, match=r"it asks for posix\.mkdir"):
        read_state(tmp_path / "1.ckpt")
    assert not (tmp_path / "made").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:500])


def of_terabytes(path: Path) -> None:
    """Let the file claim 10^12 numbers where it has 10."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content.replace(b"K\n", b"\x8a\x06" + (10**12).to_bytes(6, "little")))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "it is not a file of torch.save, or only a part of one"),
        (of_terabytes, "record size"),
        (lambda path: path.write_bytes(b""), "it is empty, or ends too early"),
        (Path.unlink, "No such file"),
        (lambda path: torch.save({"model_state": Runs}, path), "it asks for"),
    ],
)
def test_a_damaged_checkpoint_is_one_line(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "0.ckpt"
    torch.save({"model_state": {"w": torch.ones(10)}}, path)
    damage(path)
    for read in (read_state, lambda file: read_checkpoint(file, "hash")):
        with pytest.raises(CheckpointError, match=re.escape(str(path))) as caught:
            read(path)
        if read is read_state and message != "it asks for":  # there a class of ours is asked for, and is left out
            assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)
        assert "weights_only" not in str(caught.value)
