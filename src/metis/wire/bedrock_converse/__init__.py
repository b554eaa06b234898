"""Bedrock Converse: requests, responses, streams and errors, both directions."""
