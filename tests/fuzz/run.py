"""``python -m fuzz.run TARGET [libFuzzer option or corpus ...]``, from ``tests/``: until a limit or a finding.

The target ``all`` is every one of them in one process, told apart by the first byte.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["fencegate"]):
    from fuzz.targets import TARGETS


def each(data: bytes) -> None:
    if data:
        list(TARGETS.values())[data[0] % len(TARGETS)](data[1:])


def main() -> None:
    check = TARGETS.get(sys.argv[1], each)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
