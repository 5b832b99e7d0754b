"""An encoding from a user's own file: config group, precomputation on all cores, cache on disk, encoder, errors."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg
from torch_geometric.utils import to_networkx

from graphgps_kmip import registry
from graphgps_kmip.data import GraphDataset, encoded
from graphgps_kmip.encoding import AddEncoding, NodeEncoding, PositionalEncoding
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.component_list import listing
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import enabled_encodings, load_dataset
from graphgps_kmip.registry import register
from tests.gym.posenc_config import ROOT, model_and_batch

pytestmark = pytest.mark.usefixtures("few_digits")

FILE = ROOT / "examples" / "my_encoding" / "digits-clustering.yaml"
DIGITS = ("dataset.format", "sklearn", "dataset.name", "digits")


@pytest.fixture(autouse=True)
def as_before(own_registry: None) -> Iterator[None]:  # noqa: ARG001
    module = sys.modules.pop("my_encoding", None)  # another test may have loaded it
    registry._SPECS["encoding"].pop("Clustering", None)
    yield
    sys.modules.pop("my_encoding", None)  # or it would not be registered again
    if module is not None:
        sys.modules["my_encoding"] = module
    cfg.defrost()


def load(*argv: str) -> None:
    load_config(cfg, FILE, [*argv])


def random_graph(nodes: int, seed: int) -> Data:
    edges = list(nx.gnp_random_graph(nodes, 0.4, seed=seed, directed=True).edges)
    return Data(edge_index=torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T, num_nodes=nodes)


def test_its_config_group_is_made_of_its_fields() -> None:
    load()
    settings = {"enable": True, "dim_pe": 8, "normalised": True, "model": "Linear", "layers": 3}
    assert settings.items() <= cfg.posenc_Clustering.items()
    with pytest.raises(ConfigError, match=r"posenc_Clustering\.dim_pe: expected a whole number"):
        load("posenc_Clustering.dim_pe", "-1")
    with pytest.raises(ConfigError, match=r"Did you mean posenc_Clustering\.normalised"):
        load("posenc_Clustering.normalized", "True")


def test_its_values_are_those_of_networkx_and_do_not_depend_on_the_number_of_processes() -> None:
    load()
    graphs = [random_graph(nodes, nodes) for nodes in range(1, 30)]
    (encoding,) = enabled_encodings(cfg)
    alone, shared = (encoded(GraphDataset(graphs), [encoding], None, workers).graphs for workers in (1, 2))
    for graph, first, two in zip(graphs, alone, shared, strict=True):
        expected = nx.clustering(to_networkx(graph, to_undirected=True))
        torch.testing.assert_close(
            first.pestat_Clustering[:, 0], torch.tensor([float(expected[n]) for n in range(len(expected))])
        )
        assert torch.equal(first.pestat_Clustering, two.pestat_Clustering)


def test_its_values_are_computed_again_when_its_file_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "my_encoding.py"
    text = FILE.with_name("my_encoding.py").read_text()
    for factor in ("2", "3"):
        sys.modules.pop("my_encoding", None)
        registry._SPECS["encoding"].pop("Clustering", None)
        file.write_text(text.replace("connected / pairs", f"{factor} * connected / pairs"))
        argv = ("dataset.dir", str(tmp_path), "custom_modules", f"[{file}]", *DIGITS)
        load(*argv)
        load_dataset("sklearn", "digits", str(tmp_path))
        assert "Clustering: computing it" in caplog.text
        caplog.clear()
    load(*argv)
    load_dataset("sklearn", "digits", str(tmp_path))
    assert "computing" not in caplog.text


def test_it_is_listed_and_a_near_miss_names_it() -> None:
    load()
    assert "Clustering  Local clustering coefficient" in listing(["clustering"])
    load("dataset.node_encoder_name", "LinearNode+Clusterin", "dataset.sample", "True")
    with pytest.raises(ConfigError, match="unknown name 'Clusterin'. Did you mean Clustering"):
        model_and_batch()
    load("posenc_Clustering.enable", "False")
    with pytest.raises(ConfigError, match=r"Clustering needs posenc_Clustering\.enable True"):
        enabled_encodings(cfg)


def test_an_encoding_with_its_own_encoder_random_numbers_and_edges() -> None:
    @register("encoding", "Marks", summary="Random marks of edges.")
    class Marks(PositionalEncoding):
        seed: int = 0
        FROM_CONFIG = {"seed": "seed"}
        on_edges = random = True

        @staticmethod
        def compute(graph: Data, seed: int) -> dict[str, torch.Tensor]:
            rng = torch.Generator().manual_seed(1000 * seed + graph.graph_id)
            return {"marks": torch.rand(graph.num_edges, 2, generator=rng)}

    load_config(cfg, ROOT / "configs" / "quickstart" / "digits-kmip.yaml", ["posenc_Marks.enable", "True", "seed", "7"])
    graphs = [random_graph(6, 0), random_graph(6, 0)]
    (encoding,) = enabled_encodings(cfg)
    assert encoding.settings["seed"] == 7
    first, two = encoded(GraphDataset(graphs), [encoding], None, 1).graphs
    assert first.marks.shape == (graphs[0].num_edges, 2)
    assert not torch.equal(first.marks, two.marks)
    assert "encoding of edges" in listing(["Marks"])
    assert list(cfg.posenc_Marks) == ["enable"]


def test_the_transform_adds_it_to_a_graph_without_graphgym(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "my_encoding")
    encoding_class = importlib.import_module("my_encoding").Clustering
    graph = random_graph(9, 1)
    graph_with_values = AddEncoding("Clustering", normalised=False)(graph)
    assert torch.equal(graph_with_values.pestat_Clustering, encoding_class.compute(graph, normalised=False).float())
    assert "pestat_Clustering" not in graph
    assert issubclass(encoding_class, NodeEncoding)
    with pytest.raises(ConfigError, match=r"posenc_Clustering\.normalized: unknown option. Did you mean normalised"):
        AddEncoding("Clustering", normalized=True)
    with pytest.raises(ConfigError, match="unknown name 'Clusterin'. Did you mean Clustering"):
        AddEncoding("Clusterin")


def test_a_component_that_is_no_encoding_is_refused_when_it_is_registered() -> None:
    with pytest.raises(ConfigError, match="register encoding: 'Other' is no subclass of NodeEncoding"):
        register("encoding", "Other", torch.nn.Flatten, summary="An encoder alone.")


def test_one_that_is_registered_later_gets_its_group_in_the_config_as_it_is() -> None:
    load_config(cfg, ROOT / "configs" / "quickstart" / "digits-kmip.yaml", [])
    register("encoding", "Later", type("Later", (NodeEncoding,), {"__doc__": "Later.", "__module__": __name__}))
    assert cfg.posenc_Later.dim_pe == 16
