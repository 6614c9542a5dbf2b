"""How a client retries: where it may go, how long it waits, how many retries it has left. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Policy:
    """How a client retries. Durations are seconds; ``origins`` are in normal form, at least one."""

    origins: tuple[str, ...]
    try_timeout: float = 10.0
    max_tries: int = 20
    max_hops: int = 2
    backoff_base: float = 0.1
    backoff_cap: float = 2.0
    retry_after_cap: float = 15.0

    def may_go(self, source: str | None, target: str | None) -> bool:
        """Only to an origin of the list, and never from https down to http."""
        if target is None or target not in self.origins:
            return False
        return not (source is not None and source.startswith("https:") and target.startswith("http:"))

    def next_origin(self, origin: str | None) -> str | None:
        """The next of the list that may be gone to; the same where there is no other."""
        start = self.origins.index(origin) + 1 if origin in self.origins else 0
        around = self.origins[start:] + self.origins[:start]
        return next((other for other in around if self.may_go(origin, other)), origin)

    def pause(self, earlier: int, retry_after: float | None, jitter: float) -> float:
        """Full jitter over a window that doubles with ``earlier``, on top of what the server asked for (capped).

        The window is at least half of what was asked for: who were refused in one instant come back over a while.
        """
        asked = min(retry_after or 0.0, self.retry_after_cap)
        window = min(self.backoff_cap, max(asked / 2, self.backoff_base * (1 << min(earlier, 30))))
        return asked + jitter * window

    def spread(self, jitter: float) -> float:
        """A little jitter before a free try, so that a whole population does not move in one instant."""
        return jitter * self.backoff_base


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """A token bucket: each operation earns ``ratio`` of a retry, ``burst`` may be saved up."""

    ratio: float = 0.1
    burst: float = 10.0
    left: float = 10.0

    def earned(self) -> RetryBudget:
        return replace(self, left=min(self.burst, self.left + self.ratio))

    def spent(self, cost: int) -> RetryBudget:
        return replace(self, left=max(0.0, self.left - cost))
