"""Resolver: the addresses of a host, looked up once and checked before anybody is asked."""

import asyncio
import socket
from collections.abc import Collection

from aiohttp.abc import AbstractResolver, ResolveResult

from metis.tools.address import is_public
from metis.tools.tool import ErrorClass, ToolFailedError


async def resolve(host: str, port: int, allowed: Collection[str]) -> list[ResolveResult]:
    """The addresses of a host; if one of them is not public and the host not allowed, an error."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolFailedError(f"The host {host!r} was not found.") from None
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    if host not in allowed and not all(is_public(address) for _, address in addresses):
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


class Pinned(AbstractResolver):
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
