"""Graph transformers for torch_geometric.graphgym: importing this package registers all of its parts."""

__version__ = "0.1.0"


from graphgps_kmip import gym  # noqa: E402, F401 (imported for its registrations)
