"""Runs the command line program by `python -m metis`."""

from metis.cli.main import main

if __name__ == "__main__":
    main()
