"""Names of parameters in the public code of PPGT and in ours: a table of parts, for records and counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

LAYER = {
    r"norm1_h\.norm_layer": "attention_norm",
    r"norm2_h\.norm_layer": "ffn_norm",
    r"attention\.Q": "ATTENTION.heads.query",
    r"attention\.KV": "ATTENTION.heads.key_value",
    r"attention\.O": "ATTENTION.heads.out",
    r"attention\.P": "ATTENTION.pair",
    r"res_layer1\.alpha": "attention_branch.layer_scale",
    r"res_layer2\.alpha": "ffn_branch.layer_scale",
    r"FFN\.0": "ffn.0",
    r"FFN\.4": "ffn.3",
}
BLOCK = {
    r"pre_mlp_norm\.norm_layer": "norms.{}",
    r"mlp\.0": "mlps.{}.0",
    r"mlp\.3": "mlps.{}.2",
    r"res_layer\.alpha": "scales.{}",
}
REST = {
    r"feat_enc\.(node|edge)_encoder\.": r"encoder.features.\1.",
    r"pos_enc\.edge_encoders\.0\.mlp\.0\.": "encoder.pair_stems.STEM.mlp.0.",
    r"pos_enc\.edge_encoders\.0\.out_fc\.": "encoder.pair_stems.STEM.mlp.2.",
    r"pos_enc\.edge_encoders\.1\.pre_backbone_norm\.norm_layer\.": "encoder.pair_stems.BLOCKS.first_norm.",
    r"pos_enc\.edge_encoders\.1\.post_backbone_norm\.norm_layer\.": "encoder.pair_stems.BLOCKS.last_norm.",
    r"pre_backbone_norm\.norm_layer\.norm_layer\.": "pre_mp.",
    r"post_backbone_norm\.norm_layer\.norm_layer\.": "head.norm.",
    r"post_CA_norm\.norm_layer\.norm_layer\.": "head.class_norm.",
    r"post_mp\.mlp\.": "head.head.mlp.",
    r"post_mp\.out_bn\.": "head.head.out_norm.module.",
    r"post_mp\.post_pooling_norm\.": "head.head.norm.module.",
}
SUBGRAPHS = {
    r"pre_fc\.": "first.",
    r"sg_gnns\.module_(\d+)\.eps": "epsilons.LAYER",
    r"sg_gnns\.module_(\d+)\.nn\.": "mlps.LAYER.",
    r"sg_gnns\.module_(\d+)\.": "norms.LAYER.module.",
    r"pool_norm\.": "pool_norm.module.",
    r"pe_fc\.": "last.",
}
STEMS = {"target": "target_token", "class_token": "cls_token"}


def renaming(node_features: str, has_subgraphs: bool = False) -> Callable[[str], str]:
    """Return the function from a recorded name to ours.

    Args:
        node_features (str): Value of ``ppgt.node_features``; the public code numbers these encoders.
        has_subgraphs (bool, optional): There is a subgraph encoder. (default: False)
    """
    features = node_features.split("+")
    others = [name for name in features if name in STEMS]

    def rename(name: str) -> str:
        if match := re.fullmatch(r"pos_enc\.node_encoders\.(\d+)\.(.*)", name):
            return _of_node(features[int(match[1])], match[2], others)
        if match := re.fullmatch(r"pos_enc\.sg_encoders\.0\.(.*)", name):
            number = re.search(r"module_(\d+)", name)  # three modules of each layer: GIN, norm, residual
            found = "encoder.pair_stems.0." + _replaced(match[1], SUBGRAPHS)
            return found.replace("LAYER", str(int(number[1]) // 3)) if number else found
        if match := re.fullmatch(r"pos_enc\.edge_encoders\.1\.mlp\.module_(\d+)\.(.*)", name):
            return "encoder.pair_stems.BLOCKS." + _replaced(match[2], BLOCK).format(int(match[1]) - 1)
        if match := re.fullmatch(r"layers\.(\d+)\.(.*)", name):
            return f"layers.{match[1]}." + _replaced(match[2], LAYER).replace("ATTENTION", "attention.0")
        if match := re.fullmatch(r"class_attention_layers\.(\d+)\.(.*)", name):
            return f"head.class_layers.{match[1]}." + _replaced(match[2], LAYER).replace("ATTENTION", "attention")
        return _replaced(name, REST)

    def placed(name: str) -> str:
        first = int(has_subgraphs)
        return rename(name).replace("STEM", str(first)).replace("BLOCKS", str(first + 1))

    return placed


def _of_node(feature: str, rest: str, others: list[str]) -> str:
    if feature not in STEMS:
        return f"encoder.node_stems.0.linears.{feature}." + rest.removeprefix("out_fc.")
    rest = "token" if rest == STEMS[feature] else rest.replace("order_fc", "mlp")
    return f"encoder.node_stems.{1 + others.index(feature)}.{rest}"


def _replaced(name: str, table: dict[str, str]) -> str:
    for pattern, ours in table.items():
        if match := re.match(pattern, name):
            return match.expand(ours) + name[match.end() :]
    raise KeyError(name)


def recorded_parameters(shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the recorded names that are parameters or statistics here, too.

    Ours keep neither the frequencies of the sinusoidal encoding, nor the constant 1 in place of a layer scale.

    Args:
        shapes (Mapping): Recorded name -> shape.
    """
    constant = [name for name, shape in shapes.items() if name.endswith(".alpha") and list(shape) == [1]]
    return [name for name in shapes if not name.endswith("edge_encoders.0.eps") and name not in constant]
