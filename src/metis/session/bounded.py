"""Bounded: files of which a model is told no more than a limit."""

import logging
from pathlib import Path

log = logging.getLogger("metis.session")


def read_bounded(path: Path, limit: int, *, is_head: bool = False) -> str:
    """The text of a file up to a limit; a file that is not there is empty, a longer one is told.

    Of a file whose head only is wanted, nobody is told that it goes on.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        log.warning("%s cannot be read: %s", path.name, error.strerror)
        return ""
    if len(data) > limit and not is_head:
        log.warning("%s is longer than %d bytes: the rest is left out", path.name, limit)
    return data[:limit].decode("utf-8", "ignore").strip()
