"""Anthropic Messages: requests, responses, streams and errors, both directions."""
