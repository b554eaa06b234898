"""OpenAI Chat Completions, as all hosts speak it: requests, responses, streams and errors."""
