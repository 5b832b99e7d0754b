"""Keys of public YAML files that no part of this package reads: accepted, and said so in one line.

With GraphGym's and ours they are the union of what GraphGPS, Exphormer, Sp_Exphormer and the k-MIP code declare, so
that no file of theirs has an unknown key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

# Key -> public default. A part that begins to read one takes it out of here.
UNREAD: dict[str, Any] = {
    "dataset.debug": False,
    "train.eval_smoothing_metrics": False,
    "train.save_attention_scores": False,
    "train.saving_epoch": False,
    "train.cur_epoch": 0,
    "train.temp_rdc_ratio": 1.0,
    "train.temp_min": 0.1,
    "train.temp_wait": 10,
    "train.replace_edges": False,
    "train.rotate_edges": False,
    "train.layer_wise_edges": False,
    "train.sample_new_edges": False,
    "train.number_of_edge_sets": 1,
    "train.num_edge_samples": 50,
    "train.edge_sample_num_neighbors": [6, 4, 4, 4, 4, 4],
    "train.spexphormer_sampler": "graph_reservoir",
    "train.resampling_epochs": 1,
    "gnn.heads": 4,
    "gnn.attn_dropout": 0.1,
    "gnn.use_vn": True,
    "gnn.vn_pooling": "add",
    "gnn.norm_type": "layer",
    "gt.dim_edge": None,
    "gt.pna_degrees": [],
    "gt.activation": "relu",
    "gt.use_edge_feats": True,
    "gt.FFN": True,
    "gt.JK": False,
    "gt.vn_pooling": "mean",
    "gt.bigbird.chunk_size_feed_forward": 0,
    "gt.bigbird.is_decoder": False,
    "gt.bigbird.add_cross_attention": False,
    "gt.bigbird.max_position_embeddings": 128,
    "prep.exp_count": 1,
    "prep.train_percent": 0.6,
    "prep.layer_edge_indices_dir": None,
    "prep.dist_enable": False,
    "prep.dist_cutoff": 510,
    "prep.replace_combined_exp_edges": False,
    "prep.save_edges": False,
    "prep.load_edges": False,
    "prep.default_initial": False,
    "prep.num_edge_sets": 1,
    "prep.edge_set_name": None,
}
# The same, but GraphGym or the table of encodings has their defaults.
UNREAD_ELSEWHERE = frozenset(
    """gpu_mem round dataset.resample_negative dataset.transform posenc_ElstaticSE.kernel.times
    posenc_ElstaticSE.kernel.times_func posenc_RWSEEdge.num_global posenc_RWSEEdge.global_edge_dropout""".split()
)


def log_unread(settings: Iterable[tuple[str, Any, str]]) -> None:
    """Log the settings (key, value, where) that no part of this package reads, in one line for each kind.

    Those with the value that their code has by default are told quietly, others in a warning: the run would be another.
    """
    unread = {key: value for key, value, _ in settings if key in UNREAD or key in UNREAD_ELSEWHERE}
    changed = {key: value for key, value in unread.items() if key in UNREAD and value != UNREAD[key]}
    for level, found in (
        (logging.WARNING, changed),
        (logging.INFO, {k: unread[k] for k in unread if k not in changed}),
    ):
        if found:
            listed = ", ".join(f"{key} {value}" for key, value in found.items())
            logging.log(level, "config: accepted, but no part of this package reads %s", listed)
