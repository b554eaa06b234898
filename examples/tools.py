"""Define tools and check the arguments of calls against their schemas."""

from metis import SideEffects, ToolDefinition, ToolSet, canonical

weather = ToolDefinition(
    name="weather",
    description="Return the weather of a town.",
    input_schema={
        "type": "object",
        "properties": {"town": {"type": "string"}},
        "required": ["town"],
    },
    side_effects=SideEffects.NETWORK,
)
tools = ToolSet([weather])
assert tools["weather"] is weather
assert tools.check_input("weather", {"town": "Oslo"}) == []
print(tools.check_input("weather", {"city": "Oslo"}))
assert canonical.SideEffects is SideEffects
