"""Snapshots of an embedded etcd, saved and restored by etcd's own programs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from fencegate.embedded.binaries import etcd_binary
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.process import EmbeddedServerError


def save(cluster: EmbeddedEtcd, snapshot: Path) -> None:
    """Into a new file, from the first member that answers. Raises :class:`EmbeddedServerError` where none does."""
    problems = []
    for endpoint in cluster.endpoints:
        snapshot.unlink(missing_ok=True)
        try:
            return _run("etcdctl", "--endpoints", endpoint, "snapshot", "save", snapshot)
        except EmbeddedServerError as error:
            problems.append(str(error))
    raise EmbeddedServerError(f"no member gives a snapshot: {problems[-1]}")


def restore(cluster: EmbeddedEtcd, snapshot: Path) -> None:
    """Into every member, each of which is down. Raises :class:`EmbeddedServerError`."""
    ports = json.loads((cluster.directory / "cluster.json").read_text("utf-8"))["ports"]
    members = {f"node-{index}": f"http://127.0.0.1:{peer}" for index, (_, peer) in enumerate(ports)}
    for name, peer_url in members.items():
        data = cluster.directory / name / "data"
        shutil.rmtree(data, ignore_errors=True)
        _run(
            *("etcdutl", "snapshot", "restore", snapshot, "--data-dir", data, "--name", name),
            *("--initial-cluster", ",".join(f"{each}={url}" for each, url in members.items())),
            *("--initial-cluster-token", "restored", "--initial-advertise-peer-urls", peer_url),
        )


def _run(name: str, *arguments: object) -> None:
    """Snapshots are restored by etcdutl from 3.5 on, by etcdctl before."""
    program = etcd_binary().parent / name
    if not program.exists():
        program = etcd_binary().parent / "etcdctl"
    try:
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=10)
    except subprocess.TimeoutExpired as error:
        raise EmbeddedServerError(f"{name} does not end") from error
    if done.returncode != 0:
        raise EmbeddedServerError(f"{name}: {done.stderr.strip()}")
