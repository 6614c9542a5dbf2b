"""Settings as data: a TOML file, ``FENCEGATE_*`` variables and flags, in rising order of precedence.

Nothing here reads a file or the environment: texts and mappings are arguments, and whatever is
wrong with them comes back at once, as :class:`fencegate.errors.ConfigurationError`.

* ``layers.py`` turns each source into a tree of values that remembers where each value came from.
* ``settings.py`` is the shape: every key, its default, what is expected of it.
* ``routes.py`` is the grammar of a route: path, role, members, target.
* ``stores.py`` is the rule by which several stores share the roles; ``several_stores.py`` is what follows from it.
* ``portability.py`` has the rules for a store that is no Postgres.
* ``parsing.py`` joins them: faults that name key, value, expectation and origin.
* ``reloading.py`` says which keys can change while the process runs.
"""

from fencegate.config.layers import Flag
from fencegate.config.limits import IdempotencySettings, LimitSettings, LogSettings
from fencegate.config.parsing import UNADVERTISED, parse
from fencegate.config.reloading import differences, faults_of_halves, same_roles, taken
from fencegate.config.routes import Target, role_members, role_parameters
from fencegate.config.settings import (
    AdminSettings,
    ElectionSettings,
    ListenSettings,
    RouteSettings,
    Settings,
)
from fencegate.config.store import StoreSettings, TlsSettings

__all__ = [
    "UNADVERTISED",
    "AdminSettings",
    "ElectionSettings",
    "Flag",
    "IdempotencySettings",
    "LimitSettings",
    "ListenSettings",
    "LogSettings",
    "RouteSettings",
    "Settings",
    "StoreSettings",
    "Target",
    "TlsSettings",
    "differences",
    "faults_of_halves",
    "parse",
    "role_members",
    "role_parameters",
    "same_roles",
    "taken",
]
