"""The wire protocols: one package each, both directions, pure."""
