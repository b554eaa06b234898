"""Listening sockets of metis: the simulator, the gateway and the viewer."""

import socket


def send_parts_at_once(listening: socket.socket) -> None:
    """Let the connections of a socket send each part of an answer as soon as it is written.

    asyncio sets this only for sockets that name their protocol. Without it each part waits for the
    acknowledgement of the one before it, which takes clients 40 ms.
    """
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
