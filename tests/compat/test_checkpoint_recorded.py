"""Recorded originals under their own names: the table of checkpoint names against all that was recorded of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention import BigBirdAttention, GraphContext, PerformerAttention
from graphgps_kmip.compat.checkpoint_names import PUBLIC
from graphgps_kmip.compat.parameter_renaming import finder, renamed
from graphgps_kmip.compat.public_faults import repeat_faults
from graphgps_kmip.encoding import laplacian as laplacian_encoder
from graphgps_kmip.encoding.kernel_encoder import KernelEncoder
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.model import GPSLayer
from tests.attention.recorded_gps import BY_CODE, DIM, HEADS, LOCAL
from tests.attention.test_exphormer_recorded import LAYERS, Stack
from tests.encoding import test_kernel_encoder, test_laplacian_encoder, test_signnet
from tests.gym.networks import configure
from tests.gym.test_network_recorded import CUSTOM, PLAIN, STOCK
from tests.model.test_recorded_layers import RECORDS, attention_of
from tests.recorded import check, load, part

FILE = Path("there.ckpt")
FAULTS_ON = {"gt.performer.mask_keys": False, "gt.performer.detach_stabiliser": True, "gt.bigbird.pattern": "public"}
FEW = ("gps_None_Performer_batch_norm_relu_b3", "gps_None_BigBird_batch_norm_relu_b3")
MORE = ("gps_CustomGatedGCN_Performer_batch_norm_relu_b3", "gps_GINE_Performer_batch_norm_relu_b3",
        "gps_CustomGatedGCN_BigBird_batch_norm_relu_b3")  # fmt: skip


@pytest.fixture(autouse=True)
def _entered() -> Iterator[None]:
    yield
    cfg.defrost()


def check_names(
    module: nn.Module,
    forward: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    record: Mapping[str, Tensor],
    theirs: str = "",
    ours: str = "",
) -> None:
    """Load what was recorded under its own names by the table, and compare all that was recorded.

    Args:
        module: ours.
        forward: see `check`.
        record: from `load`.
        theirs: beginning of their names in a whole network, of which the record holds a part.
        ours: the same of ours.
    """
    module = module.double()
    own = {f"{ours}{key}": value for key, value in module.state_dict().items()}
    state = {f"{theirs}{key}": value for key, value in part(record, "state").items()}
    full = {key.removeprefix(ours): value for key, value in renamed(state, own, PUBLIC, FILE).items()}
    find = finder(state, own, PUBLIC)
    names = {key: next((one for one in find(f"{theirs}{key}") if one in own), "") for key in part(record, "state")}
    kept = {key: value for key, value in record.items() if not key.startswith("state/")}
    kept = {
        key: value for key, value in kept.items() if names.get(re.sub(".*/(grad_param|state_after)/", "", key), key)
    }
    kept |= {f"state/{key}": value for key, value in full.items()}
    check(module, forward, kept, lambda key: key if key in full else names[key].removeprefix(ours))


def layer_of(name: str) -> GPSLayer:
    code, local, attention, norm = re.match(r"([a-z]+)_([A-Za-z]+)_([A-Za-z]+)_(batch|layer|no)_norm", name).groups()
    act = nn.GELU if "_gelu" in name else nn.ReLU
    kind = f"{code}_eslappe" if name.endswith("_eslappe") else code
    branch = None if local == "None" else (LOCAL | BY_CODE[kind])[local](DIM, act=act)
    special = {
        "Performer": lambda: PerformerAttention(DIM, HEADS),
        "BigBird": lambda: BigBirdAttention(DIM, HEADS, num_random_blocks=1),
    }
    attend = special.get(attention, lambda: attention_of(name))()
    return repeat_faults(GPSLayer(DIM, branch, attend, norm={"no": "none"}.get(norm, norm), act=act), FAULTS_ON)


@pytest.mark.parametrize("name", [*RECORDS, *FEW, *MORE])
def test_a_gps_layer_of_the_public_codes_loads_under_its_own_names(name: str) -> None:
    layer, record = layer_of(name), load(f"B_layers/{name}")
    if "_Performer_" in name:  # its buffer is recorded once for all
        projection = load("B_layers/performer_projection")["projection_matrix"].double()
        record["state/self_attn.fast_attention.projection_matrix"] = projection

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x, edge_attr, _ = layer(inputs["x"], GraphContext.from_data(Data.from_dict(inputs)))
        return {"x": x, "edge_attr": edge_attr}

    check_names(layer, forward, record, "layers.0.", "layers.0.")


@pytest.mark.parametrize("name", LAYERS)
def test_exphormers_layers_of_any_number_of_branches_load_under_their_own_names(name: str) -> None:
    stack, record = Stack(*LAYERS[name]()), load(f"B_layers/exph_{name}")

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        ptr = torch.cat([torch.zeros(1, dtype=torch.long), inputs["batch"].bincount().cumsum(0)])
        edges = [inputs[f"expander_edges_graph{i}"].T + ptr[i] for i in range(len(ptr) - 1)]
        sets = {"expander": (torch.cat(edges, 1), None)}
        context = GraphContext(inputs["batch"], ptr, inputs["edge_index"], inputs["edge_attr"], sets)
        x, edge_attr, state = stack(inputs["x"], context)
        return {"x": x, "edge_attr": edge_attr, "virt_h": state.virtual}

    check_names(stack, forward, record)


@pytest.mark.parametrize("name", CUSTOM)
def test_a_layer_of_custom_gnn_loads_under_its_own_names(name: str) -> None:
    defaults = {"gnn.layer_type": "gcnconv", "gnn.layers_mp": 1, "gnn.act": "relu"}
    configure(PLAIN | defaults | CUSTOM[name])
    layer, record = build_network("custom_gnn", 8, 3).layers[0], load(f"A_layers/{name.split()[0]}")

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = Batch(**{"batch": inputs["edge_index"].new_zeros(len(inputs["x"])), **inputs})
        x, edge_attr, _ = layer(inputs["x"], GraphContext.from_data(batch))
        return {"x": x, "edge_attr": edge_attr}

    check_names(layer, forward, record, "gnn_layers.0.", "layers.0.")


@pytest.mark.parametrize("name", STOCK)
def test_graphgyms_own_network_loads_under_its_own_names(name: str) -> None:
    defaults = {"gnn.layer_type": "gcnconv", "gnn.layers_pre_mp": 1, "gnn.layers_mp": 2, "gnn.l2norm": False}
    configure(PLAIN | defaults | {"model.type": "gnn"} | STOCK[name])
    network, record = build_network("gnn", 8, 3), load(f"A_layers/core_gnn_{name}_b3")

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes = inputs["batch"].bincount()
        batch = Batch(**inputs, y=None, ptr=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))
        batch._num_graphs = len(sizes)
        return {"pred": network(batch)[0]}

    check_names(network, forward, record)


ENCODERS: dict[str, Callable[[], nn.Module]] = {
    **test_laplacian_encoder.RECORDS,
    **{name: partial(test_signnet.signnet, **given) for name, given in test_signnet.RECORDS.items()},
}


@pytest.mark.parametrize("name", [*ENCODERS, *test_kernel_encoder.RECORDS])
def test_an_encoder_of_the_public_codes_loads_under_its_own_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = load(f"D_encoders/{name}")
    if name in ENCODERS:
        encoder = ENCODERS[name]()
    else:
        kind, options = test_kernel_encoder.RECORDS[name]
        encoder = KernelEncoder(kind, record[f"in/pestat_{kind}"].size(1), 8, 8, dim_pe=4, **options)
    if "train/extra/sign_flip" in record:
        monkeypatch.setattr(laplacian_encoder, "random_signs", lambda *_, **__: record["train/extra/sign_flip"])

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = encoder(Batch(**inputs))
        return {key: batch[key] for key in part(record, "eval/out")}

    check_names(encoder, forward, record, "encoder.node_encoder.", "encoder.node.")
