"""Pattern routing: scores of similar past turns."""

import random
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from metis.routing import Neighbour, PatternSettings, match_pattern


def similar_turn(
    model: str, success: float, cost: str = "1", samples: int = 10, similarity: float = 0.9
) -> Neighbour:
    return Neighbour(
        model=model,
        similarity=similarity,
        success=success,
        sample_size=samples,
        cost_usd=Decimal(cost),
    )


def test_success_is_weighted_by_samples() -> None:
    match = match_pattern(
        [similar_turn("a:x", 1.0, samples=3), similar_turn("a:x", 0.5, samples=1)],
        PatternSettings(cost_weight=0),
    )
    assert match is not None
    assert (match.best.score, match.best.sample_size) == (0.875, 4)
    assert match.confidence == 1.0


def test_cost_weight_ranges_from_zero_to_one() -> None:
    neighbours = [similar_turn("a:good", 0.9, "10"), similar_turn("a:cheap", 0.2, "1")]
    blind = match_pattern(neighbours, PatternSettings(cost_weight=0))
    greedy = match_pattern(neighbours, PatternSettings(cost_weight=1))
    assert blind is not None
    assert greedy is not None
    assert (blind.best.model, greedy.best.model) == ("a:good", "a:cheap")
    assert [score.score for score in greedy.scores] == [1.0, 0.0]


def test_equal_costs_give_no_advantage() -> None:
    match = match_pattern(
        [similar_turn("a:x", 0.5), similar_turn("a:y", 0.4)], PatternSettings(cost_weight=0.5)
    )
    assert match is not None
    assert [score.score for score in match.scores] == [0.25, 0.2]
    assert abs(match.confidence - 0.2) < 1e-12


def test_pattern_below_threshold_is_ignored() -> None:
    few = match_pattern([similar_turn("a:x", 1.0, samples=4)], PatternSettings())
    close = match_pattern([similar_turn("a:x", 1.0), similar_turn("a:y", 0.99)], PatternSettings())
    useless = match_pattern([similar_turn("a:x", 0.0)], PatternSettings())
    assert few is not None
    assert few.doubt == "4 samples, 5 are needed"
    assert close is not None
    assert close.doubt is not None
    assert close.doubt.startswith("confidence 0.010")
    assert useless is not None
    assert useless.confidence == 0.0
    assert match_pattern([], PatternSettings()) is None
    assert match_pattern([similar_turn("a:x", 1.0, samples=0)], PatternSettings()) is None


def test_only_ten_most_similar_turns_count() -> None:
    near = [similar_turn("a:near", 0.5, similarity=0.9) for _ in range(10)]
    far = [similar_turn("a:far", 1.0, similarity=0.1) for _ in range(10)]
    match = match_pattern([*far, *near], PatternSettings())
    assert match is not None
    assert [score.model for score in match.scores] == ["a:near"]


@given(
    st.lists(
        st.builds(
            similar_turn,
            st.sampled_from(["a:x", "a:y", "b:z"]),
            st.floats(0, 1),
            st.sampled_from(["0", "0.001", "3"]),
            st.integers(0, 9),
            st.sampled_from([0.5, 0.9]),
        ),
        max_size=15,
    ),
    st.floats(0, 1),
    st.randoms(),
)
def test_order_of_similar_turns_does_not_matter(
    neighbours: list[Neighbour], weight: float, chance: random.Random
) -> None:
    settings = PatternSettings(cost_weight=weight)
    mixed = list(neighbours)
    chance.shuffle(mixed)
    match = match_pattern(neighbours, settings)
    assert match_pattern(mixed, settings) == match
    if match is not None:
        assert 0 <= match.confidence <= 1
