"""Pattern matching: the model with the best score on similar earlier turns, with a confidence.

The similar turns are the k-nearest neighbours of a turn. A program that can compare turns supplies
them; metis itself does not.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from heapq import nsmallest
from math import fsum

from msgspec import Struct

NEIGHBOUR_COUNT = 10
"""How many of the most similar earlier turns are used (the k of k-nearest neighbours)."""


class Neighbour(Struct, frozen=True, kw_only=True):
    """A group of similar earlier turns that one model answered."""

    model: str
    similarity: float
    success: float
    """The mean success, between 0 and 1."""
    sample_size: int
    cost_usd: Decimal
    """The mean cost of a turn."""


class PatternSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The weight of the cost, and the confidence and sample size that a decision needs."""

    cost_weight: float = 0.05
    min_confidence: float = 0.05
    min_sample_size: int = 5
    fingerprint_version: int = 1
    """How the supplier compares turns; version 2 also compares embeddings."""
    embedding_provider: str | None = None
    embedding_alpha: float = 0.6


class Score(Struct, frozen=True, kw_only=True):
    """The score of a model for a turn."""

    model: str
    score: float
    sample_size: int


class PatternMatch(Struct, frozen=True, kw_only=True):
    """The models from best to worst, and the confidence in the first."""

    scores: tuple[Score, ...]
    confidence: float
    doubt: str | None = None
    """Why no model is chosen; None if the best one is."""

    @property
    def best(self) -> Score:
        """The model with the highest score."""
        return self.scores[0]


def match_pattern(
    neighbours: Iterable[Neighbour], settings: PatternSettings
) -> PatternMatch | None:
    """Score the models of the nearest neighbours; None if there are no neighbours."""
    # Only the nearest ones: many distant turns would outweigh the similar ones.
    nearest = nsmallest(NEIGHBOUR_COUNT, neighbours, key=_nearest_first)
    by_model: dict[str, list[Neighbour]] = {}
    for neighbour in nearest:
        if neighbour.sample_size > 0:
            by_model.setdefault(neighbour.model, []).append(neighbour)
    if not by_model:
        return None
    costs = {model: _mean(group, "cost_usd") for model, group in by_model.items()}
    scores = [
        Score(
            model=model,
            score=(1 - settings.cost_weight) * _mean(group, "success")
            + settings.cost_weight * _efficiency(costs[model], costs.values()),
            sample_size=sum(neighbour.sample_size for neighbour in group),
        )
        for model, group in by_model.items()
    ]
    scores.sort(key=lambda score: (-score.score, score.model))
    confidence = _confidence(scores)
    return PatternMatch(
        scores=tuple(scores),
        confidence=confidence,
        doubt=_doubt(scores[0], confidence, settings),
    )


def _nearest_first(neighbour: Neighbour) -> tuple[float, str, int, float, Decimal]:
    """Return a sort key that makes the result independent of the input order."""
    return (
        -neighbour.similarity,
        neighbour.model,
        -neighbour.sample_size,
        -neighbour.success,
        neighbour.cost_usd,
    )


def _mean(group: Sequence[Neighbour], field: str) -> float:
    weighted = (float(getattr(neighbour, field)) * neighbour.sample_size for neighbour in group)
    return fsum(weighted) / sum(neighbour.sample_size for neighbour in group)


def _efficiency(cost: float, costs: Iterable[float]) -> float:
    """Return 1 for the cheapest model, 0 for the most expensive; 0 for all if costs are equal."""
    lowest, highest = min(costs), max(costs)
    return 0.0 if lowest == highest else (highest - cost) / (highest - lowest)


def _confidence(scores: Sequence[Score]) -> float:
    top = scores[0].score
    second = scores[1].score if len(scores) > 1 else 0.0
    return max(0.0, min(1.0, (top - second) / top)) if top > 0 else 0.0


def _doubt(best: Score, confidence: float, settings: PatternSettings) -> str | None:
    if best.sample_size < settings.min_sample_size:
        return f"{best.sample_size} samples, {settings.min_sample_size} are needed"
    if confidence < settings.min_confidence:
        return f"confidence {confidence:.3f}, {settings.min_confidence:.3f} is needed"
    return None
