"""The syntax trees of ogbg-code2 as models take them: edges both ways and between tokens, names as numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.data import Data

if TYPE_CHECKING:
    from torch_geometric.data import InMemoryDataset

NODE_TYPES, NODE_ATTRIBUTES = 98, 10_030
LENGTH = 5  # sub-tokens of a name that are predicted
WORDS = 5_000  # the most frequent sub-tokens of the training graphs; two numbers follow theirs
UNKNOWN, END = WORDS, WORDS + 1
CLASSES = WORDS + 2


class SyntaxTrees:
    """Turns a tree of ogb's class into one that models take; applied whenever a graph is asked for.

    ``y`` becomes (1, 5) int64: numbers of the sub-tokens, `UNKNOWN` for those outside the vocabulary, `END` after the
    last one. Edges become those of the tree, their reverses, those from each token to the next, and their reverses;
    ``edge_attr`` (E, 2) int64 says (1: between tokens, 1: a reverse).

    Args:
        words: the vocabulary, at most `WORDS`, numbered in this order.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.numbers = {word: number for number, word in enumerate(words)}

    @classmethod
    def prepared(cls, dataset: InMemoryDataset, train: Tensor) -> SyntaxTrees:
        """Return the transform with the vocabulary kept beside the processed data, made where there is none yet."""
        path = Path(dataset.processed_dir, "vocabulary.json")
        if not path.exists():
            names = dataset._data.y
            path.write_text(json.dumps(vocabulary(names[index] for index in train.tolist())) + "\n")
        return cls(json.loads(path.read_text()))

    def __call__(self, graph: Data) -> Data:
        """Return the tree with its edges and its name as described above."""
        numbers = [self.numbers.get(word, UNKNOWN) for word in graph.y[:LENGTH]]
        edge_index, edge_attr = _edges(graph)
        return Data(
            x=graph.x,
            edge_index=edge_index,
            edge_attr=edge_attr,
            y=torch.tensor([numbers + [END] * (LENGTH - len(numbers))]),
            node_depth=graph.node_depth,
        )


def vocabulary(names: Iterable[Sequence[str]]) -> list[str]:
    """Return the most frequent sub-tokens, `WORDS` at most; of equally frequent ones the first seen comes first."""
    return [word for word, _ in Counter(chain.from_iterable(names)).most_common(WORDS)]


def _edges(graph: Data) -> tuple[Tensor, Tensor]:
    tokens = graph.node_is_attributed.flatten().nonzero().flatten()
    tokens = tokens[graph.node_dfs_order.flatten()[tokens].argsort()]
    tree, following = graph.edge_index, torch.stack([tokens[:-1], tokens[1:]])
    parts = [(tree, (0, 0)), (tree.flip(0), (0, 1)), (following, (1, 0)), (following.flip(0), (1, 1))]
    kinds = [torch.tensor([kind]).expand(edges.size(1), 2) for edges, kind in parts]
    return torch.cat([edges for edges, _ in parts], dim=1), torch.cat(kinds)
