"""`python -m metis` is `metis`."""

from metis.cli.main import main

if __name__ == "__main__":
    main()
