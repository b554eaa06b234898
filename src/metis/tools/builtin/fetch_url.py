"""The fetch_url tool: a page or a file of the public internet."""

import asyncio
import codecs
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.html_text import html_to_text
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

# A server can send a page of any size, slowly, and redirect endlessly.
MAX_BYTES = 5_000_000
MAX_CHARACTERS = 100_000
MAX_REDIRECTS = 5
TIMEOUT_S = 60.0
_FIRST_ERROR_STATUS = 400
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_ENCODINGS = (
    *("utf-8", "utf-16", "utf-32", "ascii", "latin", "iso8859", "cp125", "cp8", "cp9", "koi8"),
    *("gb", "big5", "euc", "shift_jis", "iso2022", "mac-"),
)
# A compressed body could decompress to any size.
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "metis"}


class FetchArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of fetch_url."""

    url: str
    raw: bool = False


class FetchedPage(Struct, frozen=True):
    """The response of a web server."""

    url: "URL"
    status: int
    media_type: str
    charset: str
    body: bytes


class FetchUrl:
    """Fetches from hosts on the public internet, and from hosts that are allowed by name."""

    definition = ToolDefinition(
        name="fetch_url",
        description=(
            "Fetch a URL with GET. HTML is returned as text; images and PDFs are shown. "
            f"At most {MAX_BYTES // 1_000_000} MB."
        ),
        input_schema=object_schema(
            ("url",),
            url=string_property("The URL, with http or https."),
            raw=boolean_property("Return HTML unchanged; false by default."),
        ),
        side_effects=SideEffects.NETWORK,
        requires_workspace=False,
    )

    def __init__(self, *, allowed_hosts: Collection[str] = (), max_bytes: int = MAX_BYTES) -> None:
        self._allowed_hosts = frozenset(allowed_hosts)
        self._max_bytes = max_bytes

    async def execute(
        self,
        arguments: Mapping[str, Any],
        context: ToolContext,  # noqa: ARG002 - the interface
    ) -> ToolOutput:
        """Fetch the URL."""
        import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt

        parsed = read_arguments(FetchArguments, arguments)
        url = _parse_url(parsed.url)
        try:
            for _ in range(MAX_REDIRECTS + 1):
                response = await self._get(url)
                if isinstance(response, FetchedPage):
                    # In a thread, because converting a large page would block the event loop.
                    return await asyncio.to_thread(_page_output, response, is_raw=parsed.raw)
                url = response
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ToolFailedError(f"{url} was not reached: {type(error).__name__}.") from None
        raise ToolFailedError(f"{parsed.url} leads through more than {MAX_REDIRECTS} redirects.")

    def cancel(self) -> bool:
        """Return false: the connection ends with the task."""
        return False

    async def _get(self, url: "URL") -> "FetchedPage | URL":
        """Send one request; return the page, or the URL to which it redirects."""
        import aiohttp  # noqa: PLC0415 - loaded by the first call: it is a sixth of the time to the prompt
        from yarl import URL  # noqa: PLC0415 - loaded with aiohttp

        from metis.tools.web import PinnedResolver, resolve_public  # noqa: PLC0415 - needs aiohttp

        # aiohttp does not follow redirects, so that `execute` checks the address of every step.
        addresses = await resolve_public(url.raw_host or "", url.port or 0, self._allowed_hosts)
        connector = aiohttp.TCPConnector(resolver=PinnedResolver(addresses), use_dns_cache=False)
        async with (
            aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                auto_decompress=False,
                # Without cookies, so that a server cannot recognise the next fetch.
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as client,
            client.get(url, allow_redirects=False, headers=_HEADERS) as response,
        ):
            target = response.headers.get("Location")
            if response.status in _REDIRECT_STATUSES and target:
                return _parse_url(str(url.join(URL(target))))
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise ToolFailedError(f"{url} sends compressed content only.")
            return FetchedPage(
                url,
                response.status,
                response.content_type,
                response.charset or "utf-8",
                await self._read_body(response),
            )

    async def _read_body(self, response: "aiohttp.ClientResponse") -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            # Counted, because the stated length is not trusted.
            if len(body) > self._max_bytes:
                raise ToolFailedError(f"{response.url} has more than {self._max_bytes} bytes.")
        return bytes(body)


def _parse_url(text: str) -> "URL":
    """Parse a URL; one with a login is refused, because URLs are shown and stored.

    Raises:
        ToolFailedError: it is not an http or https URL, or has a login.
    """
    from yarl import URL  # noqa: PLC0415 - loaded with aiohttp

    with suppress(ValueError):
        url = URL(text)
        has_login = url.user is not None or url.password is not None
        if url.scheme in ("http", "https") and url.host and not has_login:
            return url
    reason = "A URL has to be http or https, with a host and without a login."
    raise ToolFailedError(reason, ErrorClass.PERMISSION_DENIED)


def _page_output(page: FetchedPage, *, is_raw: bool) -> ToolOutput:
    is_success = page.status < _FIRST_ERROR_STATUS
    value = {"status": page.status, "url": str(page.url), "bytes": len(page.body)}
    kind = media_type(page.body)
    if kind and is_success:
        block = media_block(page.body, kind, page.url.name or "page")
        return ToolOutput(content=(block,), value=value)
    note = "" if is_success else f"[status {page.status}]\n"
    text = f"{note}{_page_text(page, is_raw=is_raw)}" or "(empty)"
    return text_output(text, success=is_success, value=value)


def _encoding(name: str) -> str:
    """Return the encoding that a server names if it is a known text encoding, else UTF-8."""
    try:
        codec_name = codecs.lookup(name).name
    except (LookupError, ValueError):
        return "utf-8"
    # Other codecs of Python take quadratic time (`punycode`) or decode no text (`zip`).
    return codec_name if codec_name.startswith(_ENCODINGS) else "utf-8"


def _page_text(page: FetchedPage, *, is_raw: bool) -> str:
    if b"\0" in page.body[:8192]:
        raise ToolFailedError(f"{page.url} is a binary file ({page.media_type}).")
    text = page.body.decode(_encoding(page.charset), "replace")
    if not is_raw and page.media_type in ("text/html", "application/xhtml+xml"):
        text = html_to_text(text)
    omitted = len(text) - MAX_CHARACTERS
    return text if omitted <= 0 else f"{text[:MAX_CHARACTERS]}\n[{omitted} characters omitted]"
