"""fetch_url: a page or a file of the open internet."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.media import media_block, media_type
from metis.tools.tool import (
    ErrorClass,
    ToolContext,
    ToolFailedError,
    ToolOutput,
    boolean_property,
    object_schema,
    read_arguments,
    string_property,
    text_output,
)

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

MAX_BYTES = 5_000_000
MAX_CHARACTERS = 100_000
MAX_REDIRECTS = 5
TIMEOUT_S = 60.0
_FIRST_ERROR = 400
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What comes packed could unpack to any size.
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "metis"}


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What fetch_url takes."""

    url: str
    raw: bool = False


class Fetched(Struct, frozen=True):
    """What a server answered."""

    url: "URL"
    status: int
    media_type: str
    charset: str
    body: bytes


class FetchUrl:
    """Fetches from hosts on the open internet, and from those that are allowed by name."""

    definition = ToolDefinition(
        name="fetch_url",
        description=(
            "Fetch a page with GET. Of HTML the text is given; pictures and PDFs are shown. "
            f"At most {MAX_BYTES // 1_000_000} MB."
        ),
        input_schema=object_schema(
            ("url",),
            url=string_property("The address, with http or https."),
            raw=boolean_property("Give HTML as it came; false unless given."),
        ),
        side_effects=SideEffects.NETWORK,
        requires_workspace=False,
    )

    def __init__(self, *, allowed_hosts: Collection[str] = (), max_bytes: int = MAX_BYTES) -> None:
        self._allowed = frozenset(allowed_hosts)
        self._max_bytes = max_bytes

    async def execute(
        self,
        arguments: Mapping[str, Any],
        context: ToolContext,  # noqa: ARG002 - the interface
    ) -> ToolOutput:
        """Fetch the page."""
        import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt

        asked = read_arguments(Arguments, arguments)
        url = _url(asked.url)
        try:
            for _ in range(MAX_REDIRECTS + 1):
                answer = await self._get(url)
                if isinstance(answer, Fetched):
                    return _output(answer, is_raw=asked.raw)
                url = answer
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ToolFailedError(f"{url} was not reached: {type(error).__name__}.") from None
        raise ToolFailedError(f"{asked.url} leads through more than {MAX_REDIRECTS} redirects.")

    def cancel(self) -> bool:
        """The connection ends with the task."""
        return False

    async def _get(self, url: "URL") -> "Fetched | URL":
        """One request: the answer, or the address to which it leads."""
        import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt
        from yarl import URL  # noqa: PLC0415 - the same

        from metis.tools.web import PinnedResolver, resolve_public  # noqa: PLC0415 - the same

        addresses = await resolve_public(url.raw_host or "", url.port or 0, self._allowed)
        connector = aiohttp.TCPConnector(resolver=PinnedResolver(addresses), use_dns_cache=False)
        async with (
            aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as client,
            client.get(url, allow_redirects=False, headers=_HEADERS) as response,
        ):
            target = response.headers.get("Location")
            if response.status in _REDIRECTS and target:
                return _url(str(url.join(URL(target))))
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise ToolFailedError(f"{url} answers in a packed form only.")
            return Fetched(
                url,
                response.status,
                response.content_type,
                response.charset or "utf-8",
                await self._body(response),
            )

    async def _body(self, response: "aiohttp.ClientResponse") -> bytes:
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > self._max_bytes:
                raise ToolFailedError(f"{response.url} has more than {self._max_bytes} bytes.")
        return bytes(body)


def _url(text: str) -> "URL":
    """An address that may be asked; a login in it is refused, since it would be shown and kept."""
    from yarl import URL  # noqa: PLC0415 - loaded by the first call, as the client is

    with suppress(ValueError):
        url = URL(text)
        if url.scheme in ("http", "https") and url.host and url.user is None:
            return url
    reason = "An address has to be http or https, with a host and without a login."
    raise ToolFailedError(reason, ErrorClass.PERMISSION_DENIED)


def _output(answer: Fetched, *, is_raw: bool) -> ToolOutput:
    is_fine = answer.status < _FIRST_ERROR
    value = {"status": answer.status, "url": str(answer.url), "bytes": len(answer.body)}
    kind = media_type(answer.body)
    if kind and is_fine:
        block = media_block(answer.body, kind, answer.url.name or "page")
        return ToolOutput(content=(block,), value=value)
    text = _text(answer, is_raw=is_raw)
    note = "" if is_fine else f"[status {answer.status}]\n"
    return text_output(f"{note}{text}" or "(empty)", success=is_fine, value=value)


def _text(answer: Fetched, *, is_raw: bool) -> str:
    if b"\0" in answer.body[:8192]:
        raise ToolFailedError(f"{answer.url} is a binary file ({answer.media_type}).")
    try:
        text = answer.body.decode(answer.charset, "replace")
    except LookupError:
        text = answer.body.decode("utf-8", "replace")
    if not is_raw and answer.media_type in ("text/html", "application/xhtml+xml"):
        from metis.tools.web import html_to_text  # noqa: PLC0415 - loaded by the first page

        text = html_to_text(text)
    left_out = len(text) - MAX_CHARACTERS
    return text if left_out <= 0 else f"{text[:MAX_CHARACTERS]}\n[{left_out} characters left out]"
