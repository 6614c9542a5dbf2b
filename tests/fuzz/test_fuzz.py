"""Every reader of bytes from outside against its corpus, and for a few seconds against what a fuzzer makes of it.

``make fuzz SECONDS=300`` shares that among them, and draws anew each time. What a finding shows belongs into its folder
of the corpus.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
LONG = "FENCEGATE_FUZZ_SECONDS" in os.environ
SECONDS = int(os.environ.get("FENCEGATE_FUZZ_SECONDS", "10"))
EACH = -(-SECONDS // len(TARGETS)) if LONG else SECONDS
SEED = os.environ.get("FENCEGATE_FUZZ_SEED", "1")
"""The same each time unless told otherwise: who runs the suite for something else need not stumble over a finding."""
WORDS = Path(__file__).parent / "words.dict"
"""What the fuzzer may put in: the words of HTTP and of the systems' answers."""


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_finds_nothing(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs, "no corpus"
    for path in inputs:
        data = path.read_bytes()
        for end in (len(data), len(data) // 2):
            TARGETS[name](data[:end])


@pytest.mark.timeout(120 + SECONDS)
@pytest.mark.parametrize("name", TARGETS if LONG else ["all"])
def test_a_fuzzer_finds_nothing_new(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this Python or platform")
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for place, each in enumerate(TARGETS):
        for path in (CORPUS / each).iterdir():
            if name in ("all", each):
                first = bytes([place]) if name == "all" else b""
                (seeds / f"{each}-{path.name}").write_bytes(first + path.read_bytes())
    root = CORPUS.parents[2]
    run = subprocess.run(
        [
            *(sys.executable, "-m", "fuzz.run", name, str(tmp_path), str(seeds)),
            *(
                f"-seed={SEED}",
                f"-max_total_time={EACH}",
                "-max_len=4096",
                f"-dict={WORDS}",
                f"-artifact_prefix={tmp_path}/finding-",
            ),
        ],
        cwd=root / "tests",
        env=os.environ | {"PYTHONPATH": f"{root}:{root / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    findings = {path.name: path.read_bytes() for path in tmp_path.glob("finding-*")}
    assert run.returncode == 0, (findings, run.stderr[-4000:])
    assert "Done " in run.stderr
