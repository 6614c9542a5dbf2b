"""A report as one HTML page: self-contained, without scripts, readable in print and in the dark. Pure.

Whatever a client, a gateway or a scenario's author can write is shown as text only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from fencegate.gameday import report_pictures

Document = Mapping[str, Any]

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--quiet:#5b6570;--line:#d5dae0;--good:#116329;--bad:#b3261e;
--h0:#2f6fbf;--h1:#c7761a;--h2:#6b4fa0;--h3:#2b8a7c;--h4:#8a8f98}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--paper:#14171b;--quiet:#9aa4af;--line:#343a42;--good:#5bd17f;
--bad:#ff8078;--h0:#6ea8f0;--h1:#e8a04c;--h2:#ab90e0;--h3:#5cc4b4;--h4:#a3a9b2}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:24px}h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.4rem 0}.quiet{color:var(--quiet)}.verdict{font-size:1.25rem;font-weight:700;border:3px solid;
border-radius:6px;padding:.6rem .9rem;margin:1rem 0}.pass{color:var(--good)}.fail{color:var(--bad)}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.25rem .8rem .25rem 0;
border-bottom:1px solid var(--line);overflow-wrap:anywhere}td.n,th.n{text-align:right;white-space:nowrap}
td.mark{white-space:nowrap;font-weight:700}
svg{display:block;width:100%;height:auto;font:11px system-ui,sans-serif}svg text{fill:var(--ink)}
.bar.h0{fill:var(--h0)}.bar.h1{fill:var(--h1)}.bar.h2{fill:var(--h2)}.bar.h3{fill:var(--h3)}.bar.h4{fill:var(--h4)}
.bar.late{fill:var(--bad)}.grid{stroke:var(--line)}.mark{stroke:var(--quiet);stroke-dasharray:3 3}
.limit{stroke:var(--ink);stroke-width:2}.line{fill:none;stroke:var(--ink);stroke-width:2.5}
.band{height:74px;fill:var(--bad);opacity:.25}.times .bar{opacity:.45}
.legend{list-style:none;padding:0;margin:.2rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.4em}
.key.h0{background:var(--h0)}.key.h1{background:var(--h1)}.key.h2{background:var(--h2)}.key.h3{background:var(--h3)}
.key.h4{background:var(--h4)}code{overflow-wrap:anywhere}.bad{color:var(--bad)}.good{color:var(--good)}
.act{font-weight:600}
@media print{main{max-width:none;padding:0}section{break-inside:avoid}.bar,.key,.band{print-color-adjust:exact}
.timeline{break-inside:auto}}
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(document: Document) -> str:
    """The whole page."""
    title = f"Game day: {document['scenario']['title']}"
    sections = "".join(f"<section>{section}</section>" for section in _sections(document))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_text(_POLICY)}">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>{sections}</main></body></html>"
    )


def _sections(document: Document) -> Iterator[str]:
    yield _head(document)
    yield "<h2>What was looked at</h2>" + _checks(document["checks"])
    if document["violations"]:
        yield "<h2>What does not hold together</h2>" + "".join(_violation(v) for v in document["violations"])
    yield "<h2>Rejections, and the tail</h2>" + _tail_words(document) + report_pictures.rejections(document)
    yield "<h2>leader_count</h2>" + report_pictures.leader_count(document) + _leader_words(document)
    yield "<h2>Accepted writes by region and term</h2>" + report_pictures.accepted(document) + _ledgers(document)
    if document["turns"]:
        picture = report_pictures.times(document)
        yield f'<h2>Time to closed and to open</h2><div class="times">{picture}</div>' + _turns(document["turns"])
    yield f'<h2>What happened</h2><div class="timeline">{_timeline(document["timeline"])}</div>'
    yield "<h2>Again</h2>" + _again(document)


def _head(document: Document) -> str:
    passed = document["verdict"] == "pass"
    words = "✓ PASSED" if passed else "✗ FAILED"
    failed = [check["detail"] for check in document["checks"] if not check["ok"]]
    reason = f": {failed[0]}" if failed else ": one history, one leader at a time, and the tail at zero"
    meant = ""
    if document["expected"] == "fail":
        meant = " This scenario is meant to fail." if not passed else " This scenario is meant to fail, and did not."
    stage = "an embedded set of two regions" if document["stage"] == "embedded" else "a running deployment"
    fence = "" if document["fenced"] else " The fence was off."
    return (
        f"<h1>{_text(document['scenario']['title'])}</h1>"
        f'<p class="verdict {"pass" if passed else "fail"}" role="status">{words}{_text(reason)}</p>'
        f"<p>{_text(document['scenario']['about'])}</p>"
        f'<p class="quiet">Role {_text(document["role"])} on {stage}; {document["scenario"]["clients"]} clients, '
        f"{document['elapsed_s']:.0f} s.{fence}{meant}</p>"
    )


def _checks(checks: Sequence[Document]) -> str:
    rows = [
        f'<td class="mark {"good" if check["ok"] else "bad"}">{"✓ yes" if check["ok"] else "✗ no"}</td>'
        f"<td>{_text(check['name'])}</td><td>{_text(check['detail'])}</td>"
        for check in checks
    ]
    return _table(("", "what", "found"), rows)


def _violation(violation: Document) -> str:
    evidence = "".join(f"<li>{_text(sentence)}</li>" for sentence in violation["evidence"])
    return f'<p class="bad">{_text(violation["kind"])}: {violation["count"]}</p><ul>{evidence}</ul>'


def _tail_words(document: Document) -> str:
    tail, pace = document["tail"], document["pace"]
    refused = sum(tail["refused"].values())
    if tail["began_s"] is None:
        return "<p>No record became stale in this scenario.</p>"
    words = f"{refused} writes of stale clients were refused, and {tail['accepted']} accepted. "
    if refused:
        words += f"The last refusal came at {tail['last_s']:.1f} s. "
    if tail["expired_s"] is not None:
        words += f"The last stale record ran out at {tail['expired_s']:.1f} s. "
    if tail["after"]:
        words += (
            f"{tail['after']} were refused after that: {', '.join(tail['senders'])} still believe in an old leader. "
        )
    words += (
        f"Stale DNS of {pace['stale_for_s']:g} s was played {pace['speed']:g} times as fast; the lease of "
        f"{pace['lease_s']:g} s was not."
    )
    return f"<p>{_text(words)}</p>"


def _leader_words(document: Document) -> str:
    most = document["most_leaders"]
    return f'<p class="quiet">At most {most} at one moment. The marked stretches are those without exactly one.</p>'


def _ledgers(document: Document) -> str:
    rows = [
        f'<td>{_text(region)}</td><td class="n">{one["entries"]}</td><td class="n">{one["accepted"]}</td>'
        f'<td class="n">{one["behind"]}</td>'
        for region, one in document["ledgers"].items()
    ]
    return _table(("region", "entries", "accepted here", "behind in the end"), rows, numbers=3)


def _turns(turns: Sequence[Document]) -> str:
    rows = [
        f"<td>{_text(turn['name'])}</td><td>{_text(turn['from'])} → {_text(turn['to'])}</td>"
        + "".join(f'<td class="n">{_seconds(turn[key])}</td>' for key in _DURATIONS)
        for turn in turns
    ]
    return _table(("", "from and to", "closed", "open", "without a leader", "no write accepted"), rows, numbers=4)


_DURATIONS: Final = ("closed_s", "open_s", "leaderless_s", "no_write_accepted_s")


def _timeline(timeline: Sequence[Document]) -> str:
    rows = [
        f'<td class="n">{line["at_s"]:.1f} s</td><td class="{_tone(line["tone"])}">{_text(line["text"])}</td>'
        for line in timeline
    ]
    return _table((), rows)


def _again(document: Document) -> str:
    seed = f"<p>Seed {document['seed']}. "
    replay = f"To play it again: <code>{_text(document['replay'])}</code>" if document["replay"] else ""
    return f'{seed}{replay}</p><p class="quiet">fencegate {_text(document["fencegate"])}</p>'


def _table(head: Sequence[str], rows: Sequence[str], *, numbers: int = 0) -> str:
    first = len(head) - numbers
    cells = "".join(f"<th{' class=n' if n >= first else ''}>{_text(name)}</th>" for n, name in enumerate(head))
    begin = f"<thead><tr>{cells}</tr></thead>" if head else ""
    return f"<table>{begin}<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _tone(tone: str) -> str:
    return tone if tone in ("good", "bad", "act") else "plain"


def _text(value: object) -> str:
    return escape(str(value), quote=True)
