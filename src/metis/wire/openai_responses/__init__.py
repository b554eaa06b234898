"""OpenAI Responses: requests, responses, streams and errors, both directions."""
