"""Partitions that the kernel makes: packets vanish one way or both ways, without a reset, in a network of our own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def entered() -> list[str]:
    """The command that gives a program a network namespace of its own; skips, saying why, where there is none."""
    program = shutil.which("unshare")
    if program is None:
        pytest.skip("no program to make a network namespace: unshare (Debian: util-linux)")
    if shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") is None:
        pytest.skip("no program to lose packets: nft (Debian: nftables)")
    for options in (["--net"], ["--map-root-user", "--net"]):
        if subprocess.run([program, *options, "true"], capture_output=True, check=False).returncode == 0:
            return [program, *options]
    pytest.skip("this machine gives nobody a network namespace of their own")


def in_a_network_of_its_own(name: str, folder: Path) -> None:
    inside = Path(__file__).with_name("chaos_packets.py")
    command = [*entered(), sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", f"{inside}::{name}"]
    done = subprocess.run([*command, f"--basetemp={folder / 'inside'}"], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.system
@pytest.mark.timeout(240)
def test_where_packets_vanish_unseen_nothing_is_lost_doubled_or_accepted_from_an_old_term(tmp_path: Path) -> None:
    in_a_network_of_its_own("test_inside", tmp_path)


@pytest.mark.system
@pytest.mark.timeout(240)
def test_a_gateway_whose_member_of_the_quorum_is_cut_off_from_the_others_closes_and_the_other_region_opens(
    tmp_path: Path,
) -> None:
    in_a_network_of_its_own("test_cut_off", tmp_path)
