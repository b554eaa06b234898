"""How far estimates of tokens are from what real vocabularies make of the same texts.

The texts are in `samples.toml`, their real counts in `token_counts.toml`. Beside the error of each
kind of text stands what the old rule of thumb, four characters a token, would have said.

    python benchmarks/estimate.py [--all]
"""

import argparse
import statistics
import time
import tomllib
from pathlib import Path
from typing import Any

from metis.catalog.tables import token_table

HERE = Path(__file__).parent
MODELS = {
    "o200k": "openai:gpt-4o",
    "cl100k": "openai:gpt-4",
    "llama": "groq:llama-3.3-70b-versatile",
    "sentencepiece": "mistral:open-mixtral-8x7b",
    "tekken": "mistral:open-mistral-nemo",
}
"""A model of each family whose vocabulary is public."""


def read(name: str) -> dict[str, Any]:
    """The content of a file beside this one."""
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def errors(family: str) -> dict[str, tuple[float, float]]:
    """By kind of text: how far the estimate is off, and how far the rule of thumb."""
    texts: dict[str, str] = read("samples.toml")["texts"]
    real: dict[str, int] = read("token_counts.toml")[family]
    rates = token_table().rates(MODELS[family])
    return {
        kind: (
            rates.text_tokens(text.strip()) / rates.scale / real[kind] - 1,
            len(text.strip()) / 4 / real[kind] - 1,
        )
        for kind, text in texts.items()
    }


def speed() -> float:
    """Megabytes of text a second."""
    text = "\n".join(read("samples.toml")["texts"].values()) * 20
    rates = token_table().rates(MODELS["o200k"])
    taken: list[float] = []
    for _ in range(9):
        start = time.perf_counter()
        rates.text_tokens(text)
        taken.append(time.perf_counter() - start)
    return len(text.encode()) / statistics.median(taken) / 1e6


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every kind of text")
    arguments = parser.parse_args()
    print(f"{'family':<15}{'mean':>8}{'median':>8}{'worst':>8}  {'4 characters a token: mean':>28}")
    for family in MODELS:
        found = errors(family)
        own = sorted(abs(error) for error, _ in found.values())
        thumb = statistics.mean(abs(error) for _, error in found.values())
        print(
            f"{family:<15}{statistics.mean(own):>8.1%}{statistics.median(own):>8.1%}"
            f"{own[-1]:>8.1%}  {thumb:>28.1%}"
        )
        if arguments.all:
            for kind, (error, _) in sorted(found.items(), key=lambda each: each[1][0]):
                print(f"    {kind:<20}{error:>+8.1%}")
    print(f"{speed():.0f} MB/s")


if __name__ == "__main__":
    main()
