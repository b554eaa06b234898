"""Pages: the words of an HTML page."""

from html.parser import HTMLParser

_SILENT = frozenset({"script", "style", "template", "noscript", "svg", "head"})
_BREAKS = frozenset(
    {
        *("p", "div", "br", "li", "tr", "table", "section", "article", "header", "footer", "ul"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "ol", "pre", "blockquote", "nav", "main", "form"),
    }
)


class _Words(HTMLParser):
    """Collects the text of a page, a line for each block."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self._silent.append(tag)
        elif tag in _BREAKS:
            self.parts.append("\n")
        if tag == "a" and not self._silent:
            link = dict(attrs).get("href") or ""
            self.parts.append(f"[{link}] " if link.startswith(("http:", "https:")) else "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._silent:
            while self._silent.pop() != tag:
                continue
        elif tag in _BREAKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data)


def page_text(html: str) -> str:
    """The text of a page without its markup; links to other pages stand before their words."""
    words = _Words()
    words.feed(html)
    words.close()
    lines = (" ".join(line.split()) for line in "".join(words.parts).splitlines())
    return "\n".join(line for line in lines if line)
