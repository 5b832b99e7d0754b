"""Parameter names of the public codes and ours: GraphGPS, Exphormer, LRGB and the k-MIP code, on GraphGym.

Data for `graphgps_kmip.train.naming`, which says what a row means.
"""

from __future__ import annotations

from graphgps_kmip.train.naming import Dropped, Filled, Names

_CONV = r"^(layers\.\d+\.(?:local\.\d+|conv|layer\.layer\.conv)\.)"
_ATTENTION = r"^(layers\.\d+\.attention\.\d+\.)"
_START = r"layers.0.attention.0.initial_state."  # the parameters of Exphormer's edges stand in the first layer

_ENCODERS = (
    (r"^encoder\.(node|edge)_encoder_bn\.bn\.", (r"encoder.\1_norm.",)),
    (r"^encoder\.(node|edge)_encoder\.", (r"encoder.\1.",)),
    (r"^encoder\.(node|edge)\.encoder(\d)\.", (r"encoder.\1.<\2-1>.",)),  # joined by plus
    (r"^encoder\.edge\.norm\.", ("encoder.edge.1.norm.",)),  # before RWSEEdge
    (r"^encoder\.edge\.(\d)\.", (r"encoder.edge.\1.", r"encoder.edge.\1.encoder.")),  # the same encoder, but on edges
    # SignNet: linear map, ReLU and norm follow each other in ours
    (r"\.sign_inv_net\.enc\.bns\.(\d+)\.", (r".phi.norms.<\1+1>.",)),
    (r"\.sign_inv_net\.enc\.", (".phi.",)),
    (r"\.sign_inv_net\.rho\.", (".rho.",)),
    (r"\.lins\.(\d+)\.", (r".<\1*3>.",)),
    (r"\.bns\.(\d+)\.", (r".<\1*3+2>.",)),
    # LapPE: its first map is one of the DeepSet's
    (r"\.linear_A\.", (".pe_encoder.0.", ".linear_in.", ".pe_encoder.")),
    (r"^(encoder\..*\.pe_encoder)\.(\d+)\.", (r"\1.\2.", r"\1.<\2+1>.")),
    (r"\.linear_encoder_eigenvec\.", (".linear.",)),  # EquivStableLapPE
    (r"\.er_encoder\.", (".pe_encoder.",)),  # ERE
    # GraphormerBias, alone or before its token
    (r"\.[01]\.(spatial_encoder|in_degree_encoder|out_degree_encoder|edge_encoder)\.", (r".\1.", r".0.\1.")),
    (r"\.0\.edge_dis_encoder\.weight$", (".place_encoder", ".0.place_encoder")),
    (r"\.1\.graph_token$", (".1.token",)),
    (r"\.0\.graph_token$", (".1.bias", ".1.token")),
)
_LAYERS = (
    (r"^layers\.(\d+)\.local_model\.", (r"layers.\1.local.0.",)),
    (r"^layers\.(\d+)\.self_attn\.", (r"layers.\1.attention.0.",)),
    (r"^layers\.(\d+)\.norm1_local\.", (r"layers.\1.local_norm.0.",)),
    (r"^layers\.(\d+)\.norm1_(?:attn|global)\.", (r"layers.\1.attention_norm.0.",)),
    # Graphormer
    (r"^layers\.(\d+)\.input_norm\.", (r"layers.\1.attention_norm.",)),
    (r"^layers\.(\d+)\.attention\.(in_proj_|out_proj\.)", (r"layers.\1.attention.0.\2",)),
    # SAN
    (r"^trf_layers\.0\.attention\.fake_edge_emb\.", (f"{_START}feature.",)),
    (r"^trf_layers\.(\d+)\.attention\.([QKE])_2\.", (r"layers.\1.attention.0.fake_\2.",)),
    (r"^trf_layers\.(\d+)\.attention\.", (r"layers.\1.attention.0.",)),
    (r"^trf_layers\.(\d+)\.O_h\.", (r"layers.\1.attention.0.out.",)),
    (
        r"^trf_layers\.(\d+)\.(?:layer|batch)_norm1_h\.",
        (r"layers.\1.attention_norm.0.", r"layers.\1.attention_norm.1."),
    ),
    (r"^trf_layers\.(\d+)\.(?:layer|batch)_norm2_h\.", (r"layers.\1.ffn_norm.0.", r"layers.\1.ffn_norm.1.")),
    (r"^trf_layers\.(\d+)\.FFN_h_layer1\.", (r"layers.\1.ffn.0.",)),
    (r"^trf_layers\.(\d+)\.FFN_h_layer2\.", (r"layers.\1.ffn.3.",)),
    # any number of branches
    (r"^layers\.(\d+)\.models\.(\d+)\.local_model\.", (r"layers.\1.local.{2}.",)),
    (r"^layers\.(\d+)\.models\.(\d+)\.self_attn\.", (r"layers.\1.attention.{2}.",)),
    (r"^layers\.(\d+)\.models\.(\d+)\.norm1_local\.", (r"layers.\1.local_norm.{2}.",)),
    (r"^layers\.(\d+)\.models\.(\d+)\.norm1_(?:attn|global)\.", (r"layers.\1.attention_norm.{2}.",)),
    (r"^layers\.(\d+)\.norm2\.", (r"layers.\1.ffn_norm.",)),
    (r"^layers\.(\d+)\.ff_linear1\.", (r"layers.\1.ffn.0.",)),
    (r"^layers\.(\d+)\.ff_linear2\.", (r"layers.\1.ffn.3.",)),
    # custom_gnn, and GraphGym's own network
    (r"^gnn_layers\.(\d+)\.(?:model\.)?", (r"layers.\1.conv.",)),
    (r"^mp\.layer(\d+)\.post_layer\.0\.", (r"layers.\1.layer.post_layer.0.",)),
    (r"^mp\.layer(\d+)\.layer\.", (r"layers.\1.layer.layer.",)),
    (r"^(layers\.\d+\.layer\.layer)\.model\.", (r"\1.model.", r"\1.conv.")),
)
_CONVS = (
    (_CONV + r"bn_(node|edge)_[xe]\.", (r"\1\2_norm.",)),
    (_CONV + r"mlp_r_ij\.", (r"\1gate.mlp.",)),
    (_CONV + r"nn\.", (r"\1inner.", r"\1conv.nn.")),
    (_CONV + r"lin_src\.", (r"\1lin.",)),  # GAT of torch_geometric before 2.5
    (_CONV, (r"\1", r"\1conv.")),
)
_ATTENTIONS = (
    (_ATTENTION + r"in_proj_", (r"\1qkv.",)),
    (_ATTENTION + r"out_proj\.", (r"\1out.",)),
    (_ATTENTION + r"MQs\.", (r"\1query.",)),
    (_ATTENTION + r"MKs\.", (r"\1key.",)),
    (_ATTENTION + r"MVs\.", (r"\1value.",)),
    (_ATTENTION + r"MO\.", (r"\1out.",)),
    (_ATTENTION + r"to_q\.", (r"\1query.",)),
    (_ATTENTION + r"to_k\.", (r"\1key.",)),
    (_ATTENTION + r"to_v\.", (r"\1value.",)),
    (_ATTENTION + r"to_out\.", (r"\1out.",)),
    (_ATTENTION + r"fast_attention\.projection_matrix", (r"\1projection",)),
    (_ATTENTION + r"encoder\.layers\.0\.attention\.self\.", (r"\1",)),
    (_ATTENTION + r"encoder\.layers\.0\.attention\.output\.dense\.", (r"\1out.",)),
    (_ATTENTION + r"encoder\.layers\.0\.attention\.output\.LayerNorm\.", (r"\1out_norm.",)),
    (_ATTENTION + r"encoder\.layers\.0\.intermediate\.dense\.", (r"\1ffn.0.",)),
    (_ATTENTION + r"encoder\.layers\.0\.output\.dense\.", (r"\1ffn.2.",)),
    (_ATTENTION + r"encoder\.layers\.0\.output\.LayerNorm\.", (r"\1ffn_norm.",)),
    (_ATTENTION + r"(fake_)?Q\.", (r"\1\2query.",)),
    (_ATTENTION + r"(fake_)?K\.", (r"\1\2key.",)),
    (_ATTENTION + r"V\.", (r"\1value.",)),
    (_ATTENTION + r"(fake_)?E\.", (r"\1\2edge.",)),
    (_ATTENTION, (r"\1", r"\1attention.")),  # BiasedTransformer is a Transformer with biases
    (r"^exp_edge_fixer\.exp_edge_attr\.", (f"{_START}expander.",)),
    (r"^exp_edge_fixer\.virt_node_emb\.", (f"{_START}virtual.",)),
    (r"^exp_edge_fixer\.virt_edge_in_emb\.", (f"{_START}to_virtual.",)),
    (r"^exp_edge_fixer\.virt_edge_out_emb\.", (f"{_START}from_virtual.",)),
)
_ENDS = (
    (r"^pre_mp\.Layer_(\d+)\.layer\.model\.", (r"pre_mp.[\1].",)),
    (r"^pre_mp\.Layer_(\d+)\.post_layer\.0\.", (r"pre_mp.[\1]+1.",)),
    (r"^post_mp\.layer_post_mp\.model\.\d\.Layer_(\d+)\.layer\.model\.", (r"head.mlp.[\1].",)),
    (r"^post_mp\.layer_post_mp\.model\.\d\.model\.", ("head.mlp.[-1].",)),
    (r"^post_mp\.ln\.", ("head.norm.",)),  # graphormer_graph
    (r"^post_mp\.layers\.0\.", ("head.mlp.0.",)),
    (r"^post_mp\.FC_layers\.(\d+)\.", (r"head.FC_layers.\1.", r"head.mlp.[\1].")),  # san_graph
    (r"^post_mp\.mlp\.(\d+)\.", ("head.mlp.[{1}].",)),  # mlp_graph
    (r"^post_mp\.", ("head.",)),
)
# Ours wrap torch's and torch_geometric's norms.
_NORMS = ((r"\.(\w+)$", (r".\1", r".module.\1", r".norm.module.\1", r".norm.\1")),)

PUBLIC = Names(
    wrappers=("module.", "model."),  # of DistributedDataParallel and of GraphGym
    rules=(*_ENCODERS, *_LAYERS, *_CONVS, *_ATTENTIONS, *_ENDS, *_NORMS),
    dropped=(
        Dropped(
            r"^layers\.(\d+)\.norm1_local\.", "norm of a branch that is not there", unless=r"layers\.\1\.local_model\."
        ),
        Dropped(
            r"^layers\.(\d+)\.norm1_(?:attn|global)\.",
            "norm of a branch that is not there",
            unless=r"layers\.\1\.self_attn\.",
        ),
        Dropped(
            r"^trf_layers\.\d+\.attention\.fake_edge_emb\.",
            "SAN's layers share one vector, saved with each",
            same="trf_layers.0.attention.fake_edge_emb.",
        ),
        Dropped(r"\.eps$", "GINE's epsilon, which is not learned and 0", zero=True),
        Dropped(r"\.lin_dst\.", "torch_geometric before 2.5 saved GAT's one map twice", same=".lin_src."),
        Dropped(r"\.num_batches_tracked$", "a count of steps that no BatchNorm here reads"),
        Dropped(r"\.aggr_module\.avg_deg_(lin|log)$", "mean degrees that PNA's scaler, identity, does not read"),
        Dropped(r"^encoder\.node_encoder\.node_x_(mean|std)$", "columns of the roads are scaled when they are loaded"),
    ),
    filled=(
        Filled(r"\.num_batches_tracked$", "see above; older codes do not save it"),
        Filled(r"\.avg_deg_(lin|log)$", "see above; torch_geometric before 2.4 did not save it"),
        Filled(r"^layers\.\d+\.attention\.\d+\.seed$", "the public BigBird draws its random blocks by seed 0", 0),
    ),
    reasons=(
        (r"(atom|bond)_embedding_list", "the vocabularies of atoms and bonds differ between versions of ogb"),
        (r"\bpost_mp\.|\bhead\.", "for a new prediction head set pretrained.reset_prediction_head True"),
    ),
)
