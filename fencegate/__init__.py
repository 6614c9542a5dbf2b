"""fencegate: a fencing-token enforcement gateway.

A quorum elects one leader; every privileged write carries the leader's fencing token; the
protected store itself refuses a stale one, in the transaction of the write.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fencegate")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
