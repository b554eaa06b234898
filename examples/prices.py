"""Price a response, and price it again under another table."""

from datetime import UTC, date, datetime, time
from decimal import Decimal

from metis import (
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    Usage,
    catalog,
    cost,
    new_ulid,
    price,
    reprice,
)
from metis.catalog import (
    AdapterCapabilities,
    Capability,
    Catalog,
    Cost,
    LongContext,
    ModelId,
    ModelInfo,
    ModelPrices,
    PeakHours,
    Period,
    PriceTable,
    Rates,
    RepricedMessage,
    Repricing,
    Tariff,
    UnpricedMessage,
    capability_set,
    is_model_id,
    pricing_versions,
    read_catalog,
    read_price_table,
)

DAY = datetime(2026, 5, 8, tzinfo=UTC)
unpriced = Usage(
    input_tokens=8,
    output_tokens=42,
    cost_usd=Decimal(0),
    pricing_version="unpriced",
    latency_ms=820,
)
usage = price(unpriced, "sonnet", DAY)
assert usage.cost_usd == Decimal("0.000654")
amount: Cost = cost(unpriced, "sonnet", DAY)
print(amount.parts, amount.pricing_version)

response = Message(
    id=new_ulid(),
    session_id="sess_prices",
    role=Role.ASSISTANT,
    content=(TextBlock("Hello."),),
    created_at=DAY,
    metadata=MessageMetadata(model="anthropic:claude-sonnet-4-6", usage=usage),
)
result: Repricing = reprice([response], catalog.price_table("2026-11-15"))
print(f"{result.old_total_usd} then, {result.new_total_usd} now")
repriced: RepricedMessage = result.repriced[0]
assert repriced.old_pricing_version == "2026-05-08"

# A model is found by id, alias or a unique part of its id.
models: Catalog = catalog.catalog()
info: ModelInfo = models.model("sonnet")
capabilities: AdapterCapabilities = info.capabilities
assert Capability.TOOLS in capability_set(capabilities, info)
assert ModelId.parse(info.id) == ModelId("anthropic", "claude-sonnet-4-6")
assert not is_model_id("sonnet")

# Prices of a model: periods, service tiers, hours of the day and long prompts.
table: PriceTable = catalog.price_table(pricing_versions()[-1])
prices: ModelPrices = table.prices(info.id)
period: Period = prices.period_on(date(2026, 11, 15))
standard: Tariff = period.standard
rates: Rates = standard.rates_for(prompt_tokens=1000)
print(rates.input_per_mtok_usd, rates.by_bucket()["cached_read"])
half = rates.times(Decimal("0.5"))
long_prompts = LongContext(above_tokens=200_000, rates=rates.times(Decimal(2)))
night = PeakHours(
    starts_at=time(0, 30), ends_at=time(8, 30), tariff=Tariff(half, long_context=(long_prompts,))
)
assert night.contains(datetime(2026, 11, 15, 3, tzinfo=UTC))

# Your own models and prices; a model without a price is listed, never free.
entry = {"input_per_mtok_usd": Decimal("1.5"), "output_per_mtok_usd": Decimal(6)}
own = read_price_table(
    {"pricing_version": "mine-1", "source": "our contract", "models": {"acme:large": entry}}
)
unknown: UnpricedMessage = reprice([response], own).unpriced[0]
print(unknown.reason)
assert read_catalog({"aliases": {"my-model": info.id}}, base=models).resolve("my-model") == info.id
