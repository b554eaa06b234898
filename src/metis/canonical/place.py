"""Places in JSON text: from a byte to the path of the value there, and back.

Only errors come here, so clarity goes before speed; time and memory stay linear in the text.
A path reads `$.content[2].input["odd key"]`; `$` is the whole document.
"""

import json
import re
from collections.abc import Iterator

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Level:
    """One open object or array: the step into the value that is being read."""

    def __init__(self, *, is_object: bool) -> None:
        self.is_object = is_object
        self.wants_key = is_object
        self.index = 0
        self.step = "" if is_object else "[0]"


def join(path: str, step: str | int) -> str:
    """The path one step further: a key of an object, or an index of an array."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if _PLAIN_KEY.fullmatch(step):
        return f"{path}.{step}"
    return f"{path}[{json.dumps(step, ensure_ascii=False)}]"


def path_at(data: bytes, offset: int) -> str:
    """The path of the innermost value that holds the byte at `offset`."""
    found = "$"
    for start, path, _ in _values(data):
        if start > offset:
            break
        found = path
    return found


def path_deeper_than(data: bytes, depth: int) -> str | None:
    """The path of the first value that is nested deeper than `depth`."""
    for _, path, level in _values(data, stop_below=depth):
        if level > depth:
            return path
    return None


def line_of(data: bytes, path: str) -> int:
    """The line, counted from one, where the value at `path`, or what is left of it, begins."""
    best, best_length = 0, -1
    for start, found, _ in _values(data):
        if found == path:
            return data.count(b"\n", 0, start) + 1
        if len(found) > best_length and _leads_to(found, path):
            best, best_length = start, len(found)
    return data.count(b"\n", 0, best) + 1


def _leads_to(found: str, path: str) -> bool:
    return path.startswith(found) and path[len(found) : len(found) + 1] in (".", "[")


def _values(data: bytes, *, stop_below: int = 200) -> Iterator[tuple[int, str, int]]:
    """Every value with its first byte, its path and its depth, as far as the text goes."""
    levels: list[_Level] = []
    for match in _TOKEN.finditer(data):
        token = match.group()
        if token in (b"}", b"]"):
            if levels:
                levels.pop()
        elif token == b",":
            _next(levels)
        elif token == b":":
            continue
        elif levels and levels[-1].wants_key:
            levels[-1].step = join("", _text(token))
            levels[-1].wants_key = False
        else:
            yield match.start(), "$" + "".join(level.step for level in levels), len(levels)
            if token in (b"{", b"["):
                levels.append(_Level(is_object=token == b"{"))
                if len(levels) > stop_below:
                    yield match.end(), "$" + "".join(level.step for level in levels), len(levels)
                    return


def _next(levels: list[_Level]) -> None:
    if not levels:
        return
    level = levels[-1]
    level.wants_key = level.is_object
    if not level.is_object:
        level.index += 1
        level.step = f"[{level.index}]"


def _text(token: bytes) -> str:
    try:
        text = json.loads(token)
    except ValueError:
        text = token.decode(errors="replace")
    return text if isinstance(text, str) else str(text)
