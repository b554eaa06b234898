"""The catalogue of models: capabilities, limits, aliases and prices."""

from typing import TYPE_CHECKING

from metis.catalog.cost import (
    Cost,
    RepricedMessage,
    Repricing,
    UnpricedMessage,
    cost,
    price,
    reprice,
)
from metis.catalog.models import (
    AdapterCapabilities,
    Capability,
    Catalog,
    ModelId,
    ModelInfo,
    capability_set,
    is_model_id,
    read_catalog,
)
from metis.catalog.prices import (
    LongContext,
    ModelPrices,
    PeakHours,
    Period,
    PriceTable,
    Rates,
    Tariff,
    read_price_table,
)
from metis.catalog.tables import catalog, price_table, pricing_versions
from metis.deprecation import renamed_names

__all__ = [
    "AdapterCapabilities",
    "Capability",
    "Catalog",
    "Cost",
    "LongContext",
    "ModelId",
    "ModelInfo",
    "ModelPrices",
    "PeakHours",
    "Period",
    "PriceTable",
    "Rates",
    "RepricedMessage",
    "Repricing",
    "Tariff",
    "UnpricedMessage",
    "capability_set",
    "catalog",
    "cost",
    "is_model_id",
    "price",
    "price_table",
    "pricing_versions",
    "read_catalog",
    "read_price_table",
    "reprice",
]

if not TYPE_CHECKING:
    __getattr__ = renamed_names(__name__, {"abilities_of": "capability_set"})
