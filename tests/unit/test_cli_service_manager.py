"""What a service manager is told, over a real datagram socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencegate.cli.service_manager import ServiceManager
from fencegate.testing.virtual_time import run_in_virtual_time


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


def heard(listener: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(listener.recv(4096).decode())
        except BlockingIOError:
            return found


def test_it_tells_when_requests_are_taken_and_when_the_end_begins(listening: socket.socket) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": listening.getsockname()}, 7)
    manager.ready("requests at\nhttp://127.0.0.1:8080")
    manager.stopping("SIGTERM")
    assert heard(listening) == [
        "READY=1\nSTATUS=requests at http://127.0.0.1:8080",
        "STOPPING=1\nSTATUS=SIGTERM",
    ]
    assert manager.watchdog_period is None


def test_an_abstract_socket_is_one_whose_name_begins_with_an_at() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # the kernel chooses an abstract name
        listener.setblocking(False)
        name = listener.getsockname().decode()
        ServiceManager({"NOTIFY_SOCKET": "@" + name[1:]}, 7).ready("up")
        assert heard(listener) == ["READY=1\nSTATUS=up"]


def test_signs_of_life_come_three_times_within_the_managers_limit(listening: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": listening.getsockname(), "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}
    manager = ServiceManager(environment, 7)
    assert manager.watchdog_period == 10.0

    async def story() -> None:
        task = asyncio.create_task(manager.say_alive())
        await asyncio.sleep(35)
        task.cancel()

    run_in_virtual_time(story())
    assert heard(listening) == ["WATCHDOG=1"] * 4


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "30000000"},
        {"NOTIFY_SOCKET": "/nobody/listens", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"},
        {"NOTIFY_SOCKET": "/nobody/listens", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nobody/listens", "WATCHDOG_USEC": "0"},
    ],
)
def test_without_a_manager_that_asks_nothing_is_told_and_nothing_fails(environment: dict[str, str]) -> None:
    manager = ServiceManager(environment, 7)
    manager.ready("up")
    manager.stopping("down")
    run_in_virtual_time(manager.say_alive())
    assert manager.watchdog_period is None
