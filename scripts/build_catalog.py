"""Build `models.toml` and a price table from the public facts in genai-prices and litellm.

    python scripts/build_catalog.py 2026-11-15

Both packages have to be installed (dependency group `data`); nothing is fetched. The argument is
the date of the new price table and its version. The same packages and date give the same bytes.

Rates come from genai-prices, which knows dates, tiers and hours; where it has none, from litellm.
Limits and capabilities come from litellm. What neither has is written down here, with the reason.
"""

import sys
import tomllib
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from catalog.capabilities import collect_models
from catalog.joining import find_periods
from catalog.litellm_source import read_litellm
from catalog.rates import Period
from catalog.rendering import render_models, render_prices

DATA = Path(__file__).parent.parent / "src" / "metis" / "catalog" / "data"


def main(built_on: date) -> None:
    """Write both files and say what changed."""
    litellm = read_litellm()
    models = collect_models(litellm, built_on)
    prices: dict[str, list[Period]] = {}
    for name in list(models):
        periods = find_periods(name, models[name], litellm, built_on)
        if periods:
            prices[name] = periods
        else:
            print(f"no price: {name} left out")
            del models[name]
    source = f"genai-prices {version('genai-prices')}, litellm {version('litellm')}"
    replace_file(DATA / "models.toml", render_models(models, source, built_on))
    replace_file(DATA / "prices" / f"{built_on}.toml", render_prices(prices, source, built_on))


def replace_file(path: Path, text: str) -> None:
    """Write a file and say which models were added, removed and changed."""
    old: dict[str, Any] = {}
    if path.exists():
        old = tomllib.loads(path.read_text(encoding="utf-8"))["models"]
    new: dict[str, Any] = tomllib.loads(text)["models"]
    path.write_text(text, encoding="utf-8")
    changed = sorted(name for name in new.keys() & old.keys() if new[name] != old[name])
    print(f"{path.name}: {len(new)} models")
    for title, names in (
        ("added", sorted(new.keys() - old.keys())),
        ("removed", sorted(old.keys() - new.keys())),
        ("changed", changed),
    ):
        print(f"  {title}: {len(names)} {' '.join(names)}")


if __name__ == "__main__":
    main(date.fromisoformat(sys.argv[1]))
