"""Code: the blocks of code in an answer."""

import re

_FENCE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n(.*?)(?:^\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


def first_code(text: str) -> str:
    """The first block of code in a text; all of it if there is none."""
    found = _FENCE.search(text)
    return found[2] if found else text
