"""A report as JUnit XML: one test case for each check, so that a pipeline shows which of them failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

Document = Mapping[str, Any]

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, escaped or not."""


def junit(document: Document) -> str:
    """The whole file. A scenario that is meant to fail fails here, too."""
    checks = document["checks"]
    failures = sum(not check["ok"] for check in checks)
    suite = Element(
        "testsuite",
        name=_clean(f"gameday {document['scenario']['name']}"),
        tests=str(len(checks)),
        failures=str(failures),
        errors="0",
        skipped="0",
        time=f"{document['elapsed_s']:.3f}",
    )
    properties = SubElement(suite, "properties")
    for name in ("seed", "stage", "role", "replay", "expected"):
        SubElement(properties, "property", name=name, value=_clean(str(document[name])))
    for check in checks:
        case = SubElement(suite, "testcase", name=_clean(check["name"]), classname=_clean(document["scenario"]["name"]))
        if not check["ok"]:
            failure = SubElement(case, "failure", message=_clean(check["detail"]))
            failure.text = _clean(check["detail"])
    root = Element("testsuites", name="fencegate gameday", tests=str(len(checks)), failures=str(failures))
    root.append(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
