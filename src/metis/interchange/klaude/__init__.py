"""The history files of klaude-code: one event per line, messages with parts."""
