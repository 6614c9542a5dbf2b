"""Which proofs were used already, as one process remembers it and as all those of a machine do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from fencegate.errors import ConfigurationError, Unavailable
from fencegate.middleware.used_proofs import FolderMemory, ProcessMemory, ProofMemory

START = 1_796_000_000.0
LIFE = 15.0


class Wall:
    """A clock on the wall that is moved by hand."""

    now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture(params=["process", "folder"])
def memory(request: pytest.FixtureRequest, tmp_path: Path, wall: Wall) -> ProofMemory:
    return ProcessMemory(wall) if request.param == "process" else FolderMemory(tmp_path / "used", wall=wall)


@pytest.fixture
def folder(tmp_path: Path, wall: Wall) -> Callable[[], FolderMemory]:
    """Another worker's memory, in the same folder."""
    return lambda: FolderMemory(tmp_path / "used", wall=wall)


def mark(number: int) -> str:
    return f"{number:032x}"


def test_a_mark_is_used_for_the_first_time_once(memory: ProofMemory, wall: Wall) -> None:
    until = wall.now + LIFE
    assert memory.first_use(mark(1), until)
    assert memory.first_use(mark(2), until)
    for _ in range(15):
        assert not memory.first_use(mark(1), until)
        wall.now += 0.99


def test_what_cannot_be_used_any_more_is_forgotten(memory: ProofMemory, tmp_path: Path, wall: Wall) -> None:
    for number in range(500):
        assert memory.first_use(mark(number), wall.now + LIFE)
        wall.now += 1.0
    kept = len(memory) if isinstance(memory, ProcessMemory) else len(list(tmp_path.rglob(mark(0)[:16] + "*")))
    assert kept <= LIFE + 4


@pytest.mark.parametrize("step", [1.0, 3600.0])
def test_where_the_clock_goes_back_nothing_that_was_forgotten_is_taken_for_new(
    memory: ProofMemory, wall: Wall, step: float
) -> None:
    used = [(mark(number), wall.now + LIFE + number / 10) for number in range(20)]
    for each in used:
        assert memory.first_use(*each)
    wall.now += LIFE + 5 + step
    for number in range(100, 120):
        assert memory.first_use(mark(number), wall.now + LIFE)
    wall.now -= LIFE + 4 + step
    for each in used:
        with suppress(Unavailable):
            assert not memory.first_use(*each)
    assert memory.first_use(mark(200), wall.now + LIFE + 5), "and it goes on"


# -- all processes of a machine ------------------------------------------------------------------------

_FORKED = """
import os, sys, time
from fencegate.middleware import FolderMemory
memory = FolderMemory(sys.argv[1])
for worker in range(4):
    if os.fork() == 0:
        until = float(sys.argv[2])
        won = [number for number in range(300) if memory.first_use(f"{number:032x}", until + number % 3)]
        os.write(1, (" ".join(map(str, won)) + "\\n").encode())
        os._exit(0)
for worker in range(4):
    assert os.wait()[1] == 0
"""


def test_of_processes_that_race_for_a_mark_forked_or_not_one_wins(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _FORKED, str(tmp_path / "used"), str(time.time() + 60)]
    racing = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in racing]
    assert [process.returncode for process in racing] == [0, 0]
    assert Counter(int(word) for word in " ".join(said).split()) == dict.fromkeys(range(300), 1)


def test_of_threads_that_race_for_a_mark_one_wins(memory: ProofMemory, wall: Wall) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: memory.first_use(mark(number // 8), wall.now + LIFE), range(800)))
    assert won.count(True) == 100


def test_what_one_worker_took_another_does_not_nor_one_that_was_started_anew(
    folder: Callable[[], FolderMemory], wall: Wall
) -> None:
    until = wall.now + LIFE
    assert folder().first_use(mark(1), until)
    other = folder()
    assert not other.first_use(mark(1), until)
    assert other.first_use(mark(2), until)


@pytest.mark.parametrize("made_anew", [False, True], ids=["swept", "swept and made anew by another sleeper"])
@pytest.mark.parametrize("frozen_before", ["mkdir", "open"])
def test_who_was_frozen_until_the_mark_was_swept_away_does_not_take_it(
    folder: Callable[[], FolderMemory],
    tmp_path: Path,
    wall: Wall,
    monkeypatch: pytest.MonkeyPatch,
    frozen_before: str,
    made_anew: bool,
) -> None:
    sleeper, awake, until = folder(), folder(), wall.now + LIFE
    assert awake.first_use(mark(1), until)
    act = getattr(os, frozen_before)

    def late(path: object, *rest: object, **options: object) -> object:
        monkeypatch.undo()
        wall.now += 60.0
        assert awake.first_use(mark(2), wall.now + LIFE)  # It sweeps what is over.
        if made_anew:
            (tmp_path / "used" / f"{int(until) + 1:012d}").mkdir()
        return act(path, *rest, **options)

    monkeypatch.setattr(os, frozen_before, late)
    with pytest.raises(Unavailable):
        sleeper.first_use(mark(1), until)


def test_a_clock_that_goes_back_opens_a_swept_second_to_nobody_who_knew_it_before_either(
    folder: Callable[[], FolderMemory], wall: Wall
) -> None:
    idle, sweeper, stranger, until = folder(), folder(), folder(), wall.now + LIFE
    assert idle.first_use(mark(1), until)
    wall.now += 60.0
    assert sweeper.first_use(mark(2), wall.now + LIFE)
    wall.now -= 60.0
    with pytest.raises(Unavailable, match="gone back"):
        stranger.first_use(mark(1), until)
    with pytest.raises(Unavailable):
        idle.first_use(mark(1), until)


def test_where_nothing_can_be_kept_nothing_is_taken(
    folder: Callable[[], FolderMemory], tmp_path: Path, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = folder()

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        with pytest.raises(Unavailable, match=r"cannot write in .*used: No space left on device"):
            memory.first_use(mark(1), wall.now + LIFE)
    assert memory.first_use(mark(1), wall.now + LIFE)
    shutil.rmtree(tmp_path / "used")
    os.mkdir(tmp_path / "used", 0o700)
    with pytest.raises(Unavailable):
        memory.first_use(mark(1), wall.now + LIFE)
    assert folder().first_use(mark(1), wall.now + LIFE), "a restart opens it again"


def test_a_process_keeps_so_many_and_no_more_until_some_are_forgotten(tmp_path: Path, wall: Wall) -> None:
    memory = FolderMemory(tmp_path / "used", most=3, wall=wall)
    for number in range(3):
        assert memory.first_use(mark(number), wall.now + LIFE + number)
    with pytest.raises(Unavailable, match="3 of them already"):
        memory.first_use(mark(3), wall.now + LIFE)
    wall.now += LIFE + 3
    assert memory.first_use(mark(4), wall.now + LIFE)


def test_a_folder_that_cannot_be_used_is_a_fault_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for path, words in ((tmp_path / "file", "cannot write in"), (tmp_path / "open", "others may write in")):
        with pytest.raises(ConfigurationError, match=words):
            FolderMemory(path)
    with pytest.raises(ConfigurationError, match="most = 0"):
        FolderMemory(tmp_path / "new", most=0)
    FolderMemory(tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").stat().st_mode & 0o777 == 0o700
