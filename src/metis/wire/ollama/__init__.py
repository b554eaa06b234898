"""Ollama's own protocol, `/api/chat` and `/api/generate`: requests, responses, streams, errors."""
