"""Price a response, and price it again under another table."""

from datetime import UTC, datetime
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
amount = cost(unpriced, "sonnet", DAY)
print(amount.parts, amount.pricing_version)

response = Message(
    id=new_ulid(),
    session_id="sess_prices",
    role=Role.ASSISTANT,
    content=(TextBlock("Hello."),),
    created_at=DAY,
    metadata=MessageMetadata(model="anthropic:claude-sonnet-4-6", usage=usage),
)
result = reprice([response], catalog.price_table("2026-11-15"))
print(f"{result.old_total_usd} then, {result.new_total_usd} now")
