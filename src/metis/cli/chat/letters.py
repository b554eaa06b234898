"""Letters: text of models, tools and files made harmless for a terminal."""

_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Letters that turn the direction of writing around."""

_TABLE: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    **{code: f"\\x{code:02x}" for code in range(0x7F, 0xA0)},
    **{code: f"\\u{code:04x}" for code in (*_BIDI, 0x2028, 0x2029)},
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    ord("\r"): "",
    ord("\t"): "    ",
}


def harmless(text: str) -> str:
    r"""The text with everything made visible that would steer the terminal.

    >>> harmless("a\x1b[31mb\tc")
    'a␛[31mb    c'
    """
    return text if text.isprintable() else text.translate(_TABLE)


def cut(text: str, length: int) -> str:
    """A line cut to a length; its end says so."""
    line = harmless(text[: length + 1])
    return line if len(line) <= length else f"{line[: length - 1]}…"


def one_line(text: str, length: int) -> str:
    """A text on one line, cut to a length."""
    flat = " ".join(text[: 4 * length].split())
    return cut(flat if len(text) <= 4 * length else f"{flat}{'…' * length}", length)
