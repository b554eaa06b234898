"""Which conversation a request belongs to: the client's session header, else its longest prefix.

Histories are compared by digests. A digest covers what every client sends back unchanged: roles,
texts, calls and results. It does not cover what clients drop or rewrite between two requests:
system prompts, thinking, generated media, cache marks, ids of calls, white space, and how a text is
divided into blocks.
"""

import hashlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import is_
from threading import Lock
from typing import Any, cast

import msgspec
from msgspec import Struct

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message, Role
from metis.canonical.value import UnknownBlock, comparable_bytes
from metis.gateway.exchange import Exchange, Tenant
from metis.store.exchanges import HistoryEnd
from metis.wire.call import CanonicalRequest

SESSION_HEADERS = (
    "x-metis-session",
    "x-claude-code-session-id",  # Claude Code
    "x-qwen-code-session-id",  # Qwen Code
    "session-id",  # Codex
    "session_id",  # Codex before 0.100
    "conversation_id",  # Codex before 0.60
    "x-opencode-session",  # opencode
    "x-session-id",  # opencode, and many others
    "x-session-affinity",  # opencode
    "x-conversation-id",
    "x-litellm-session-id",
    "helicone-session-id",
)
"""The headers in which clients name their session; the first that is set counts."""
AGENT_HEADERS = (
    "x-claude-code-agent-id",  # Claude Code from 2.1.139, for each sub-agent
    "thread-id",  # Codex: that of a sub-agent differs from the session
    "x-openai-subagent",  # Codex: the kind of the sub-agent
)
"""The headers in which clients name the sub-agent that sends a request."""
PARENT_HEADERS = ("x-parent-session-id", "x-codex-parent-thread-id")
"""The headers in which a sub-agent names the session that started it."""
RECORDED_HEADERS = frozenset(
    {*SESSION_HEADERS, *AGENT_HEADERS, *PARENT_HEADERS, "user-agent", "originator", "x-app"}
)
"""Every header that the recorder reads."""

RETRY_WINDOW_S = 600.0
"""How long an equal first request without a session header counts as a retry.

Later it is a new conversation that begins with the same words.
"""
_MAX_KEY_LENGTH = 256
_MAX_ENDS = 20_000
_MAX_CHAINS = 64
_MAX_CHAIN = 20_000
"""The longest history whose digests are held; a hostile body may have a million messages."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_USER_ID_SESSION = re.compile(r"_session_([0-9a-fA-F-]{36})$")
BILLING_PREFIX = "x-anthropic-billing-header:"
"""How the line begins that Claude Code puts before its system prompt, for Anthropic."""
_SIDE_CALL = re.compile(
    r"\b(title|topic|summari[sz]e|classif|route[rs]?\b|next speaker|suggest)", re.IGNORECASE
)
_SIDE_PROMPT_LENGTH = 6000
_PROBE_TOKENS = 1
_LEFT_OUT = (ThinkingBlock, RedactedThinkingBlock, OpaqueBlock, UnknownBlock, ArtifactBlock)
"""What clients drop from a response, or cannot send back: thinking, foreign parts, media."""
_write_json = msgspec.json.Encoder(order="sorted").encode


class ClientSession(Struct, frozen=True):
    """The session that a client names in a request."""

    key: str
    agent: str | None = None
    """The sub-agent that sends the request."""
    parent_key: str | None = None
    """The session that started this one."""


def client_session(
    headers: Mapping[str, str], request: CanonicalRequest | None = None
) -> ClientSession | None:
    """Return the session that a client names in headers or, failing that, in the body."""
    key = _first(headers, SESSION_HEADERS)
    if key is None and request is not None:
        key = _key_in_body(request)
    if key is None:
        return None
    agent = _first(headers, AGENT_HEADERS)
    parent = _first(headers, PARENT_HEADERS)
    return ClientSession(
        key, agent if agent != key else None, parent if parent not in (key, None) else None
    )


def _first(headers: Mapping[str, str], names: Iterable[str]) -> str | None:
    for name in names:
        value = headers.get(name)
        if value and value.strip():
            return value.strip()[:_MAX_KEY_LENGTH]
    return None


def _key_in_body(request: CanonicalRequest) -> str | None:
    """Return the session in `metadata.user_id` (Claude Code) or `prompt_cache_key` (Codex)."""
    for options in request.options.native.values():
        metadata = options.get("metadata")
        user = cast("Mapping[str, Any]", metadata).get("user_id") if _is_map(metadata) else None
        if isinstance(user, str) and (key := _session_of_user_id(user)):
            return key
        # Other clients group requests of many sessions under one cache key; a UUID is a session.
        cache_key = options.get("prompt_cache_key")
        if isinstance(cache_key, str) and _UUID.fullmatch(cache_key):
            return cache_key
    return None


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping)


def _session_of_user_id(user_id: str) -> str | None:
    if user_id.startswith("{"):
        try:
            value = msgspec.json.decode(user_id)
        except (ValueError, RecursionError):
            return None
        session = cast("dict[str, Any]", value).get("session_id") if _is_map(value) else None
        return session[:_MAX_KEY_LENGTH] if isinstance(session, str) and session else None
    match = _USER_ID_SESSION.search(user_id)
    return match[1] if match else None


def tenant_key(tenant: Tenant) -> str:
    """Return the text that separates the data of a tenant from that of others."""
    return f"{tenant.team_id or ''}/{tenant.user_id or ''}"


@lru_cache(4096)
def derived_session_id(*parts: str) -> str:
    """Return the id of the session that clients name so: the same in every worker."""
    return "sess_" + hashed_tool_id("gateway", *parts).removeprefix("tu_")


# Digests of histories


class Chain(Struct):
    """The digests of a history: one after each message, for all that came before it."""

    messages: tuple[Message, ...]
    digests: list[str]
    hasher: Any
    role: Role | None = None
    is_in_text: bool = False
    system: str = ""
    """The digest of the system prompt in front; empty if there is none."""
    first_response: int | None = None
    """The position of the first response; None if there is none."""
    last_response: int = -1

    def extended(self, messages: Sequence[Message]) -> "Chain":
        """Return the chain of this history with more messages; this one stays as it is."""
        chain = Chain(
            (*self.messages, *messages),
            [*self.digests],
            self.hasher.copy(),
            *(self.role, self.is_in_text, self.system, self.first_response, self.last_response),
        )
        for message in messages:
            chain._add(message)
        return chain

    def has_response(self, length: int) -> bool:
        """Whether a response is among the first messages."""
        return self.first_response is not None and self.first_response < length

    def _add(self, message: Message) -> None:
        # System prompts in front change from request to request: dates, versions, file lists.
        if message.role is Role.SYSTEM and self.role is None:
            self.digests.append("")
            self.system = _system_digest(self.system, message)
            return
        for block in message.content:
            self._add_block(message.role, block)
        if message.role is Role.ASSISTANT:
            self.last_response = len(self.digests)
            if self.first_response is None:
                self.first_response = self.last_response
        digest = self.hasher.hexdigest() if self.role is not None else ""
        # Side calls repeat the first prompt under another system prompt, so the digest includes the
        # system prompt until a response distinguishes the histories.
        if digest and self.first_response is None:
            digest = f"{digest}:{self.system}"
        self.digests.append(digest)

    def _add_block(self, role: Role, block: ContentBlock) -> None:
        update = self.hasher.update
        if isinstance(block, _LEFT_OUT):
            return
        if isinstance(block, TextBlock) and not block.text.strip():
            return
        if role is not self.role or role is Role.TOOL:
            update(b"\0role\0" + role.value.encode())
            self.role, self.is_in_text = role, False
        match block:
            case TextBlock():
                if not self.is_in_text:
                    update(b"\0text\0")
                self.is_in_text = True
                update(_compared_text(block.text))
                return
            case ToolUseBlock():
                update(b"\0call\0" + block.name.encode("utf-8", "surrogatepass") + b"\0")
                invalid = block.invalid
                update(_write_json(block.input if invalid is None else invalid.raw))
            case ToolResultBlock():
                update(b"\0result\0")
                for part in block.content:
                    text = part.text if isinstance(part, TextBlock) else None
                    update(comparable_bytes(part) if text is None else _compared_text(text))
            case _:
                update(b"\0media\0" + comparable_bytes(block))
        self.is_in_text = False


def _compared_text(text: str) -> bytes:
    # Clients join the text blocks of a response with or without line breaks, and trim prompts.
    data = text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")
    return data.translate(None, b" \t\r\n\v\f")


def empty_chain() -> Chain:
    """Return the chain of a history without messages."""
    return Chain((), [], hashlib.blake2b(digest_size=16))


class Chains:
    """Chains of recent histories: the next request of a conversation hashes only what is new.

    It is recognised by the message objects, which a `RequestReader` returns again.
    """

    def __init__(self) -> None:
        self._chains: dict[int, Chain] = {}
        self._longest: Chain | None = None
        """The newest of the long ones, which `prepare` makes for `begin`."""
        self._lock = Lock()
        """Large requests are read in threads."""

    def of(self, messages: tuple[Message, ...]) -> Chain:
        """Return the chain of a history."""
        if not messages:
            return empty_chain()
        key = id(_first_prompt(messages))
        longest = self._longest
        if longest is not None and _are_same(longest.messages, messages):
            return longest
        with self._lock:
            earlier = self._chains.pop(key, None)
        shared = 0 if earlier is None else len(earlier.messages)
        # The entry holds its messages, so that an id cannot belong to another object meanwhile.
        if earlier is None or not (
            shared <= len(messages) and _are_same(earlier.messages, messages[:shared])
        ):
            earlier, shared = empty_chain(), 0
        chain = earlier if shared == len(messages) else earlier.extended(messages[shared:])
        with self._lock:
            if len(messages) > _MAX_CHAIN:
                self._longest = chain
                return chain
            self._chains[key] = chain
            while len(self._chains) > _MAX_CHAINS:
                del self._chains[next(iter(self._chains))]
        return chain


def _are_same(first: Sequence[Message], second: Sequence[Message]) -> bool:
    return len(first) == len(second) and all(map(is_, first, second))


def _first_prompt(messages: Sequence[Message]) -> Message:
    for message in messages:
        if message.role is not Role.SYSTEM:
            return message
    return messages[0]


def _system_digest(earlier: str, message: Message) -> str:
    """Return the digest of system prompts, without the line that Claude Code changes each time."""
    hasher = hashlib.blake2b(earlier.encode(), digest_size=16)
    for block in message.content:
        if isinstance(block, TextBlock) and not block.text.startswith(BILLING_PREFIX):
            hasher.update(block.text.encode("utf-8", "surrogatepass"))
    return hasher.hexdigest()


def leading_system(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the system messages at the start of a history."""
    count = 0
    while count < len(messages) and messages[count].role is Role.SYSTEM:
        count += 1
    return messages[:count]


# Threads of a client session

MAIN = "main"
"""The key, beside the digests of a scope, of what is known about its main thread."""


class Thread(Struct):
    """The main thread of a session that a client named."""

    session_id: str
    system: str
    """The digest of its system prompt."""
    has_tools: bool

    def encoded(self) -> str:
        """Return it as a text for the store."""
        return f"{self.system}:{int(self.has_tools)}"

    @classmethod
    def from_end(cls, end: HistoryEnd) -> "Thread":
        """Return the thread that a row of the store describes."""
        system, _, has_tools = "".join(end.call_ids).partition(":")
        return cls(end.session_id, system, has_tools == "1")


class Join(Struct):
    """Where an exchange belongs."""

    scope: str
    session_id: str
    chain: Chain
    kind: str = MAIN
    """`main`, `agent` for a sub-agent with a session of its own, `side` for a side call."""
    parent_session_id: str | None = None


def looks_like_side_call(request: CanonicalRequest) -> bool:
    """Whether a request is not part of the conversation: a probe, a title, a classification."""
    if request.tools:
        return False
    if (request.options.max_output_tokens or _PROBE_TOKENS + 1) <= _PROBE_TOKENS:
        return True
    texts = [
        block.text
        for message in request.messages
        if message.role in (Role.SYSTEM, Role.DEVELOPER)
        for block in message.content
        if isinstance(block, TextBlock)
    ]
    prompt = "".join(texts)
    # An agent's own prompt is long, and it has tools.
    return len(prompt) <= _SIDE_PROMPT_LENGTH and bool(_SIDE_CALL.search(prompt))


class Joiner:
    """Finds the session of each request; holds the ends of recent histories in bounded memory."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], HistoryEnd] = {}
        self._threads: dict[str, Thread] = {}
        self._chains = Chains()
        self._lock = Lock()
        """Large exchanges are planned in a thread."""

    def chain(self, messages: tuple[Message, ...]) -> Chain:
        """Return the digests of a history."""
        return self._chains.of(messages)

    def end(self, scope: str, digest: str) -> HistoryEnd | None:
        """Return the end of a history by its digest."""
        return self._ends.get((scope, digest))

    def add(self, scope: str, digest: str, end: HistoryEnd) -> None:
        """Remember the end of a history; the oldest are forgotten."""
        end.used_s = time.monotonic()
        with self._lock:
            self._ends.pop((scope, digest), None)
            self._ends[scope, digest] = end
            while len(self._ends) > _MAX_ENDS:
                del self._ends[next(iter(self._ends))]

    def forget(self, scope: str, digests: Iterable[str]) -> None:
        """Forget ends that could not be stored."""
        with self._lock:
            for digest in digests:
                self._ends.pop((scope, digest), None)

    def thread(self, scope: str) -> Thread | None:
        """Return the main thread of a session that a client named."""
        return self._threads.get(scope)

    def set_thread(self, scope: str, thread: Thread) -> None:
        """Remember the main thread of a session that a client named."""
        with self._lock:
            self._threads.pop(scope, None)
            self._threads[scope] = thread
            while len(self._threads) > _MAX_ENDS:
                del self._threads[next(iter(self._threads))]

    def longest(self, join: Join, limit: int | None = None) -> tuple[int, HistoryEnd | None]:
        """Return the longest known prefix of a history: its length up to a limit, and its end.

        Once the session of a request is decided, only prefixes in that session count.
        """
        digests = join.chain.digests
        for length in range(len(digests) if limit is None else limit, 0, -1):
            digest = digests[length - 1]
            end = self._ends.get((join.scope, digest)) if digest else None
            if end is not None and join.session_id in ("", end.session_id):
                return length, end
        return 0, None


def scope_of(exchange: Exchange, client: ClientSession | None) -> str:
    """Return the scope within which histories are compared: a client session, or a tenant."""
    tenant = tenant_key(exchange.tenant)
    if client is None:
        return derived_session_id("tenant", tenant)
    return derived_session_id("client", tenant, client.key, client.agent or "")
