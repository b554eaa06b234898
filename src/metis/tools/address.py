"""Addresses: which hosts on the network may be asked."""

import ipaddress

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LAST_FOUR_BYTES = 0xFFFFFFFF


def is_public(address: str) -> bool:
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
