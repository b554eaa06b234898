"""Conversations as one self-contained HTML page without scripts.

Responses are rendered as Markdown, everything else stands as it was written. Text is escaped, and
a content security policy in the page forbids scripts and remote content.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from html import escape

import msgspec
from markdown_it import MarkdownIt

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.cli.render import render_block
from metis.cli.text import format_usd
from metis.interchange.export import Conversation, ExportedFile, ExportLosses
from metis.projection.loss import Change
from metis.store.queries import title_of

_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Kinds that hold no script."""
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
_FENCE = re.compile(r"^(`{3,})[^\n`]*\n(.*?)^\1`*[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINKS = ("http://", "https://", "mailto:")

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


def write_html(talk: Conversation) -> ExportedFile:
    """Every message as an article; thoughts, calls and results can be folded."""
    losses = ExportLosses("html")
    title = escape(_title(talk))
    parts = [_HEAD.format(title=title), f"<h1>{title}</h1>\n", _about(talk)]
    for message in talk.messages:
        parts += _article(message, losses)
    parts.append("</body>\n</html>\n")
    return ExportedFile("".join(parts).encode(), tuple(losses.losses))


def _title(talk: Conversation) -> str:
    """What was asked first, else the id."""
    asked = next((each for each in talk.messages if each.role is Role.USER), None)
    return (title_of(asked.content) if asked else "") or talk.session.id


def _about(talk: Conversation) -> str:
    """When, with whom, for how much; and the name under which the conversation is kept."""
    used = [each.metadata for each in talk.messages if each.metadata.model]
    models = dict.fromkeys(each.model or "" for each in used)
    spent = sum((each.usage.cost_usd for each in used if each.usage), Decimal(0))
    when = talk.session.created_at.strftime("%Y-%m-%d %H:%M UTC")
    told = " · ".join([when, *models, format_usd(spent), talk.session.id])
    return f'<p class="about">{escape(told)}</p>\n'


def _article(message: Message, losses: ExportLosses) -> Iterator[str]:
    role = escape(str(message.role), quote=True)
    model = f" · {escape(message.metadata.model)}" if message.metadata.model else ""
    yield f'<article class="{role}">\n<header>{role}{model}</header>\n'
    inner = "".join(
        _block(message, place, block, losses) for place, block in enumerate(message.content)
    )
    is_told_first = message.role in (Role.SYSTEM, Role.DEVELOPER)
    yield _folded("what the model is told first", inner) if is_told_first else inner
    usage = message.metadata.usage
    if usage is not None:
        tokens = f"{usage.prompt_tokens} in · {usage.output_tokens} out"
        yield f"<footer>{tokens} · ${usage.cost_usd}</footer>\n"
    yield "</article>\n"


def _block(message: Message, place: int, block: ContentBlock, losses: ExportLosses) -> str:
    match block:
        case TextBlock():
            is_answer = message.role is Role.ASSISTANT
            return _markdown(block.text) if is_answer else _text(block.text)
        case ThinkingBlock() if block.text:
            return _folded("thinks", _markdown(block.text))
        case ToolUseBlock():
            arguments = msgspec.json.format(msgspec.json.encode(block.input)).decode()
            return _folded(f"calls {block.name}", _code(arguments), is_open=True)
        case ToolResultBlock():
            inner = "".join(_block(message, place, part, losses) for part in block.content)
            title = "failed" if block.is_error else "result"
            return _folded(title, inner, is_error=block.is_error)
        case ImageBlock() if _is_shown(block):
            data = "".join(block.source.data.split())
            return f'<img alt="" src="data:{block.media_type};base64,{data}">\n'
        case _:
            losses.add(message, place, block, "only a line on it is written", Change.ALTERED)
            return f"<p><em>{escape(render_block(block))}</em></p>\n"


def _is_shown(image: ImageBlock) -> bool:
    """Whether a picture can stand in the page: inline, of a kind that runs nothing."""
    source = image.source
    is_inline = source.kind == "base64" and _BASE64.fullmatch(source.data) is not None
    return is_inline and image.media_type in _PICTURES


def _markdown(text: str) -> str:
    return f"<div>{_parser().render(text)}</div>\n"


@cache
def _parser() -> MarkdownIt:
    """Reads markdown without HTML in it; a picture is a link, for nothing comes from elsewhere."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.disable("image").validateLink = _is_link
    return parser


def _is_link(url: str) -> bool:
    return url.strip().lower().startswith(_LINKS)


def _text(text: str) -> str:
    """Words with their code blocks; everything else stands as it was written."""
    parts: list[str] = []
    end = 0
    for found in _FENCE.finditer(text):
        parts += [_words(text[end : found.start()]), _code(found[2])]
        end = found.end()
    return "".join([*parts, _words(text[end:])])


def _words(text: str) -> str:
    if not text.strip():
        return ""
    # The text is escaped first, so that the only marks in it are those that are put in here.
    marked = _CODE.sub(r"<code>\1</code>", escape(text.strip("\n")))
    return f'<div class="text">{marked}</div>\n'


def _code(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>\n"


def _folded(title: str, inner: str, *, is_open: bool = False, is_error: bool = False) -> str:
    style = ' class="error"' if is_error else ""
    mark = " open" if is_open else ""
    return f"<details{mark}><summary{style}>{escape(title)}</summary>\n{inner}</details>\n"
