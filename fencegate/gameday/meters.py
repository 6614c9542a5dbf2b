"""The gateways' own counters, read off their admin listener and kept over restarts of the process. Parsing is pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from fencegate.gameday.plain_http import NoAnswer, NotSent, ask

_SAMPLE = re.compile(r"^(fencing_rejections_total|fencing_checks_total)\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_counters(exposition: str) -> tuple[Counter[str], Counter[str]]:
    """Rejections by reason, and checks by outcome, out of a Prometheus text; zeros are left out."""
    rejections: Counter[str] = Counter()
    checks: Counter[str] = Counter()
    for name, labels, value in _SAMPLE.findall(exposition):
        found = dict(_LABEL.findall(labels))
        if name == "fencing_rejections_total":
            rejections[found.get("reason", "")] += int(float(value))
        else:
            checks[found.get("outcome", "")] += int(float(value))
    return +rejections, +checks


class Meter:
    """One gateway's counters. A counter that fell belongs to a new process: what the old one said is kept."""

    def __init__(self, admin_url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = f"{admin_url}/metrics"
        self._headers = headers
        self._kept: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._latest: tuple[Counter[str], Counter[str]] = (Counter(), Counter())

    @property
    def rejections(self) -> Counter[str]:
        return self._kept[0] + self._latest[0]

    @property
    def checks(self) -> Counter[str]:
        return self._kept[1] + self._latest[1]

    async def read(self) -> None:
        """Looks once; a gateway that is down leaves things as they are."""
        try:
            answer = await ask("GET", self._url, headers=self._headers, limit=1.0)
        except (NotSent, NoAnswer):
            return
        if answer.status == 200:
            self.take(answer.body.decode("utf-8", "replace"))

    def take(self, exposition: str) -> None:
        fresh = read_counters(exposition)
        if any(fresh[i][name] < count for i in (0, 1) for name, count in self._latest[i].items()):
            self._kept = (self._kept[0] + self._latest[0], self._kept[1] + self._latest[1])
        self._latest = fresh
