"""GraphGym's config in another package's main program: ``load_cfg`` reads files of our networks as ``main.py`` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_geometric.graphgym import register as graphgym
from torch_geometric.graphgym.config import set_cfg
from yacs.config import CfgNode

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config.config_defaults import NAME, set_defaults
from graphgps_kmip.gym.config.config_loading import load_config, parse_overrides, read_settings
from graphgps_kmip.gym.graphgym_registries import has_network


class StockConfig(CfgNode):
    """GraphGym's ``cfg``, which `load_config` fills where a file and the command line name a network of ours.

    GraphGym's ``load_cfg`` merges the file, then the command line. Only the merge shows which keys a file sets and
    which have defaults, so that whose defaults count, and what a key means in the dialect of a file, is decided there.
    """

    def merge_from_file(self, cfg_filename: str) -> None:
        """Merge a YAML file."""
        self.__dict__["file"] = cfg_filename
        if self._names_our_network(cfg_filename, []):
            load_config(self, cfg_filename, [])
        else:
            super().merge_from_file(cfg_filename)

    def merge_from_list(self, cfg_list: list[Any]) -> None:
        """Merge the command line; the first after a file is read together with it."""
        file = self.__dict__.pop("file", None)
        if file is not None and self._names_our_network(file, cfg_list):
            load_config(self, file, cfg_list)
            if self.pretrained.dir:  # another main program knows other names of parameters, or ignores the key
                raise ConfigError(
                    f"pretrained.dir {self.pretrained.dir}: only graphgps_kmip's main.py begins with the parameters of "
                    "an earlier run: train by it, or leave the key out"
                )
            return
        if file is not None and self._names_our_network(file, []):
            set_cfg(self)
            self.set_new_allowed(self.is_new_allowed())  # GRIT's main allows new keys, in all groups
            super().merge_from_file(file)
        super().merge_from_list(cfg_list)

    @classmethod
    def _decode_cfg_value(cls, value: Any) -> Any:
        return CfgNode._decode_cfg_value(value)  # yacs makes groups of this class, and compares their types

    def _names_our_network(self, file: str, overrides: list[Any]) -> bool:
        settings = {key: value for key, value, _ in read_settings(Path(file))} | dict(parse_overrides(overrides))
        network = settings.get("model.type", self.model.type)
        return has_network(network) or network not in graphgym.network_dict  # e.g. of its own custom_modules


def declare_keys(cfg: CfgNode) -> None:
    """Add our keys to GraphGym's config; defaults of other packages, if there are any, stay until a file is read."""
    before = cfg.clone() if set(graphgym.config_dict) - {NAME} else CfgNode()
    set_defaults(cfg)
    _put_back(cfg, before)
    object.__setattr__(cfg, "__class__", StockConfig)  # yacs takes it for a key


def _put_back(cfg: CfgNode, values: CfgNode) -> None:
    for key, value in values.items():
        if isinstance(value, CfgNode) and isinstance(cfg.get(key), CfgNode):
            _put_back(cfg[key], value)
        else:
            cfg[key] = value
