"""The migrations of a store in portability mode: the plain ones less what only Postgres has, ``migrations/portable/``.

What is left is one text, so that a rule is stated once. It needs PL/pgSQL (records of a table's type, arrays, blocks
with ``EXCEPTION``), triggers with ``WHEN``, ``GENERATED ALWAYS AS IDENTITY``, ``gen_random_uuid()`` and Postgres'
functions on ``bytea``. It needs no advisory lock, no ``NOTIFY``, no deferred trigger, no prepared transaction, no
unlogged table and no word of the server about itself.
"""

from __future__ import annotations

import re
from typing import Final

_NOT_NEEDED: Final = frozenset(
    {
        *("0002_create_election", "0003_create_candidates", "0004_add_floor"),  # the election is elsewhere
        "0005_create_guard",
        "0006_find_rollback",
    }
)
_FUNCTIONS_OF_ITS_OWN: Final = {
    "0001_create_fence": ("read_system_identifier", "incarnation", "unsafe_setting", "require_safe_session"),
}
"""Left out of a migration; those that others call are made anew in ``migrations/portable/``."""
_MADE_ANEW: Final = re.compile(
    r"^CREATE (?:OR REPLACE )?FUNCTION fencegate\."
    r"(read_system_identifier|incarnation|unsafe_setting|require_safe_session|guard|protect|unless_gone_back|has_gone_back)\(",
    re.MULTILINE,
)


def portable(name: str, text: str) -> str | None:
    """What a store in portability mode takes of the plain migration ``name``; ``None``: nothing."""
    if name in _NOT_NEEDED:
        return None
    for function in _FUNCTIONS_OF_ITS_OWN.get(name, ()):
        statement = rf"^CREATE FUNCTION fencegate\.{function}\(.*?^(?:END )?\$\$;\n"
        text, found = re.subn(statement, "", text, flags=re.MULTILINE | re.DOTALL)
        if found != 1:
            raise RuntimeError(f"migration {name} makes the function {function} {found} times, not once")
    if again := _MADE_ANEW.search(text):
        raise RuntimeError(f"migration {name} makes the function {again[1]}, of which portability mode has its own")
    return text
