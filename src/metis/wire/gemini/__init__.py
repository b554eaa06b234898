"""Gemini generateContent: requests, responses, streams and errors, both directions."""
