"""One fenced write with requests: ``with_requests.py ROLE PATH KEY JSON ORIGIN...``, exit codes as ``write.sh``."""

from __future__ import annotations

import random
import sys
import time

import requests


class NotApplied(Exception):
    """The write is not in the store and never will be."""


class Unknown(Exception):
    """The write may have been applied: ask again with the same key."""


def write(role: str, path: str, key: str, json: str, origins: list[str], tries: int = 6) -> requests.Response:
    """The target's answer. Raises :class:`NotApplied` or :class:`Unknown`."""
    session = requests.Session()  # Its adapters retry nothing by themselves: leave it at that.
    unknown, why, wait = False, "nobody leads", 0.0
    for _ in range(tries):
        time.sleep(wait)
        wait = random.uniform(1.0, 1.5)
        leader, token = discovered(session, role, origins)
        if leader not in origins:  # Nothing else is ever sent to, whoever names it.
            why = f"not one of the origins given: {leader}" if leader else why
            continue
        try:
            answer = session.post(
                leader + path,
                data=json.encode(),
                headers={"X-Fencing-Token": token, "Idempotency-Key": key, "Content-Type": "application/json"},
                timeout=10,
                allow_redirects=False,
            )
        except requests.ConnectTimeout:
            continue
        except requests.RequestException as lost:
            unknown, why = True, str(lost)
            continue
        outcome, applied = answer.headers.get("X-Fencing-Outcome"), answer.headers.get("X-Fencing-Applied")
        if outcome == "accepted":
            return answer
        why = answer.text
        if outcome is None or applied != "no":  # Not the gateway's answer, or it does not know either.
            unknown = True
        elif answer.headers.get("X-Fencing-Retry") == "never":
            break
        after = answer.headers.get("Retry-After", "")
        wait = max(wait, min(15.0, float(after))) if after.isdigit() else wait
    raise (Unknown if unknown else NotApplied)(why)


def discovered(session: requests.Session, role: str, origins: list[str]) -> tuple[str, str]:
    """Who leads, and the token of the term, by the first gateway that can tell; else two empty words."""
    for origin in origins:
        try:
            found = session.get(f"{origin}/.well-known/fencegate/leader/{role}", timeout=2, allow_redirects=False)
        except requests.RequestException:
            continue
        if found.status_code == 200 and "X-Fencing-Region" in found.headers:
            document = found.json()
            return str(document["leader"]["url"]), str(document["token"])
    return "", ""


def main(role: str, path: str, key: str, json: str, *origins: str) -> int:
    try:
        answer = write(role, path, key, json, list(origins))
    except Unknown as unknown:
        print(f"not known: ask again with the key {key}: {unknown}", file=sys.stderr)
        return 75
    except NotApplied as refused:
        print(f"not applied: {refused}", file=sys.stderr)
        return 1
    print(answer.text)
    return 0 if answer.ok else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
