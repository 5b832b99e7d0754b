"""Message passing layers, one mechanism a file, and their call contract in words.

Contract: ``layer(x, edge_index, edge_attr, encoding=None) -> (x, edge_attr)``.

* ``x`` is (N, C), or a pair (x_source (M, C), x_target (N, C)) as torch_geometric's convolutions take it:
  ``edge_index[0]`` counts rows of x_source, ``edge_index[1]`` rows of x_target, and the result has N rows. So a graph
  that is divided over processes gets the nodes that it does not own. A layer that cannot raises ValueError.
* ``edge_index`` is (2, E) as (source j, target i). ``edge_attr`` (E, C) is None where there are no edge features; a
  layer that needs them raises ValueError. A layer that does not change them returns what it was given.
* ``encoding`` (N, C) are the columns of EquivStableLapPE, for layers built with ``equivstable_pe=True`` and no others;
  a pair where x is a pair.

A class says in ``internal_residual`` whether it adds its own input to its output (and brings its own dropout), so that
the GPS layer around it does not do so a second time. Those without hold neither activation, dropout nor residual of
their result: these belong to the network around them.
"""

from __future__ import annotations

from graphgps_kmip.mpnn.gat import GAT, GATv2
from graphgps_kmip.mpnn.gatedgcn import GatedGCN
from graphgps_kmip.mpnn.gcn import GCN
from graphgps_kmip.mpnn.genconv import GENConv
from graphgps_kmip.mpnn.gin import GIN, GINE
from graphgps_kmip.mpnn.pna import PNA

__all__ = ["GAT", "GCN", "GIN", "GINE", "PNA", "GATv2", "GENConv", "GatedGCN"]
