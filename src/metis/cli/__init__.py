"""The command line and the chat: parsing, reading files and printing."""
