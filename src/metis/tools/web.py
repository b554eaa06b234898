"""Address checks for `fetch_url`, which may only connect to the public internet."""

import asyncio
import ipaddress
import socket
from collections.abc import Collection

from aiohttp.abc import AbstractResolver, ResolveResult

from metis.tools.tool import ErrorClass, ToolFailedError

# The last 32 bits of these addresses are an IPv4 address, to which gateways of NAT64 and SIIT and
# old systems send the packets.
_WITH_IPV4 = tuple(
    ipaddress.IPv6Network(text) for text in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")
)
# Addresses within one organisation that `ipaddress` does not count as private.
_LOCAL = tuple(ipaddress.IPv6Network(text) for text in ("64:ff9b:1::/48", "fec0::/10"))
# Interface identifiers of ISATAP, after which an IPv4 address follows.
_ISATAP = (0x00005EFE, 0x02005EFE)
_IPV4_BITS = 0xFFFFFFFF


def is_public_address(address: str) -> bool:
    """Return whether an address, and every IPv4 address embedded in it, is public.

    Without this check a model could read from the machine itself, its network, or the metadata
    service of a cloud, which returns credentials.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and any(ip in network for network in _LOCAL):
        return False
    return all(part.is_global and not part.is_multicast for part in (ip, *_embedded(ip)))


def _embedded(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses to which a gateway may forward packets of an IPv6 address."""
    if isinstance(ip, ipaddress.IPv4Address):
        return []
    addresses = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if any(ip in network for network in _WITH_IPV4) or int(ip) >> 32 & _IPV4_BITS in _ISATAP:
        addresses.append(ipaddress.IPv4Address(int(ip) & _IPV4_BITS))
    return [address for address in addresses if address is not None]


async def resolve_public(host: str, port: int, allowed: Collection[str]) -> list[ResolveResult]:
    """Resolve a host.

    Raises:
        ToolFailedError: the host does not exist, or has an address that is not public and is not
            allowed.
    """
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

    A second look-up could return others: a hostile name server returns a public address first and
    a private one later (DNS rebinding).
    """

    def __init__(self, addresses: list[ResolveResult]) -> None:
        self._addresses = addresses

    async def resolve(
        self,
        host: str,  # noqa: ARG002 - the interface
        port: int = 0,  # noqa: ARG002 - the interface
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002 - the interface
    ) -> list[ResolveResult]:
        """Return the checked addresses for any host."""
        return self._addresses

    async def close(self) -> None:
        """Do nothing: there is no connection."""
