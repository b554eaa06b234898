"""Listening sockets of metis: the simulator, the gateway and the viewer."""

import socket


def send_parts_at_once(listening: socket.socket) -> None:
    """Set `TCP_NODELAY`, so that each part of a response is sent as soon as it is written.

    asyncio sets it only for sockets that name their protocol. Without it each part waits for the
    acknowledgement of the previous one, which clients delay by 40 ms.
    """
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
