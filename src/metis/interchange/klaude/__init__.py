"""The history files of klaude-code: one event on each line, messages made of parts."""
