"""Colours that can be read on the terminal's background.

Text is styled with the sixteen colours of the terminal, so that it follows the user's own scheme. A
colour without contrast to the background, such as the yellow of most schemes on white, is replaced.
The terminal is asked for its colours (OSC 11 and OSC 4). Nothing waits for the reply: it arrives
among the keys, is removed from them, and applies to everything that is drawn later.
"""

import contextlib
import re
import select
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence

from rich.color import Color, ColorType
from rich.style import Style

Rgb = tuple[int, int, int]

BLACK: Rgb = (0, 0, 0)
WHITE: Rgb = (255, 255, 255)
# The contrast that WCAG asks of large text; ordinary dark red and blue on white have more.
MIN_CONTRAST = 3.0
# Backgrounds that are lighter have more contrast to black than to white.
_LIGHT_LUMINANCE = 0.18

# The defaults of xterm, for terminals that do not report their colours.
_XTERM: Sequence[Rgb] = (
    *((0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0)),
    *((0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229)),
    *((127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0)),
    *((92, 92, 255), (255, 0, 255), (0, 255, 255), (255, 255, 255)),
)
# What replaces red, green, yellow, blue, magenta, cyan and the greys. All are colours of the
# 256-colour cube, so that a terminal without true colour shows the same.
_ON_LIGHT: Mapping[int, Rgb] = {
    **dict.fromkeys((1, 9), (175, 0, 0)),
    **dict.fromkeys((2, 10), (0, 95, 0)),
    **dict.fromkeys((3, 11), (135, 95, 0)),
    **dict.fromkeys((4, 12), (0, 95, 175)),
    **dict.fromkeys((5, 13), (135, 0, 135)),
    **dict.fromkeys((6, 14), (0, 95, 95)),
    **dict.fromkeys((7, 8), (98, 98, 98)),
    15: (58, 58, 58),
}
_ON_DARK: Mapping[int, Rgb] = {
    **dict.fromkeys((1, 9), (255, 135, 135)),
    **dict.fromkeys((2, 10), (135, 215, 135)),
    **dict.fromkeys((3, 11), (255, 215, 95)),
    **dict.fromkeys((4, 12), (135, 175, 255)),
    **dict.fromkeys((5, 13), (215, 135, 215)),
    **dict.fromkeys((6, 14), (95, 215, 215)),
    **dict.fromkeys((0, 8), (158, 158, 158)),
    7: (208, 208, 208),
}

# Asks for the background and every colour that metis or the code highlighting uses. The device
# attributes come last: every terminal reports them, so their reply ends the wait for the others.
_QUERIES = "\x1b]11;?\x1b\\" + "".join(f"\x1b]4;{n};?\x1b\\" for n in range(1, 16)) + "\x1b[c"
# Values of TERM whose terminals print the queries instead of answering them.
_UNSUPPORTED_TERM = re.compile(r"linux|cons25|vt\d|eterm|ansi", re.IGNORECASE)
_REPLY = re.compile(
    r"\x1b\](?:11|4;(\d{1,2}));rgba?:([0-9a-f]{1,4})/([0-9a-f]{1,4})/([0-9a-f]{1,4})"
    r"(?:/[0-9a-f]{1,4})?(?:\x07|\x1b\\)|(\x1b\[\?[\d;]{0,64}c)",
    re.IGNORECASE,
)
_PARTIAL_REPLY = re.compile(
    r"\x1b(?:\](?:[\d;]{0,5}|[\d;]{2,5};r?g?b?a?:?[0-9a-f/]{0,20}\x1b?)|\[(?:\?[\d;]{0,64})?)\Z",
    re.IGNORECASE,
)
# How long the end of the chat waits for a reply, which the shell would take for typed text.
_LAST_WAIT_S = 0.2


class Theme:
    """Replaces the colours that cannot be read; until the background is known, none."""

    def __init__(self, name: str = "auto", environment: Mapping[str, str] | None = None) -> None:
        self._replaced: Mapping[int, Rgb] = {}
        self._styles: dict[Style, Style] = {}
        variables: Mapping[str, str] = {} if environment is None else environment
        background = _named_background(name, variables)
        self.may_ask = name == "auto" and not _UNSUPPORTED_TERM.match(variables.get("TERM", ""))
        """Whether the terminal decides, so that it is asked."""
        if background is not None:
            self.use(background, {})

    def use(self, background: Rgb, palette: Mapping[int, Rgb]) -> None:
        """Replace what has too little contrast to a background."""
        self._replaced = replaced_colours(background, palette)
        self._styles.clear()

    def recolour(self, style: Style) -> Style:
        """Return a style with a readable colour."""
        colour = style.color
        if not self._replaced or colour is None or colour.type is not ColorType.STANDARD:
            return style
        readable = self._styles.get(style)
        if readable is None:
            rgb = self._replaced.get(colour.number or 0)
            readable = style if rgb is None else style + Style(color=Color.from_rgb(*rgb))
            self._styles[style] = readable
        return readable

    def name(self, index: int, default: str) -> str:
        """Return a colour as a prompt names it: its replacement, or the given name."""
        rgb = self._replaced.get(index)
        return default if rgb is None else "#{:02x}{:02x}{:02x}".format(*rgb)


def replaced_colours(background: Rgb, palette: Mapping[int, Rgb]) -> dict[int, Rgb]:
    """Return a readable colour for each of the sixteen that is not, by its number.

    >>> sorted(replaced_colours(BLACK, {}))
    [0, 4]
    """
    table = _ON_LIGHT if _luminance(background) > _LIGHT_LUMINANCE else _ON_DARK
    return {
        number: table[number]
        for number, default in enumerate(_XTERM)
        if number in table and contrast(palette.get(number, default), background) < MIN_CONTRAST
    }


def contrast(one: Rgb, other: Rgb) -> float:
    """Return the contrast ratio of WCAG, from 1 to 21.

    >>> round(contrast(BLACK, WHITE)), round(contrast((205, 205, 0), WHITE), 1)
    (21, 1.7)
    """
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Rgb) -> float:
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4  # noqa: PLR2004 - sRGB
        for value in (part / 255 for part in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _named_background(name: str, environment: Mapping[str, str]) -> Rgb | None:
    """Return the background that a setting or COLORFGBG states."""
    if name == "auto":
        # rxvt and Konsole state "foreground;background" as numbers, or "default".
        number = environment.get("COLORFGBG", "").rpartition(";")[2]
        is_number = number.isascii() and number.isdigit() and int(number) < len(_XTERM)
        return _XTERM[int(number)] if is_number else None
    return {"light": WHITE, "dark": BLACK}.get(name)


class ReplyFilter:
    """Removes the terminal's replies from the input."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._background: Rgb | None = None
        self._palette: dict[int, Rgb] = {}
        self._partial_reply = ""
        self._ends_in_escape = False
        self.is_waiting = True
        """Whether a reply may still arrive."""

    def typed_text(self, text: str) -> str:
        """Return what the user typed; the beginning of a reply waits for its end."""
        if not self.is_waiting or not text:
            return text
        # A lone Esc is passed on at once, since it may be a key; if a reply follows, its Esc is
        # added again.
        prefix = "\x1b" if self._ends_in_escape and not self._partial_reply else ""
        received = prefix + self._partial_reply + text
        typed = _REPLY.sub(self._handle_reply, received)
        partial = _PARTIAL_REPLY.search(typed) if self.is_waiting else None
        self._partial_reply = "" if partial is None else typed[partial.start() :]
        typed = typed if partial is None else typed[: partial.start()]
        self._ends_in_escape = typed.endswith("\x1b")
        return typed.removeprefix(prefix)

    def _handle_reply(self, reply: re.Match[str]) -> str:
        number, *parts, attributes = reply.groups()
        if attributes is not None:
            self.is_waiting = False
        else:
            red, green, blue = (round(255 * int(p, 16) / (16 ** len(p) - 1)) for p in parts)
            if number is None:
                self._background = (red, green, blue)
            else:
                self._palette[int(number)] = (red, green, blue)
        if self._background is not None:
            self._theme.use(self._background, self._palette)
        return ""


@contextlib.contextmanager
def terminal_colours(
    theme: Theme, send: Callable[[str], object], redraw: Callable[[], object]
) -> Generator[None]:
    """Ask the terminal for its colours, and remove the replies from the keys until the end.

    The terminal must not echo what it receives.
    """
    # Imported here: a single question draws with themes as well, and never needs prompt_toolkit.
    from prompt_toolkit.application.current import get_app_session  # noqa: PLC0415 - see above
    from prompt_toolkit.input.posix_utils import PosixStdinReader  # noqa: PLC0415 - see above
    from prompt_toolkit.input.vt100 import Vt100Input  # noqa: PLC0415 - see above

    keys = get_app_session().input
    if not (theme.may_ask and sys.stdin.isatty() and isinstance(keys, Vt100Input)):
        yield
        return
    replies = ReplyFilter(theme)

    class Reader(PosixStdinReader):
        """Reads keys without the replies."""

        def read(self, count: int = 1024) -> str:
            was_waiting = replies.is_waiting
            text = replies.typed_text(super().read(count))
            if was_waiting and not replies.is_waiting:
                redraw()
            return text

    reader = keys.stdin_reader = Reader(keys.fileno(), encoding=sys.stdin.encoding)
    send(_QUERIES)
    try:
        yield
    finally:
        deadline_s = time.monotonic() + _LAST_WAIT_S
        while replies.is_waiting and (wait_s := deadline_s - time.monotonic()) > 0:
            if not select.select([keys.fileno()], [], [], wait_s)[0] or reader.closed:
                break
            reader.read()
