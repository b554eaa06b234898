"""Conversations as one self-contained HTML page without scripts.

Responses are rendered as Markdown, everything else is shown as written. Text is escaped, and a
content security policy in the page forbids scripts and remote content.
"""

import io
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from html import escape

import msgspec
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.interchange.export import (
    Conversation,
    ExportedFile,
    ExportLosses,
    describe_block,
    model_label,
)
from metis.projection.loss import Change
from metis.store.queries import title_of

# SVG is missing on purpose: it can contain scripts.
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
_FENCE = re.compile(r"^(`{3,})([^\n`]*)$", re.MULTILINE)
_INLINE_CODE = re.compile(r"`([^`\n]+)`")
# A paragraph with more of these is shown as plain text: the parser searches the remaining text for
# the end of each.
_SIGN = re.compile(r"[*_~`<&\\!\]]")
_MAX_SIGNS = 1_000
_MAX_BRACKETS = 200
_MAX_LENGTH = 300_000
_MAX_LINES = 10_000
_MAX_PIPES = 20_000
_LINK_SCHEMES = ("http://", "https://", "mailto:")

_HEAD = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; \
padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: 0; }}
article {{ border-left: 3px solid #8888; margin: 1.5rem 0; padding: 0 0 0 1rem; }}
article :is(h1, h2, h3, h4, h5, h6) {{ font-size: 1.05rem; margin: .8rem 0 .4rem; }}
article :is(p, ul, ol, table, blockquote) {{ margin: .5rem 0; }}
article.user {{ border-color: #2a7; }}
article.assistant {{ border-color: #27c; }}
article.tool {{ border-color: #c92; }}
header, footer, .about, summary {{ color: #888; font-size: .85rem; }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
pre {{ background: #8881; padding: .6rem .8rem; overflow-x: auto; white-space: pre-wrap; \
border-radius: 4px; }}
code {{ font-family: ui-monospace, monospace; font-size: .9em; }}
:not(pre) > code {{ background: #8882; padding: .1em .3em; border-radius: 3px; }}
table {{ border-collapse: collapse; }}
th, td {{ border-bottom: 1px solid #8884; padding: .2rem .8rem .2rem 0; text-align: left; }}
blockquote {{ border-left: 3px solid #8884; margin-left: 0; padding-left: 1rem; color: #888; }}
img {{ max-width: 100%; }}
.error {{ color: #c33; }}
</style>
</head>
<body>
"""


def write_html(conversation: Conversation) -> ExportedFile:
    """Write each message as an article; thinking, calls and results can be collapsed."""
    losses = ExportLosses("html")
    title = escape(_title(conversation))
    # The page grows by one part at a time: a list of parts would hold a long session twice.
    page = io.BytesIO()
    page.write(_HEAD.format(title=title).encode())
    page.write(f"<h1>{title}</h1>\n{_summary(conversation)}".encode())
    for message in conversation.messages:
        for part in _article(message, losses):
            page.write(part.encode())
    page.write(b"</body>\n</html>\n")
    return ExportedFile(page.getvalue(), tuple(losses.losses))


def _title(conversation: Conversation) -> str:
    """Return the beginning of the first prompt, else the id of the session."""
    prompt = next((m for m in conversation.messages if m.role is Role.USER), None)
    return (title_of(prompt.content) if prompt else "") or conversation.session.id


def _summary(conversation: Conversation) -> str:
    """Return a line with the date, the models, the cost and the id of the session."""
    used = [message.metadata for message in conversation.messages if message.metadata.model]
    models = dict.fromkeys(map(model_label, conversation.messages))
    cost_usd = sum((metadata.usage.cost_usd for metadata in used if metadata.usage), Decimal(0))
    created = conversation.session.created_at.strftime("%Y-%m-%d %H:%M UTC")
    cost = f"${cost_usd.normalize():f}"
    text = " · ".join([created, *filter(None, models), cost, conversation.session.id])
    return f'<p class="about">{escape(text)}</p>\n'


def _article(message: Message, losses: ExportLosses) -> Iterator[str]:
    role = escape(str(message.role), quote=True)
    label = model_label(message)
    model = f" · {escape(label)}" if label else ""
    yield f'<article class="{role}">\n<header>{role}{model}</header>\n'
    blocks = (_block(message, index, block, losses) for index, block in enumerate(message.content))
    if message.role in (Role.SYSTEM, Role.DEVELOPER):
        yield _details("instructions", "".join(blocks))
    else:
        yield from blocks
    usage = message.metadata.usage
    if usage is not None:
        tokens = f"{usage.prompt_tokens} in · {usage.output_tokens} out"
        yield f"<footer>{tokens} · ${usage.cost_usd}</footer>\n"
    yield "</article>\n"


def _block(message: Message, index: int, block: ContentBlock, losses: ExportLosses) -> str:
    match block:
        case TextBlock():
            is_response = message.role is Role.ASSISTANT
            return markdown_html(block.text) if is_response else _text(block.text)
        case ThinkingBlock() if block.text:
            return _details("thinking", markdown_html(block.text))
        case ToolUseBlock():
            arguments = msgspec.json.format(msgspec.json.encode(block.input)).decode()
            return _details(f"calls {block.name}", _code(arguments), is_open=True)
        case ToolResultBlock():
            inner = "".join(_block(message, index, part, losses) for part in block.content)
            title = "failed" if block.is_error else "result"
            return _details(title, inner, is_error=block.is_error)
        case ImageBlock() if _can_embed(block):
            data = "".join(block.source.data.split())
            return f'<img alt="" src="data:{block.media_type};base64,{data}">\n'
        case _:
            losses.add(message, index, block, "written as a one-line note", Change.ALTERED)
            return f"<p><em>{escape(describe_block(block))}</em></p>\n"


def _can_embed(image: ImageBlock) -> bool:
    """Return whether an image can be part of the page: inline, and of a type without scripts."""
    source = image.source
    is_inline = source.kind == "base64" and _BASE64.fullmatch(source.data) is not None
    return is_inline and image.media_type in _IMAGE_TYPES


def markdown_html(text: str) -> str:
    """Return Markdown as HTML in which markup, remote content and unsafe links stay text."""
    # The parser takes ten seconds for a megabyte of short lines; no real response is that long.
    is_long = len(text) > _MAX_LENGTH or text.count("\n") > _MAX_LINES
    if is_long or text.count("|") > _MAX_PIPES:
        return _text(text)
    return f"<div>{_parser().render(text)}</div>\n"


@cache
def _parser() -> MarkdownIt:
    """Return a Markdown parser that escapes HTML; images become links, since nothing is loaded."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    # The page must not load or run anything, also when a model writes `javascript:` links.
    parser.disable("image").validateLink = _is_safe_link
    parser.core.ruler.at("inline", _parse_inline)
    return parser


def _parse_inline(state: StateCore) -> None:
    """Parse the text of paragraphs and cells; one with too many signs of Markdown stays as it is.

    The parser looks for the end of every bracket, emphasis and code: 100 kB of them took minutes.
    """
    for token in state.tokens:
        if token.type != "inline":
            continue
        text, children = token.content, token.children
        if children is None:
            children = token.children = []
        if len(_SIGN.findall(text)) > _MAX_SIGNS or text.count("[") > _MAX_BRACKETS:
            children.append(Token("text", "", 0, content=text))
        else:
            state.md.inline.parse(text, state.md, state.env, children)


def _is_safe_link(url: str) -> bool:
    return url.strip().lower().startswith(_LINK_SCHEMES)


def _text(text: str) -> str:
    """Return text as HTML: code blocks are marked, everything else is shown as written."""
    parts: list[str] = []
    start = 0
    opening: re.Match[str] | None = None
    # Fence by fence: a pattern for whole blocks would search the rest for the end of each, and a
    # list of lines takes thirty times the memory of short ones.
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif len(fence[1]) >= len(opening[1]) and not fence[2].strip():
            code = text[opening.end() + 1 : fence.start()]
            parts += [_paragraph(text[start : opening.start()]), _code(code)]
            start, opening = fence.end() + 1, None
    # A block without an end is text.
    return "".join([*parts, _paragraph(text[start:])])


def _paragraph(text: str) -> str:
    if not text.strip():
        return ""
    # The text is escaped first, so that the only tags in it are those that are added here.
    marked = _INLINE_CODE.sub(r"<code>\1</code>", escape(text.strip("\n"), quote=False))
    return f'<div class="text">{marked}</div>\n'


def _code(text: str) -> str:
    # Quotes need no escape outside of attributes, and would take six times their space.
    return f"<pre><code>{escape(text, quote=False)}</code></pre>\n"


def _details(title: str, inner: str, *, is_open: bool = False, is_error: bool = False) -> str:
    style = ' class="error"' if is_error else ""
    mark = " open" if is_open else ""
    return f"<details{mark}><summary{style}>{escape(title)}</summary>\n{inner}</details>\n"
