"""What is known of models: capabilities, limits, short names and prices."""

from metis.catalog.capability import Capability, abilities_of
from metis.catalog.cost import (
    Cost,
    RepricedMessage,
    Repricing,
    UnpricedMessage,
    cost,
    price,
    reprice,
)
from metis.catalog.load import catalog, price_table, pricing_versions
from metis.catalog.model_id import ModelId, is_model_id
from metis.catalog.models import AdapterCapabilities, Catalog, ModelInfo, read_catalog
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
    "abilities_of",
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
