"""Loading of shipped tables and overlays."""

from decimal import Decimal
from pathlib import Path

import pytest

from metis.canonical.errors import CatalogDataError, UnknownPricingError
from metis.catalog import catalog, price_table, pricing_versions


@pytest.mark.row("M-104", "M-183")
def test_every_version_names_a_table() -> None:
    assert pricing_versions() == tuple(sorted(pricing_versions()))
    assert [price_table(version).pricing_version for version in pricing_versions()] == list(
        pricing_versions()
    )
    assert price_table() is price_table(pricing_versions()[-1])


@pytest.mark.row("M-104")
@pytest.mark.parametrize("version", ["1999-01-01", "", "../models"])
def test_an_unknown_version_is_an_error(version: str) -> None:
    with pytest.raises(UnknownPricingError) as caught:
        price_table(version)
    assert caught.value.known == pricing_versions()


def test_tables_are_read_once() -> None:
    assert catalog() is catalog()
    assert price_table("2026-05-08") is price_table("2026-05-08")


@pytest.mark.row("M-185", "M-103")
def test_price_overlay_extends_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'pricing_version = "mine-1"\nsource = "my contract"\n[models]\n'
        '"openrouter:me/mine" = { input_per_mtok_usd = 0.1, output_per_mtok_usd = 0.2 }\n'
    )
    table = price_table("2026-05-08", overlay=path)
    assert table.pricing_version == "2026-05-08+mine-1"
    standard = table.prices("openrouter:me/mine").period_on(None).standard
    assert standard.rates.input_per_mtok_usd == Decimal("0.1")
    assert "openrouter:me/mine" not in price_table("2026-05-08").models


@pytest.mark.row("M-186")
def test_overlay_requires_version(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('source = "me"\n[models]\n')
    with pytest.raises(CatalogDataError, match="pricing_version"):
        price_table(overlay=path)


def test_model_overlay_extends_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[models]\n"acme:x" = { max_context_tokens = 9, max_output_tokens = 1 }\n'
        '[aliases]\nmine = "acme:x"\n'
    )
    assert catalog(path).resolve("mine") == "acme:x"
    assert catalog(path).resolve("sonnet") == catalog().resolve("sonnet")


@pytest.mark.row("M-180")
def test_a_second_alias_of_the_same_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[aliases]\na = "openai:gpt-5"\na = "openai:gpt-5-mini"\n')
    with pytest.raises(CatalogDataError, match="not TOML"):
        catalog(path)


@pytest.mark.parametrize("content", [b"\xff", None])
def test_unreadable_file_error_names_the_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CatalogDataError, match=r"mine\.toml"):
        price_table(overlay=path)
