"""Errors have their facts as fields."""

import pytest

from metis.canonical.errors import ContextOverflowError


@pytest.mark.row("T185")
@pytest.mark.parametrize(
    ("text", "limit", "given"),
    [
        ("prompt is too long: 250000 tokens > 200000 maximum", 200_000, 250_000),
        (
            (
                "This model's maximum context length is 8192 tokens. However, your messages "
                "resulted in 9000 tokens."
            ),
            8192,
            9000,
        ),
        (
            (
                "The input token count (1200000) exceeds the maximum number of tokens allowed "
                "(1048576)."
            ),
            1_048_576,
            1_200_000,
        ),
        ("request (5000 tokens) exceeds the available context size (2048 tokens)", 2048, 5000),
        (
            "Prompt contains 40,000 tokens, too large for model with 32,768 maximum context length",
            32_768,
            40_000,
        ),
        ("Input length (9000) exceeds model's maximum context length (8192).", 8192, 9000),
        (
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
            200_000,
            None,
        ),
        (
            (
                "This endpoint's maximum context length is 32768 tokens. However, you requested "
                "about 40000 tokens (39000 of text input, 1000 in the output)."
            ),
            32_768,
            40_000,
        ),
        (
            "This model's maximum prompt length is 131072 but the request contains 150000 tokens.",
            131_072,
            150_000,
        ),
        (
            "Your request exceeded model token limit: 262144 (requested: 300000)",
            262_144,
            300_000,
        ),
        ("the input length exceeds the context length", None, None),
    ],
)
def test_overflow_error_has_given_and_maximum_tokens(
    text: str, limit: int | None, given: int | None
) -> None:
    error = ContextOverflowError(text)
    assert (error.limit_tokens, error.input_tokens) == (limit, given)
