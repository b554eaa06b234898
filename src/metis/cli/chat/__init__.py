"""The chat: a conversation with models at a terminal."""
