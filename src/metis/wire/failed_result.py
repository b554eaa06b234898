"""Results of failed calls, for protocols that have no flag for them (T26)."""

from metis.canonical.blocks import ContentBlock, TextBlock

_ERROR = "Error: "


def mark_failed(content: tuple[ContentBlock, ...]) -> tuple[ContentBlock, ...]:
    """The result of a failed call, which the protocol has no flag for (T26)."""
    match content:
        case (TextBlock(text=str(text)), *rest):
            return (TextBlock(text if text.startswith(_ERROR) else _ERROR + text), *rest)
        case _:
            return (TextBlock(_ERROR.strip()), *content)
