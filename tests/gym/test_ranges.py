"""Every key of the config has a rule, and a value outside is refused in one line that names key, origin and rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from torch import nn
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.compat.key_translation import UNREAD
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_defaults import BY_RULE, Unruled, rules
from graphgps_kmip.gym.config_loading import flatten, load_config
from graphgps_kmip.gym.experiment import assemble, check_devices
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.ranges import FLAG, Range, Registered, refusal
from graphgps_kmip.registry import register
from graphgps_kmip.signatures import read_rules

ROOT = Path(__file__).parents[2]
DEFAULTS = CfgNode()
load_config(DEFAULTS, None, [])
VALUES = dict(flatten(DEFAULTS))
RULES = rules(DEFAULTS)
READ = [key for key in RULES if key not in UNREAD]
MODULES_AND_NAMES = ("custom_modules", "dialect", "quirks")  # checked, and reported, before the config is there
OUTSIDE: tuple[Any, ...] = (
    -(2**63), -7, 0, 2, 2**63, 1e40, -0.5, 1.5, float("nan"), "", "foo", "a\x07b", [float("nan")], [-7], ["\x07"], [[]],
    False,
)  # fmt: skip


def test_every_key_has_a_rule_and_those_that_are_free_are_those_that_nothing_reads() -> None:
    assert set(RULES) == {key for key, _ in flatten(DEFAULTS)}
    assert {key for key, rule in RULES.items() if isinstance(rule, Unruled)} <= set(UNREAD)
    assert {key for _, keys in BY_RULE for key in keys.split()} <= set(RULES)


def test_the_defaults_are_allowed() -> None:
    refused = {key: refusal(RULES[key], value) for key, value in flatten(DEFAULTS)}
    assert {key: why for key, why in refused.items() if why} == {}


def outside(key: str) -> Any:
    """Return a value of a key's type that its rule refuses, None if it allows all that are tried."""
    rule, default = RULES[key], VALUES[key]
    if rule == FLAG:
        return "foo"  # every bool is allowed, nothing else is
    kinds = (type(default), int) if isinstance(default, float) else (type(default),)
    if default is None:
        kinds = (int, str)
    return next((candidate for candidate in OUTSIDE if type(candidate) in kinds and not rule.allows(candidate)), None)


def test_a_rule_refuses_some_value_of_its_type() -> None:
    assert [key for key in READ if outside(key) is None] == []


# One key of each group, kind of rule and type: how a value is refused depends on nothing else.
FIRST = set({(key.rpartition(".")[0], type(RULES[key]), type(VALUES[key])): key for key in reversed(READ)}.values())


@pytest.mark.parametrize("key", sorted(FIRST))
def test_a_value_outside_is_refused_with_key_origin_and_what_is_allowed(key: str) -> None:
    rule = RULES[key]
    text = json.dumps(outside(key)).replace("NaN", ".nan")
    with pytest.raises(ConfigError) as caught:
        load_config(CfgNode(), None, [key, text])
    message = str(caught.value)
    assert key in message
    assert "\n" not in message
    assert rule == FLAG or isinstance(rule, Registered) or str(rule) in message or key in MODULES_AND_NAMES


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gt.geco.filter_layers", "1000000000"),
        ("gt.geco.conv_width", "1000000000"),
        ("gt.bigbird.num_random_blocks", "1000000000"),
        ("spexphormer.eval_draws", "1000000000"),
        ("spexphormer.degree", "[1000000000]"),
        ("ppgt.ffn_ratio", "1e29"),
        ("ppgt.stem_ffn_ratio", "1e29"),
    ],
)
def test_a_size_that_no_model_can_have_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: expected a .*(whole|finite) number .*10*.* got \[?1"):
        load_config(CfgNode(), None, [key, value])


def test_the_origin_of_a_value_is_the_file_that_set_it_last(tmp_path: Path) -> None:
    (tmp_path / "shared.yaml").write_text("gt:\n  dropout: 7\n  layers: 0\n")
    (tmp_path / "own.yaml").write_text("base: shared.yaml\ngt:\n  layers: 2\n")
    with pytest.raises(ConfigError, match=r"shared\.yaml: gt\.dropout: expected a finite number from 0 to 1, got 7"):
        load_config(CfgNode(), tmp_path / "own.yaml", [])
    load_config(CfgNode(), tmp_path / "own.yaml", ["gt.dropout", "0.5"])  # what is overridden does not count


def test_a_dialect_or_a_quirk_of_the_wrong_type_is_one_line() -> None:
    for argv in (["quirks", "3"], ["dialect", "[a]"], ["quirks", "[[a]]"], ["model.type", "{a: {b: []}}"]):
        with pytest.raises(ConfigError, match=argv[0]):
            load_config(CfgNode(), None, argv)


class Mine(nn.Module):
    """An attention of a user."""

    def __init__(self, dim: int, *, reach: int = 3, share: Annotated[float, Range(0, 1)] = 0.5) -> None:
        super().__init__()
        self.options = dim, reach, share


@pytest.mark.usefixtures("own_registry")
def test_a_users_component_may_declare_ranges_and_need_not() -> None:
    register("attention", "Mine", Mine)
    node = CfgNode()
    load_config(node, None, ["gt.mine.reach", "-9", "gt.mine.share", "1"])
    assert (node.gt.mine.reach, node.gt.mine.share) == (-9, 1.0)
    with pytest.raises(ConfigError, match=r"gt\.mine\.share: expected a finite number from 0 to 1, got 1\.5"):
        load_config(CfgNode(), None, ["gt.mine.share", "1.5"])
    assert set(read_rules(Mine)) == {"share"}


@pytest.mark.parametrize(
    ("accelerator", "devices", "count"),
    [("cuda", 1, 0), ("gpu", 1, 0), ("cuda", [3], 2), ("cuda", 4, 2)],
)
def test_devices_that_the_machine_lacks_are_named(
    accelerator: str, devices: int | list[int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    with pytest.raises(ConfigError, match="accelerator|devices"):
        check_devices(accelerator, devices)
    check_devices("auto", 1)
    check_devices("cpu", 2)


def test_seeds_counted_up_by_repeat_stay_in_range() -> None:
    load_config(cfg, None, ["seed", str(2**32 - 2)])
    assert len(planned_runs(2)) == 2
    with pytest.raises(ConfigError, match="--repeat 3 from seed 4294967294"):
        planned_runs(3)


ERN = "dataset.node_encoder_name LinearNode+ERN posenc_ERN.enable True posenc_ERN.dim_pe 8".split()
ERN += ["posenc_ERN.model", "Linear"]


@pytest.mark.parametrize(
    ("file", "argv"),
    [
        ("quickstart/digits-kmip.yaml", []),  # no edge features
        ("SmallGraphs/pascalvoc-kmip.yaml", []),
        ("Node/computers-exphormer.yaml", []),
        ("quickstart/digits-gcn.yaml", ERN),
    ],
)
def test_the_config_that_a_run_writes_is_one_that_loads(file: str, argv: list[str], tmp_path: Path) -> None:
    load_config(cfg, ROOT / "configs" / file, ["dataset.sample", "True", "dataset.dir", str(tmp_path), *argv])
    with configured(planned_runs(1)[0]):
        assemble()
        settings = yaml.safe_load(cfg.dump())
    del settings["run_dir"]  # where this run stood, which no YAML names
    written = tmp_path / "config.yaml"
    written.write_text(yaml.safe_dump(settings))
    load_config(CfgNode(), written, [])
