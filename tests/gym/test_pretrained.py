"""Fine-tuning: settings, parameters, head and frozen parts of an earlier run, of ours and of a public code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch_geometric.graphgym.config import cfg

import main
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.gym.pretrained import adopt_settings
from tests.gym.earlier import train_earlier
from tests.test_main import DIGITS, SHORT

pytestmark = pytest.mark.usefixtures("few_digits")

TRAINED = ["gt.n_heads", "2", "gnn.layers_post_mp", "2"]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_earlier(tmp_path_factory.mktemp("earlier"), *TRAINED)


# Another network, but for what the head is made of.
OTHER = "gt.layers 2 gt.kmip.k 3 gnn.dim_inner 16 gt.dim_hidden 16 gnn.layers_post_mp 2".split()
OTHER += ["optim.num_warmup_epochs", "0"]


def list_settings(folder: Path, *more: str) -> list[str]:
    return [*SHORT, *OTHER, "pretrained.dir", str(folder), *more]


def built(folder: Path, *more: str) -> nn.Module:
    load_config(cfg, DIGITS, list_settings(folder, *more))
    adopt_settings()
    with configured(planned_runs(1)[0]):
        return assemble().model


def saved(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "0" / "ckpt" / "0.ckpt", weights_only=True)["model_state"]


def is_head(name: str) -> bool:
    return name.startswith("model.head.")


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("freeze", [True, False])
def test_a_run_of_ours_is_gone_on_from(earlier: Path, reset: bool, freeze: bool) -> None:
    model = built(earlier, "pretrained.reset_prediction_head", str(reset), "pretrained.freeze_main", str(freeze))
    state = saved(earlier)
    assert state.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        is_new = reset and is_head(name)
        assert torch.equal(value, state[name]) != is_new, name
    assert any(is_head(name) for name in state)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (is_head(name) or not freeze), name


def test_the_earlier_run_decides_the_network_and_the_yaml_the_head(earlier: Path) -> None:
    argv = ["gnn.layers_post_mp", "3", "gnn.act", "gelu", "optim.base_lr", "0.5"]
    load_config(cfg, DIGITS, list_settings(earlier, *argv))
    adopt_settings()
    assert (cfg.gt.layers, cfg.gt.kmip.k, cfg.gnn.dim_inner) == (1, 5, 8)
    assert (cfg.gnn.layers_post_mp, cfg.gnn.act, cfg.optim.base_lr) == (3, "gelu", 0.5)


def test_fine_tuning_trains_only_the_head_where_the_rest_is_frozen(earlier: Path, tmp_path: Path) -> None:
    # Another learning rate: the new head starts as the earlier one did, and one step of Adam is as long as the rate.
    argv = ["pretrained.freeze_main", "True", "train.ckpt_period", "1", "optim.base_lr", "0.002"]
    assert main.run(["--cfg", DIGITS, "out_dir", str(tmp_path), *list_settings(earlier, *argv)]) == 0
    before, after = saved(earlier), saved(tmp_path / "digits-kmip")
    for name, parameter in built(earlier).named_parameters():
        assert torch.equal(before[name], after[name]) != is_head(name), name
        assert parameter.shape == after[name].shape
    record = json.loads((tmp_path / "digits-kmip" / "0" / "record.json").read_text())
    assert record["finished"]
    assert (tmp_path / "digits-kmip" / "agg" / "test" / "best.json").exists()  # its hash is that of what it ran


def test_the_best_checkpoint_counts_before_the_newest(earlier: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(earlier, tmp_path / "copy")
    content = torch.load(folder / "0" / "ckpt" / "0.ckpt", weights_only=True)
    bias = "model.layers.0.ffn.0.bias"
    for number, name in enumerate(("2", "10", "best"), start=1):
        state = content["model_state"] | {bias: torch.full_like(content["model_state"][bias], number)}
        torch.save(content | {"model_state": state}, folder / "0" / "ckpt" / f"{name}.ckpt")
    assert built(folder).state_dict()[bias].unique() == 3
    (folder / "0" / "ckpt" / "best.ckpt").unlink()
    assert built(folder).state_dict()[bias].unique() == 2


def test_the_run_is_that_of_the_named_seed_or_of_ones_own(earlier: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(earlier, tmp_path / "copy")
    (folder / "0").rename(folder / "7")
    assert built(folder, "pretrained.seed", "7") is not None
    assert built(folder, "pretrained.seed", "-1", "seed", "7") is not None
    with pytest.raises(ValueError, match=r"pretrained\.seed: .* has no run 3: choose one of those there \(7\)"):
        built(folder, "pretrained.seed", "3")


# The layer of the earlier run under GraphGPS's names, as far as they differ: ours -> theirs.
PUBLIC = {
    "encoder.node.": "encoder.node_encoder.",
    "encoder.edge.": "encoder.edge_encoder.",
    "layers.0.local.0.node_norm.module.": "layers.0.local_model.bn_node_x.",
    "layers.0.local.0.edge_norm.module.": "layers.0.local_model.bn_edge_e.",
    "layers.0.local.0.": "layers.0.local_model.",
    "layers.0.attention.0.query.": "layers.0.self_attn.MQs.",
    "layers.0.attention.0.key.": "layers.0.self_attn.MKs.",
    "layers.0.attention.0.value.": "layers.0.self_attn.MVs.",
    "layers.0.attention.0.out.": "layers.0.self_attn.MO.",
    "layers.0.local_norm.0.norm.module.": "layers.0.norm1_local.",
    "layers.0.attention_norm.0.norm.module.": "layers.0.norm1_global.",
    "layers.0.ffn_norm.norm.module.": "layers.0.norm2.",
    "layers.0.ffn.0.": "layers.0.ff_linear1.",
    "layers.0.ffn.3.": "layers.0.ff_linear2.",
    "head.mlp.0.": "post_mp.layer_post_mp.model.0.Layer_0.layer.model.",
    "head.mlp.": "post_mp.layer_post_mp.model.1.model.",
}


def in_public_names(name: str) -> str:
    bare = name.removeprefix("model.")
    prefix = next((other for other in PUBLIC if bare.startswith(other)), None)
    if prefix is None:
        return name
    rest = bare.removeprefix(prefix)
    return f"model.{PUBLIC[prefix]}{rest.split('.')[-1] if prefix == 'head.mlp.' else rest}"


def write_public(earlier: Path, folder: Path, state: dict[str, Tensor], **gt: object) -> None:
    """Write a run of the public k-MIP code with these parameters, its settings those of the earlier run."""
    (folder / "0" / "ckpt").mkdir(parents=True)
    torch.save({"model_state": state, "optimizer_state": {}}, folder / "0" / "ckpt" / "59.ckpt")
    content = yaml.safe_load((earlier / "0" / "config.yaml").read_text())
    content = {key: content[key] for key in ("model", "dataset", "gnn", "gt")}
    content["dataset"] = {key: value for key, value in content["dataset"].items() if "encoder" in key}
    content["gt"] = {key: content["gt"][key] for key in ("layers", "n_heads", "dim_hidden", "dropout", "batch_norm")}
    content["gt"] |= {
        "layer_type": "CustomGatedGCN+SparseAttention",
        "sparse": {"k": 4, "kq_dim": 4, "val_dim": 4, "head_agg": "none"},
    }
    content["gt"] |= gt
    content["gnn"] = {key: content["gnn"][key] for key in ("dim_inner", "head", "layers_post_mp", "act", "dropout")}
    content["gnn"]["dim_edge"] = 8  # noted down while it ran
    (folder / "config.yaml").write_text(yaml.safe_dump(content))


def test_a_run_of_the_public_kmip_code_is_gone_on_from(earlier: Path, tmp_path: Path) -> None:
    state = {in_public_names(name): value for name, value in saved(earlier).items()}
    write_public(earlier, tmp_path, state)
    model = built(tmp_path, "pretrained.reset_prediction_head", "False")
    assert (cfg.gt.kmip.k, cfg.gt.gatedgcn.residual, cfg.gnn.l2norm) == (4, False, True)  # what its dialect means
    pairs = zip(model.state_dict().values(), saved(earlier).values(), strict=True)  # rows of length 1 renumber the head
    assert all(torch.equal(value, there) for value, there in pairs)


def test_parameters_of_graph_norms_tell_a_run_of_the_thesis_from_one_of_the_paper(
    earlier: Path, tmp_path: Path
) -> None:
    state = {in_public_names(name): value for name, value in saved(earlier).items()}
    norms = {name.rsplit(".", 1)[0] for name in state if ".norm1_" in name or ".norm2." in name}
    assert len(norms) == 3
    of_batch = {f"{name}.{part}" for name in norms for part in ("running_mean", "running_var", "num_batches_tracked")}
    state = {name: value for name, value in state.items() if name not in of_batch}
    layer_norm, graph_norm, named = tmp_path / "paper", tmp_path / "thesis", tmp_path / "named"
    write_public(earlier, layer_norm, state, batch_norm=False, layer_norm=True)
    scales = {f"{name}.mean_scale": torch.rand(8) for name in norms}
    for folder in (graph_norm, named):
        write_public(earlier, folder, state | scales, batch_norm=False, layer_norm=True)
    built(layer_norm)
    assert (cfg.gt.graph_norm, cfg.gt.gatedgcn.residual) == (False, False)
    model = built(graph_norm)
    assert (cfg.gt.graph_norm, cfg.gt.gatedgcn.residual) == (True, True)
    loaded = [value for name, value in model.state_dict().items() if name.endswith(".mean_scale")]
    assert len(loaded) == 3
    assert all(any(torch.equal(value, scale) for scale in scales.values()) for value in loaded)
    file = named / "config.yaml"  # a dialect that somebody wrote into the file decides
    file.write_text(f"dialect: kmip\n{file.read_text()}")
    with pytest.raises(ValueError, match=r"mean_scale .*left over.*kmip-thesis"):
        built(named)


def broken(folder: Path, kind: str) -> list[str]:
    if kind == "no folder":
        shutil.rmtree(folder)
    elif kind == "no config":
        (folder / "0" / "config.yaml").unlink()
    elif kind == "no checkpoint":
        shutil.rmtree(folder / "0" / "ckpt")
    elif kind == "no checkpoint file":
        (folder / "0" / "ckpt" / "0.ckpt").write_bytes(b"nothing")
    elif kind == "another parameter":
        content = torch.load(folder / "0" / "ckpt" / "0.ckpt", weights_only=True)
        content["model_state"].pop("model.layers.0.ffn.0.bias")
        torch.save(content, folder / "0" / "ckpt" / "0.ckpt")
    return OTHERWISE.get(kind, [])


OTHERWISE = {
    "another network": ["model.type", "custom_gnn"],
    "another encoder": ["dataset.edge_encoder_bn", "True"],
}
ERRORS = {
    "no folder": "pretrained.dir: there is no folder",
    "no config": "put the config of that run there",
    "no checkpoint": "pretrained.dir: no checkpoint in",
    "no checkpoint file": "cannot be read",
    "another parameter": "layers.0.ffn.0.bias (16,) is missing in the file",
    "another network": "model.type is 'GPSModel' in",
    "another encoder": "dataset.edge_encoder_bn is False in",
}


@pytest.mark.parametrize("kind", ERRORS)
def test_what_is_missing_or_does_not_fit_is_said_in_one_line_with_code_2(
    earlier: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(earlier, tmp_path / "copy")
    arguments = ["out_dir", str(tmp_path / "out"), *list_settings(folder, *broken(folder, kind))]
    assert main.run(["--cfg", DIGITS, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ERRORS[kind] in line
    assert not (tmp_path / "out").exists()  # nothing was touched
