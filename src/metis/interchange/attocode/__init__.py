"""The messages of attocode: a list of turns with text, calls and results, and its responses."""
