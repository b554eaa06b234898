"""What `fetch_url` needs of the web: public addresses only, and HTML as text."""

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from html.parser import HTMLParser

from aiohttp.abc import AbstractResolver, ResolveResult

from metis.tools.tool import ErrorClass, ToolFailedError

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_IPV4_BITS = 0xFFFFFFFF
_HIDDEN_TAGS = frozenset({"script", "style", "template", "noscript", "svg", "head"})
_BLOCK_TAGS = frozenset(
    {
        *("p", "div", "br", "li", "tr", "table", "section", "article", "header", "footer", "ul"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "ol", "pre", "blockquote", "nav", "main", "form"),
    }
)


def is_public_address(address: str) -> bool:
    """Return whether an address, and every IPv4 address embedded in it, is on the internet.

    Without this check a model could read from the machine itself, its network, or the metadata
    service of a cloud, which hands out credentials.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    return all(part.is_global and not part.is_multicast for part in (ip, *_embedded(ip)))


def _embedded(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses to which the network may pass on packets for an IPv6 address."""
    if isinstance(ip, ipaddress.IPv4Address):
        return []
    addresses = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64:
        addresses.append(ipaddress.IPv4Address(int(ip) & _IPV4_BITS))
    return [address for address in addresses if address is not None]


async def resolve_public(host: str, port: int, allowed: Collection[str]) -> list[ResolveResult]:
    """Resolve a host; refuse one with an address that is not public, unless it is allowed."""
    loop = asyncio.get_running_loop()
    try:
        results = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolFailedError(f"The host {host!r} was not found.") from None
    addresses = [(family, str(address[0])) for family, _, _, _, address in results]
    if host not in allowed and not all(is_public_address(address) for _, address in addresses):
        text = f"The host {host!r} is not on the public internet; fetching from it is not allowed."
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
    """Returns the addresses that were checked.

    A second look-up could return others: a host that answers with a public address first and with
    a private one then (DNS rebinding).
    """

    def __init__(self, addresses: list[ResolveResult]) -> None:
        self._addresses = addresses

    async def resolve(
        self,
        host: str,  # noqa: ARG002 - the interface
        port: int = 0,  # noqa: ARG002 - the interface
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002 - the interface
    ) -> list[ResolveResult]:
        """Return the checked addresses, whatever is asked."""
        return self._addresses

    async def close(self) -> None:
        """Do nothing; nothing is open."""


class _TextParser(HTMLParser):
    """Collects the text of a page, one line for each block element."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN_TAGS:
            self._hidden.append(tag)
        elif tag in _BLOCK_TAGS:
            self.parts.append("\n")
        if tag == "a" and not self._hidden:
            link = dict(attrs).get("href") or ""
            self.parts.append(f"[{link}] " if link.startswith(("http:", "https:")) else "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            while self._hidden.pop() != tag:
                continue
        elif tag in _BLOCK_TAGS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def html_to_text(html: str) -> str:
    """Return the text of a page without its markup; the URL of a link stands before its text."""
    parser = _TextParser()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).splitlines())
    return "\n".join(line for line in lines if line)
