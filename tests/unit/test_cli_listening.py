"""A data port that several workers share: a set of sockets each, spread by the kernel, taken from nobody."""

from __future__ import annotations

import socket
import sys

import pytest

from fencegate.cli.listening import SharedPort, close_all

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux spreads connections over sockets")


def test_every_set_listens_on_the_one_port_and_new_connections_reach_each() -> None:
    port = SharedPort("127.0.0.1", 0)
    sets = [port.sockets() for _ in range(4)]
    clients = [socket.create_connection(("127.0.0.1", port.port), 5) for _ in range(100)]
    try:
        taken = []
        for (listening,) in sets:
            listening.setblocking(False)
            taken.append(0)
            while True:
                try:
                    listening.accept()[0].close()
                except BlockingIOError:
                    break
                taken[-1] += 1
        assert sum(taken) == 100
        assert min(taken) >= 5, "the chance of fewer is below one in a million"
    finally:
        close_all(clients)
        for each in sets:
            close_all(each)


def test_a_port_that_listens_is_taken_also_where_its_owner_would_share_it() -> None:
    first = SharedPort("127.0.0.1", 0)
    held = first.sockets()
    with pytest.raises(OSError, match="in use"):
        SharedPort("127.0.0.1", first.port)
    close_all(held)
    close_all(SharedPort("127.0.0.1", first.port).sockets())


def test_a_name_of_several_addresses_has_one_port_at_all_of_them() -> None:
    port = SharedPort("localhost", 0)
    sockets = port.sockets()
    assert {each.getsockname()[1] for each in sockets} == {port.port}
    close_all(sockets)
