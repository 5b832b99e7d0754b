"""What a hyper-parameter search varies, and the trainings that its choices are."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from graphgps_kmip.experiments.experiment_spec import Training

Choice = Mapping[str, str]  # factor -> name of its value
TAG = "search"


@dataclass(frozen=True)
class Proposal:
    """A configuration that an engine wants tried, and why, in a few words."""

    choice: Choice
    why: str


# Yields what to try together, is sent a score for each (larger is better, None: failed), and returns a remark.
Engine = Generator[list[Proposal], list[float | None], str]


@dataclass(frozen=True)
class Factor:
    """One thing that is varied.

    Args:
        name: short, letters.
        default: name of the value to start from.
        values: name -> settings, in the order in which they are tried. One value may set several keys.
    """

    name: str
    default: str
    values: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Space:
    """All combinations of the values of some factors.

    Args:
        factors: in the order of the folder's name.
        fixed: settings of every configuration.
        source: where the ranges are from.
    """

    factors: tuple[Factor, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def default(self) -> dict[str, str]:
        """Return the choice to start from."""
        return {factor.name: factor.default for factor in self.factors}

    def differing(self, choice: Choice) -> dict[str, str]:
        """Return what a choice changes in the default."""
        return {name: choice[name] for name, default in self.default.items() if choice[name] != default}

    def settings(self, choice: Choice) -> dict[str, Any]:
        """Return the settings of a choice, those at their default too: the config file may hold others."""
        settings = dict(self.fixed)
        for factor in self.factors:
            settings |= factor.values[choice[factor.name]]
        return settings

    def tag(self, choice: Choice) -> str:
        """Return how the folder of a choice ends: ``search-lr0.0005-depth10``, or ``search-default``."""
        changes = [f"{name}{value}" for name, value in self.differing(choice).items()]
        return "-".join([TAG, *(changes or ["default"])])


@dataclass(frozen=True)
class Follower:
    """A training that takes over what is found for another one: on another data set, say.

    Args:
        training: which.
        settings: what it has otherwise.
        tag: ends its folder's name, where it has something otherwise.
    """

    training: Training
    settings: Mapping[str, Any] = field(default_factory=dict)
    tag: str = ""


@dataclass(frozen=True)
class Search:
    """One training whose hyper-parameters are searched.

    Args:
        training: without what is searched.
        space: what is searched.
        followers: those who take over what is found.
    """

    training: Training
    space: Space
    followers: tuple[Follower, ...] = ()

    def trial(self, choice: Choice) -> Training:
        """Return the training at a choice, with the seeds of the experiment."""
        return _tagged(self.training, self.space.settings(choice), self.space.tag(choice))

    def finals(self, choice: Choice) -> list[Training]:
        """Return the trainings at the choice that was found, the followers' too."""
        finals = [self.trial(choice)]
        for one in self.followers:
            tag = "-".join(filter(None, [self.space.tag(choice), one.tag]))
            finals.append(_tagged(one.training, self.space.settings(choice) | one.settings, tag))
        return finals


def _tagged(training: Training, settings: Mapping[str, Any], tag: str) -> Training:
    return replace(
        training,
        point={**training.point, TAG: tag.removeprefix(f"{TAG}-")},  # tells it from its siblings while it runs
        settings={**training.settings, **settings},
        tag="-".join(filter(None, [training.tag, tag])),
    )
