"""The formats of attocode: a list of messages, and the response of a provider."""
