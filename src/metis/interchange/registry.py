"""The session formats by name, and the one that a file is of.

A format is one module: a subclass of `SessionFormat`, and a row in the table below. Other packages
add theirs under the entry point group `metis.session_formats`: the name is that for `--format`, the
value the class. Modules are imported when a format is needed first.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import cast

from metis.canonical.errors import UnknownFormatError
from metis.interchange.session_format import SessionFormat
from metis.interchange.source import Source
from metis.plugins import FORMATS, Plugin, load_plugins

# A file is offered to the formats in this order: those with the most specific marks come first.
_BUILTIN: Mapping[str, str] = {
    "claude-code": "metis.interchange.claude_code:ClaudeCode",
    "codex": "metis.interchange.codex:Codex",
    "gemini-cli": "metis.interchange.gemini_cli:GeminiCli",
    "opencode": "metis.interchange.opencode:OpenCode",
    "pi": "metis.interchange.pi:Pi",
    "qwen-code": "metis.interchange.agent_logs:QwenCode",
    "kimi": "metis.interchange.agent_logs:Kimi",
    "copilot-cli": "metis.interchange.agent_transcripts:CopilotCli",
    "cursor": "metis.interchange.agent_transcripts:Cursor",
    "cline": "metis.interchange.agent_transcripts:Cline",
    "aider": "metis.interchange.agent_transcripts:Aider",
    "llm": "metis.interchange.chat_databases:Llm",
    "openai-agents": "metis.interchange.chat_databases:OpenAiAgents",
    "chatgpt": "metis.interchange.chat_exports:ChatGpt",
    "claude-ai": "metis.interchange.chat_exports:ClaudeAi",
    "librechat": "metis.interchange.chat_exports:LibreChat",
    "open-webui": "metis.interchange.chat_exports:OpenWebUi",
    "atif": "metis.interchange.framework_messages:Atif",
    "pydantic-ai": "metis.interchange.framework_messages:PydanticAi",
    "langchain": "metis.interchange.framework_messages:LangChain",
    "vercel": "metis.interchange.framework_messages:Vercel",
    "otel": "metis.interchange.otel_spans:OtelSpans",
    "klaude": "metis.interchange.document_session:Klaude",
    "gpt2099": "metis.interchange.document_session:Gpt2099",
    "attocode": "metis.interchange.document_session:Attocode",
}
_ALIASES = {"klaude-code": "klaude"}


def session_formats() -> tuple[str, ...]:
    """Return the names of all session formats, those of other packages included."""
    return (*_BUILTIN, *_registered())


@cache
def session_format(name: str) -> SessionFormat:
    """Return a format by its name.

    Raises:
        UnknownFormatError: there is none.
    """
    name = _ALIASES.get(name, name)
    if name in _BUILTIN:
        module, _, class_name = _BUILTIN[name].partition(":")
        kind = cast("type[SessionFormat]", getattr(import_module(module), class_name))
        return kind()
    registered = _registered()
    if name not in registered:
        raise UnknownFormatError(name, session_formats())
    return registered[name]()


def detect_format(source: Source) -> SessionFormat:
    """Return the format that a file looks like.

    Raises:
        UnknownFormatError: it looks like none of them.
    """
    for candidate in _all_formats():
        if candidate.fits(source):
            return candidate
    raise UnknownFormatError(None, session_formats())


def _all_formats() -> Iterator[SessionFormat]:
    for name in session_formats():
        yield session_format(name)


@cache
def _registered() -> Mapping[str, type[SessionFormat]]:
    return load_plugins(FORMATS, _read_format, reserved=_BUILTIN)


def _read_format(_plugin: Plugin, value: object) -> type[SessionFormat]:
    if not isinstance(value, type) or not issubclass(value, SessionFormat):
        raise TypeError(f"expected a subclass of SessionFormat, got {value!r:.80}")
    return value
