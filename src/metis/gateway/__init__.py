"""The gateway: clients of every protocol in, every provider out, in one process."""
