"""``python -m bench [--quick] [question …]``: run the measurements, print the table, write ``results/``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from bench.chart import svg
from bench.rounds import Answer, micros
from bench.servers import one_postgres

QUESTIONS = (
    "ledger_writes",
    "naive_gateway",
    "http_target",
    "uploads",
    "stale_storm",
    "isolation",
    "new_leader",
    "idle_connections",
    "many_roles",
    "many_gateways",
    "many_entries",
    "workers",
    "validate",
)
ASKED_FOR = ("pythons",)
"""Only by name: what they compare with is not on every machine."""
RESULTS = Path(__file__).parent / "results"
NEEDS = ("wrk", "nginx")


def machine() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    cores = Path("/proc/cpuinfo").read_text().count("processor\t")
    return (
        f"{cores} cores ({model}) at a load of {os.getloadavg()[0]:.0f}, "
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    )


def table(found: list[Answer]) -> str:
    lines = [
        "| question | ours | peer | ratio (range) | goal | CPU µs a request |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for answer in found:
        cpu = "; ".join(
            f"{who} " + ", ".join(f"{name} {value:.0f}" for name, value in micros(runs).items())
            for who, runs in (("ours:", answer.ours), ("peer:", answer.peer))
            if micros(runs)
        )
        form = "{:,.0f}" if answer.unit in ("/s", " MiB/s") else "{:,.2f}"
        ours, peer = (
            form.format(answer.middle(runs)) + answer.unit if runs else "–" for runs in (answer.ours, answer.peer)
        )
        ratio = f"**{answer.ratio:.2f}** ({min(answer.ratios):.2f}–{max(answer.ratios):.2f})"
        lines.append(f"| {answer.question} | {ours} | {peer} | {ratio} | {answer.goal} | {cpu} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[*QUESTIONS, *ASKED_FOR, []], help="only these")
    parser.add_argument("--quick", action="store_true", help="about two minutes; the ratios are rougher")
    parser.add_argument("--rounds", type=int, default=0)
    options = parser.parse_args()
    missing = [program for program in NEEDS if shutil.which(program) is None]
    if missing:
        sys.exit(f"The measurements need {' and '.join(missing)}: apt-get install {' '.join(missing)}")
    rounds, seconds = (2, 1.0) if options.quick else (6, 5.0)
    found: list[Answer] = []
    unanswered: list[str] = []
    RESULTS.mkdir(exist_ok=True)
    with one_postgres() if options.quick else contextlib.nullcontext():
        for name in options.questions or QUESTIONS:
            began = time.monotonic()
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                answered = import_module(f"bench.{name}").run(options.rounds or rounds, seconds)
            except Exception:  # What was measured before it is not thrown away for it.
                traceback.print_exc()
                unanswered.append(name)
                continue
            found += answered
            document = {
                "machine": machine(),
                "load": os.getloadavg()[0],
                "seconds_a_run": seconds,
                "answers": [a.document() for a in answered],
            }
            (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    written = [path for name in QUESTIONS if (path := RESULTS / f"{name}.json").exists()]
    if written:  # of those before too, so that the picture shows what the files say
        (RESULTS / "ratios.svg").write_text(
            svg([a for path in written for a in json.loads(path.read_text())["answers"]])
        )
    print(machine())
    print(table(found))
    if unanswered:
        sys.exit(f"without an answer: {', '.join(unanswered)}")


if __name__ == "__main__":
    main()
