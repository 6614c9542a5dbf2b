"""A part of a core for a process and no more (control groups, version 1 or 2; needs root): idle cores on two.

Processes that are held to a quarter of a core each behave as on cores of a quarter of the speed, while the load
generator and the servers around them have what they need.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 10_000


@contextlib.contextmanager
def held(pids: list[int], cores: float) -> Iterator[None]:
    """Each of the processes gets ``cores`` of a core. Raises ``RuntimeError`` where that cannot be had here."""
    quota = round(_PERIOD_US * cores)
    old = _ROOT / "cpu"
    base = old if (old / "cgroup.procs").exists() else _ROOT
    with contextlib.ExitStack() as stack:
        for pid in pids:
            group = base / f"fencegate-bench-{pid}"
            try:
                group.mkdir()
                stack.callback(_give_up, group, base)
                if base == old:
                    (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                    (group / "cpu.cfs_quota_us").write_text(str(quota))
                else:
                    (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
                (group / "cgroup.procs").write_text(str(pid))
            except OSError as error:
                raise RuntimeError(f"no control group for a part of a core can be made here: {error}") from None
        yield


def _give_up(group: Path, base: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (base / "cgroup.procs").write_text(pid)
    group.rmdir()
