"""Places in JSON text: from a byte to the path of the value there, and back.

Only errors come here, so clarity goes before speed; time and memory stay linear in the text.
A path reads `$.content[2].input["odd key"]`; `$` is the whole document.
"""

import json
import re

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def join(path: str, step: str | int) -> str:
    """The path one step further: a key of an object, or an index of an array."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if _PLAIN_KEY.fullmatch(step):
        return f"{path}.{step}"
    return f"{path}[{json.dumps(step, ensure_ascii=False)}]"


def path_at(data: bytes, offset: int) -> str:
    """The path of the innermost value that holds the byte at `offset`, as far as the text goes."""
    walk = _Walk()
    for match in _TOKEN.finditer(data):
        if match.start() > offset:
            break
        walk.take(match.group())
    return walk.path()


def path_deeper_than(data: bytes, depth: int) -> str | None:
    """The path of the first value that is nested deeper than `depth`."""
    walk = _Walk()
    for match in _TOKEN.finditer(data):
        walk.take(match.group())
        if len(walk.levels) > depth:
            return walk.path()
    return None


def line_of(data: bytes, path: str) -> int:
    """The line, counted from one, where the value at `path`, or what is left of it, begins."""
    walk = _Walk()
    best, best_length = 0, -1
    for match in _TOKEN.finditer(data):
        if not walk.take(match.group()):
            continue
        found = walk.path()
        if len(found) > best_length and (found == path or _leads_to(found, path)):
            best, best_length = match.start(), len(found)
            if found == path:
                break
    return data.count(b"\n", 0, best) + 1


def _leads_to(found: str, path: str) -> bool:
    return path.startswith(found) and path[len(found) : len(found) + 1] in (".", "[")


class _Level:
    """One open object or array: the step into the value that is being read, and its number."""

    __slots__ = ("count", "is_object", "step", "wants_key")

    def __init__(self, *, is_object: bool) -> None:
        self.is_object = is_object
        self.wants_key = is_object
        self.step: str | int | None = None
        self.count = 0


class _Walk:
    """A walk over the tokens of JSON text, right or wrong, that knows where it is."""

    def __init__(self) -> None:
        self.levels: list[_Level] = []

    def path(self) -> str:
        """The path of the value where the walk is now."""
        found = "$"
        for level in self.levels:
            if level.step is not None:
                found = join(found, level.step)
        return found

    def take(self, token: bytes) -> bool:
        """Go one token further; whether it begins a value."""
        level = self.levels[-1] if self.levels else None
        if token in (b"}", b"]"):
            if level is not None:
                self.levels.pop()
            return False
        if token == b",":
            if level is not None:
                level.wants_key = level.is_object
            return False
        if token == b":":
            return False
        if level is not None and level.wants_key:
            level.step = _text(token)
            level.wants_key = False
            return False
        if level is not None and not level.is_object:
            level.step = level.count
            level.count += 1
        if token in (b"{", b"["):
            self.levels.append(_Level(is_object=token == b"{"))
        return True


def _text(token: bytes) -> str:
    try:
        text = json.loads(token)
    except ValueError:
        text = token.decode(errors="replace")
    return text if isinstance(text, str) else str(text)
