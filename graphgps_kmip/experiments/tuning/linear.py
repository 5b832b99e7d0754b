"""The linear search of the k-MIP paper (sections H.3 and H.4): one factor at a time, then the best values together."""

from __future__ import annotations

from graphgps_kmip.experiments.search_space import Engine, Factor, Proposal, Space


def linear(space: Space) -> Engine:
    """Try the default, each value of each factor with the others at their default, and the best values together.

    The best value of a factor has the largest score; of equals the default stays, or else the first. One that failed
    is never the best, and where all failed the default is.
    """
    proposals = [Proposal(space.default, "default")]
    for factor in space.factors:
        proposals += [
            Proposal(space.default | {factor.name: value}, f"{factor.name} alone")
            for value in factor.values
            if value != factor.default
        ]
    scores = yield proposals
    score_of = {space.tag(one.choice): score for one, score in zip(proposals, scores, strict=True)}
    together = {factor.name: _best(factor, space, score_of) for factor in space.factors}
    if space.tag(together) in score_of:
        return f"The best values together are `{space.tag(together)}`, which was tried before."
    yield [Proposal(together, "best of each together")]
    return f"The best values together are `{space.tag(together)}`."


def _best(factor: Factor, space: Space, score_of: dict[str, float | None]) -> str:
    def score(value: str) -> float:
        found = score_of[space.tag(space.default | {factor.name: value})]
        return float("-inf") if found is None else found

    return max([factor.default, *factor.values], key=score)  # the first of equals
