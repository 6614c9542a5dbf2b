"""What several unit tests stand on."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def two_stores(tmp_path: Path) -> Path:
    """A configuration file of two stores: ``north`` has the role ``ledger``, ``south`` the role ``shards/1``."""
    path = tmp_path / "fencegate.toml"
    path.write_text(
        'node = "n"\nregion = "r"\nadvertise = "https://r.example"\n[election]\nsource = "etcd"\n'
        'endpoints = ["http://e:1"]\n[[store]]\nname = "north"\ndsn = "postgresql://n/l"\nroles = ["ledger"]\n'
        '[[store]]\nname = "south"\ndsn = "postgresql://s/l"\nroles = ["shards/*"]\n'
        '[[route]]\npath = "/e"\nrole = "ledger"\ntarget = "ledger"\n'
        '[[route]]\npath = "/s"\nrole = "shards/1"\ntarget = "ledger"\n'
    )
    return path
