"""Checks the report of a demo: the round ran whole on the real model, and nothing broke in it.

Usage: check_demo.py REPORT_JSON EXIT_STATUS. A quick round may promote nothing (2); it may be void
(3) only because the machine was too noisy, never because an engine failed.
"""

import json
import sys
from pathlib import Path

PROMOTED, NOTHING_PROMOTED, VOID = 0, 2, 3
NOISE = {"run_means_disagree", "baseline_out_of_band"}
BROKEN = {"engine_failure", "failed_requests", "tampered", "check_failed", "agent_ended"}


def faults(report: dict, status: int) -> list[str]:
    """One line per thing that a sound round would not show."""
    found = []
    final = (report["rounds"] or [{}])[-1].get("final")
    void = [final] if final else [d for d in report["directions"] if d["verdict"] == "void"]
    if status not in (PROMOTED, NOTHING_PROMOTED, VOID):
        found.append(f"the demo ended with exit code {status}")
    if status == VOID and not (void and {item["reason"] for item in void} <= NOISE):
        found.append(f"the run is void: {report['detail']}")
    if status == PROMOTED and (final is None or not report["forcing"]):
        found.append("a promotion without a sealed final or without token forcing")
    for arm in ("ar", "stock"):
        if not report["systems"][arm]["tokens_per_second"]:
            found.append(f"no rates of {arm}")
    if not report["ceiling"]["before"]:
        found.append("no ceiling was measured")
    if not report["directions"]:
        found.append("no direction was tried")
    for item in report["directions"]:
        if item["verdict"] is None or item["reason"] in BROKEN:
            found.append(f"direction {item['name']}: {item['reason']} ({item['detail']})")
    return found


def main(arguments: list[str]) -> int:
    """Exit code 1 when anything is found."""
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    found = faults(report, int(arguments[1]))
    sys.stdout.write("".join(f"demo: {line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
