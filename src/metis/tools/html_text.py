"""The text of an HTML page, in linear time.

The parser of the standard library rescans the remaining page at every unfinished tag, comment or
character reference: 100 kB of crafted input took twelve seconds. Here every search either advances
or, if it fails, is never repeated.
"""

import html
import re

_HIDDEN_TAGS = frozenset({"script", "style", "template", "noscript", "svg", "head", "title"})
# Markup inside of these elements is text; only their end tag closes them.
_RAW_TAGS = {
    name: re.compile(rf"</{name}(?![a-z0-9])", re.IGNORECASE | re.ASCII)
    for name in ("script", "style", "title", "textarea", "noscript", "xmp", "iframe")
}
_BLOCK_TAGS = frozenset(
    {
        *("p", "div", "br", "li", "tr", "table", "section", "article", "header", "footer", "ul"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "ol", "pre", "blockquote", "nav", "main", "form"),
    }
)
# A `<` before another character is text, as in `a < b`.
_MARKUP = re.compile(r"<(?=[a-zA-Z/!?])")
_TAG_NAME = re.compile(r"</?([a-zA-Z][a-zA-Z0-9:-]{0,50})")
# A quotation mark counts only at the start of a value: `<p title=it's>` is a complete tag.
_QUOTE_OR_END = re.compile(r"=\s*([\"'])|>")
_HREF = re.compile(r"""\bhref\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_MAX_LINK_TAG = 10_000
# A number that is not a code point; `int` takes quadratic time for it, or refuses it.
_LONG_NUMBER = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{7,});?")


def html_to_text(page: str) -> str:
    """Return the text of a page without its markup; the URL of a link precedes its text."""
    scanner = _Scanner(page)
    scanner.run()
    lines = (" ".join(line.split()) for line in "".join(scanner.parts).splitlines())
    return "\n".join(line for line in lines if line)


class _Scanner:
    """Scans a page once and collects its text."""

    def __init__(self, page: str) -> None:
        self.parts: list[str] = []
        self._page = page
        self._hidden: list[str] = []
        """The hidden elements that are open, outermost first."""
        self._open_count = dict.fromkeys(_HIDDEN_TAGS, 0)
        self._unclosed: set[str] = set()
        """Quotation marks that do not occur in the remaining page."""

    def run(self) -> None:
        position = 0
        while True:
            markup = _MARKUP.search(self._page, position)
            if markup is None:
                self._add_text(position, len(self._page))
                return
            self._add_text(position, markup.start())
            position = self._skip_markup(markup.start())

    def _add_text(self, start: int, end: int) -> None:
        if start < end and not self._hidden:
            text = _LONG_NUMBER.sub("\ufffd", self._page[start:end])
            self.parts.append(html.unescape(text) if "&" in text else text)

    def _skip_markup(self, start: int) -> int:
        """Return the position after the markup that begins here; the end if it is unfinished."""
        page = self._page
        name = _TAG_NAME.match(page, start)
        if name is None:
            if page.startswith("<!--", start):
                return self._after("-->", start + 4)
            return self._after(">", start + 2)
        end = self._tag_end(name.end())
        if page.startswith("</", start):
            self._close_tag(name[1].lower())
            return end
        return self._open_tag(name[1].lower(), start, end)

    def _after(self, mark: str, position: int) -> int:
        end = self._page.find(mark, position)
        return len(self._page) if end < 0 else end + len(mark)

    def _tag_end(self, position: int) -> int:
        """Return the position after a tag; a `>` in a quoted value does not end it."""
        page = self._page
        while True:
            match = _QUOTE_OR_END.search(page, position)
            if match is None:
                return len(page)
            position, quote = match.end(), match[1]
            if quote is None:
                return position
            if quote not in self._unclosed:
                end = page.find(quote, position)
                if end < 0:
                    self._unclosed.add(quote)
                else:
                    position = end + 1

    def _open_tag(self, name: str, start: int, end: int) -> int:
        if name in _BLOCK_TAGS:
            self.parts.append("\n")
        # The end tag of a head may be missing.
        if name == "body" and self._hidden == ["head"]:
            self._close_tag("head")
        if name == "a" and not self._hidden:
            self._add_link(start, end)
        is_hidden, raw_end = name in _HIDDEN_TAGS, _RAW_TAGS.get(name)
        if raw_end is not None:
            match = raw_end.search(self._page, end)
            text_end = len(self._page) if match is None else match.start()
            if not is_hidden:
                self._add_text(end, text_end)
            return text_end
        if is_hidden and not self._page.endswith("/>", start, end):
            self._hidden.append(name)
            self._open_count[name] += 1
        return end

    def _close_tag(self, name: str) -> None:
        if name in _BLOCK_TAGS:
            self.parts.append("\n")
        # The count shows without a search whether the element is open.
        if self._open_count.get(name):
            while True:
                closed = self._hidden.pop()
                self._open_count[closed] -= 1
                if closed == name:
                    return

    def _add_link(self, start: int, end: int) -> None:
        match = _HREF.search(self._page, start, min(end, start + _MAX_LINK_TAG))
        link = html.unescape(next(filter(None, match.groups()), "")) if match else ""
        if link.startswith(("http:", "https:")):
            self.parts.append(f"[{link}] ")
