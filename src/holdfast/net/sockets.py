"""Socket options that detect a silent network partition within seconds instead of many minutes."""

from __future__ import annotations

import socket

UNACKNOWLEDGED_SECONDS = 5
KEEPALIVE_IDLE_SECONDS, KEEPALIVE_PAUSE_SECONDS, KEEPALIVE_COUNT = 2, 1, 3


def detect_partitions(sock: socket.socket | None) -> None:
    """Fail a TCP connection whose peer acknowledges nothing: data for five seconds, or keep-alive probes while idle.

    A worker must detect a partition within a lease, and use a fresh connection when the network is back: on an old one
    the kernel retransmits ever more rarely. Options that this system does not have are left out.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_SECONDS * 1000),
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_PAUSE_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
    ):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
