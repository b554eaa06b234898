"""JSON Schema: one walker, the subset of tool inputs, validation, and rewriting for targets."""
