"""What `fetch_url` needs of the web: public addresses only, and HTML as text."""

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from html.parser import HTMLParser

from aiohttp.abc import AbstractResolver, ResolveResult

from metis.tools.tool import ErrorClass, ToolFailedError

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LAST_FOUR_BYTES = 0xFFFFFFFF


def is_public_address(address: str) -> bool:
    """Whether an address belongs to the open internet, and so do those that are packed into it."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return all(part.is_global and not part.is_multicast for part in (ip, *_packed(ip)))


def _packed(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses to which something sent to an IPv6 address may be passed on."""
    if isinstance(ip, ipaddress.IPv4Address):
        return []
    found = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64:
        found.append(ipaddress.IPv4Address(int(ip) & _LAST_FOUR_BYTES))
    return [address for address in found if address is not None]


async def resolve_public(host: str, port: int, allowed: Collection[str]) -> list[ResolveResult]:
    """The addresses of a host; if one of them is not public and the host not allowed, an error."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolFailedError(f"The host {host!r} was not found.") from None
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    if host not in allowed and not all(is_public_address(address) for _, address in addresses):
        text = f"The host {host!r} is not on the open internet, and may not be asked."
        raise ToolFailedError(text, ErrorClass.PERMISSION_DENIED)
    return [
        ResolveResult(
            hostname=host,
            host=address,
            port=port,
            family=family,
            proto=0,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for family, address in addresses
    ]


class PinnedResolver(AbstractResolver):
    """Gives the addresses that were checked, so that a second look-up cannot give others."""

    def __init__(self, addresses: list[ResolveResult]) -> None:
        self._addresses = addresses

    async def resolve(
        self,
        host: str,  # noqa: ARG002 - the interface
        port: int = 0,  # noqa: ARG002 - the interface
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002 - the interface
    ) -> list[ResolveResult]:
        """The checked addresses, whatever is asked."""
        return self._addresses

    async def close(self) -> None:
        """Nothing is held open."""


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


def html_to_text(html: str) -> str:
    """The text of a page without its markup; links to other pages stand before their words."""
    words = _Words()
    words.feed(html)
    words.close()
    lines = (" ".join(line.split()) for line in "".join(words.parts).splitlines())
    return "\n".join(line for line in lines if line)
