"""The files of gpt2099: turns that continue one another, and the context windows of threads."""
