"""The theorem on GPS models tried on random pairs and random models, for every row of `REACH`."""

from __future__ import annotations

from typing import Any

from graphgps_kmip.expressivity.graph_pairs import Pair, probes, random_pair
from graphgps_kmip.expressivity.theorem import REACH, Outcome, try_model
from graphgps_kmip.expressivity.wl_encodings import encode
from run.expressivity_models import ATTENTIONS, GPS, MPNNS

TOLERANCE = 1e-9  # relative; sums in another order differ by 1e-15
ENCODED = ("none", "RWSE", "Laplacian eigenvectors")  # of the same width for all graphs, as models have them
MOST_LAYERS = 3


def trial(name: str, seed: int) -> Outcome:
    """Try a random model with one component of `REACH` on a random pair; its other branch is random, too."""
    local, attention = _branches(name, seed)
    layers = 1 + seed % MOST_LAYERS
    per_round = all(REACH[branch].per_round for branch in (local, attention) if branch)
    return _tried(local, attention, layers, seed, random_pair(seed), ENCODED[seed // 3 % 3], per_round)


def counterexample(name: str) -> tuple[str, float]:
    """Return the probe on which a component differs most although SEG-WL sees nothing, and by how much.

    Message passing by one layer and one round; attentions by two, after GINE, which gives nodes their differences.
    """
    found = {}
    for pair in probes():
        local, attention, layers = (name, None, 1) if name in MPNNS else ("GINE", name, 2)
        outcome = _tried(local, attention, layers, 0, pair, "none", per_round=True)
        if outcome.equal:
            found[pair.name] = outcome.difference
    worst = max(found, key=found.__getitem__)
    return worst, found[worst]


def results(count: int) -> dict[str, Any]:
    """Run ``count`` trials of every component and its counterexample; see `lines` for what is in a row."""
    rows = []
    for number, (name, reach) in enumerate(REACH.items()):
        row: dict[str, Any] = {"name": name, "inside": reach.inside, "per_round": reach.per_round, "why": reach.why}
        if reach.inside:
            outcomes = [trial(name, number * count + one) for one in range(count)]
            equal = [outcome for outcome in outcomes if outcome.equal]
            others = [outcome for outcome in outcomes if not outcome.equal]
            row |= {
                "trials": count,
                "equal": len(equal),
                "error": max(outcome.error for outcome in outcomes),
                "readout_error": max((outcome.readout for outcome in equal), default=None),
                "separated": len(others),
                "separated_by_model": sum(outcome.difference > TOLERANCE for outcome in others),
            }
        if not (reach.inside and reach.per_round):
            row["counterexample"], row["difference"] = counterexample(name)
        rows.append(row)
    return {"tolerance": TOLERANCE, "rows": rows, "holds": all(holds(row) for row in rows), "untried": untried(rows)}


def holds(row: dict[str, Any]) -> bool:
    """Whether nothing was seen that contradicts what `REACH` says of a component."""
    errors = [row[name] for name in ("error", "readout_error") if row.get(name) is not None]
    return max(errors, default=0.0) <= TOLERANCE and row.get("difference", 1.0) > TOLERANCE


def untried(rows: list[dict[str, Any]]) -> list[str]:
    """Return the components of which nothing was seen: no pair of their trials was left equal by SEG-WL."""
    return [row["name"] for row in rows if row["inside"] and not row["equal"]]


def conclusion(found: dict[str, Any]) -> str:
    """Return in a sentence what was seen of the theorem, and of which components."""
    rows, none = found["rows"], found["untried"]
    if not found["holds"]:
        return f"What theorem 1 says WAS NOT SEEN for {'; '.join(row['name'] for row in rows if not holds(row))}."
    if not none:
        return "What theorem 1 says was seen for every component."
    seen = f"{len(rows) - len(none)} of {len(rows)} components"
    return (
        f"What theorem 1 says was seen for {seen}. For the others SEG-WL left no pair equal, so that the theorem "
        f"promises nothing ({'; '.join(none)}): give more --trials."
    )


def lines(found: dict[str, Any]) -> list[str]:
    """Return the results as text."""
    head = f"{'component':<25} {'trials':>6} {'equal':>6} {'largest error':>14} {'separated':>10} {'by model':>9}"
    text = [head, "-" * len(head)]
    for row in found["rows"]:
        if row["inside"]:
            numbers = f"{row['trials']:>6} {row['equal']:>6} {row['error']:>14.1e} {row['separated']:>10}"
            text.append(f"{row['name']:<25} {numbers} {row['separated_by_model']:>9}")
    text += ["", "Outside the theorem (difference on a pair that SEG-WL leaves equal, of the largest output):"]
    for row in found["rows"]:
        if "counterexample" in row:
            scope = "" if not row["inside"] else " in one round; the stable colours bound it"
            text.append(f"  {row['name']:<25} {row['difference']:.1e} on {row['counterexample']}{scope}: {row['why']}")
    return text


def _branches(name: str, seed: int) -> tuple[str | None, str | None]:
    """Return message passing and attention of a trial: one of them is `name`, the other any that is inside."""
    inside = [other for other, reach in REACH.items() if reach.inside]
    table, others = (MPNNS, ATTENTIONS) if name in MPNNS else (ATTENTIONS, MPNNS)
    choice: list[str | None] = [None, *(other for other in inside if other in others)]
    other = choice[seed % len(choice)]
    return (name, other) if table is MPNNS else (other, name)


def _tried(
    local: str | None, attention: str | None, layers: int, seed: int, pair: Pair, encoding: str, per_round: bool
) -> Outcome:
    encodings = encode(encoding, pair.first), encode(encoding, pair.second)
    return try_model(GPS(local, attention, layers, seed), pair, encodings, layers if per_round else None)
