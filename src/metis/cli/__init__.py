"""The command line: parsing, reading files and printing; all else lives in the rooms above."""
