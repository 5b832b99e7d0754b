"""Search engines: what a hyper-parameter search tries next, by coordinate search, random draws or TPE."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from graphgps_kmip.errors import InputError
from graphgps_kmip.experiments.search_space import Choice, Factor, Space

RANDOM = 10  # trials that TPE draws at random
ROUND = 4  # further ones that it draws at once from the scores of all before, so that --jobs may run them together
DRAWS = 200  # of a round at most, to find configurations that are new


def coordinate_search(space: Space, score_of: Mapping[str, float | None]) -> list[Choice]:
    """Return what to try next: the default, each value of one factor at a time, then the best values together.

    Sections H.3 and H.4 of the k-MIP paper. The best value of a factor is that of the largest score alone; of equals
    the default, or else the first; one that failed loses.

    Args:
        space (Space): What is searched.
        score_of (Mapping): Tag of each trial that ended -> its score, larger is better; None if it failed.

    Returns:
        Choices of no trial that ended; empty at the end.
    """

    def best_value(factor: Factor) -> str:
        scores = {value: score_of.get(space.tag(space.default | {factor.name: value})) for value in factor.values}
        return max([factor.default, *scores], key=lambda value: -math.inf if scores[value] is None else scores[value])

    first = [space.default] + [
        space.default | {factor.name: value}
        for factor in space.factors
        for value in factor.values
        if value != factor.default
    ]
    missing = [choice for choice in first if space.tag(choice) not in score_of]
    together = {factor.name: best_value(factor) for factor in space.factors}
    return missing or ([] if space.tag(together) in score_of else [together])


def draw_choices(
    space: Space, choices: Sequence[Choice], scores: Sequence[float | None], number: int, by_tpe: bool = False
) -> list[Choice]:
    """Return the next different configurations: the default, then random ones or those of TPE.

    The random ones are those with which Optuna's TPE (Bergstra et al. 2011) begins. They do not depend on scores, so
    that all spaces with the same first factors have the same values of these.

    Args:
        space (Space): What is searched.
        choices (Sequence): All that were drawn before.
        scores (Sequence): Theirs, larger is better; None of those that failed.
        number (int): How many there shall be together.
        by_tpe (bool, optional): By TPE from the eleventh on. (default: ``False``)
    """
    count = min(number, math.prod(len(factor.values) for factor in space.factors)) - len(choices)
    draws, drawn = _draw_at_random(space), []
    if by_tpe:
        count = min(count, max(RANDOM - len(choices), ROUND))
        draws = draws if len(choices) < RANDOM else _draw_by_tpe(space, choices, scores)
    for choice in itertools.islice(draws, DRAWS if count > 0 else 0):
        if choice not in [*choices, *drawn]:
            drawn.append(choice)
        if len(drawn) == count:
            break
    return drawn


def _draw_at_random(space: Space) -> Iterator[Choice]:
    import numpy as np

    yield space.default
    for seed in itertools.count(1):
        generator = np.random.RandomState(seed)
        yield {name: values[generator.uniform(size=len(values)).argmax()] for name, (_, values) in space.ranges.items()}


def _draw_by_tpe(space: Space, choices: Sequence[Choice], scores: Sequence[float | None]) -> Iterator[Choice]:
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            f"--search tpe: more than {RANDOM} trials need optuna: pip install optuna, or 'graphgps_kmip[search]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranges = {name: optuna.distributions.CategoricalDistribution(values) for name, (_, values) in space.ranges.items()}
    study = optuna.create_study(direction="maximize")
    for choice, score in zip(choices, scores, strict=True):
        if score is not None:
            study.add_trial(optuna.trial.create_trial(params=dict(choice), distributions=ranges, value=score))
    for seed in itertools.count(len(choices)):
        study.sampler = optuna.samplers.TPESampler(seed=seed)
        yield study.ask(ranges).params
