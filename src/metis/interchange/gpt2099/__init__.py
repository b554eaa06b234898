"""The threads of gpt2099: turns that continue one another, resolved into a context window."""
