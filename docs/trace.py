"""Run the services of docs/how-to/trace.md, each in its own process, and draw their trace,
docs/how-to/trace.svg.

python docs/trace.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "how-to" / "trace.md"
PICTURE = PAGE.with_suffix(".svg")
COLOURS = {"shop": "#4c78a8", "mailer": "#f58518"}
ROW, LEFT, WIDTH, TOP = 34, 250, 640, 46


def services(page: Path = PAGE) -> dict[str, str]:
    """Return the files in the page by name."""
    blocks = re.findall(
        r"^```python\n# (\w+\.py)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return dict(blocks)


def run(folder: Path, **environment: str) -> list[dict[str, Any]]:
    """Run the mailer and the shop to their end, and return their spans."""
    for name, text in services().items():
        (folder / name).write_text(text, "utf-8")

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(folder / name)], cwd=folder, env=os.environ | environment
        )

    mailer = start("mailer.py")
    try:
        for _ in range(600):
            if (folder / "spans.jsonl").exists() or mailer.poll() is not None:
                break
            time.sleep(0.1)
        if start("shop.py").wait(120) or mailer.wait(120):
            raise RuntimeError("a service failed")
    finally:
        mailer.kill()
        mailer.wait()
    return [json.loads(line) for line in (folder / "spans.jsonl").read_text("utf-8").splitlines()]


def drawn(spans: Sequence[dict[str, Any]]) -> str:
    """Return the spans of the largest trace as SVG. Each has a bar below its parent, and each link
    a dotted line."""
    traces = [span["context"]["trace_id"] for span in spans]
    trace = max(traces, key=traces.count)
    mine = [span for span in spans if span["context"]["trace_id"] == trace]
    ids = {span["context"]["span_id"] for span in mine}
    rows: list[tuple[int, dict[str, Any]]] = []

    def add(parent: str | None, depth: int) -> None:
        children = [
            s for s in mine if (s["parent_id"] if s["parent_id"] in ids else None) == parent
        ]
        for span in sorted(children, key=lambda s: s["start_time"]):
            rows.append((depth, span))
            add(span["context"]["span_id"], depth + 1)

    add(None, 0)

    def at(text: str) -> float:
        return datetime.fromisoformat(text).timestamp() * 1000

    begin, end = min(at(s["start_time"]) for s in mine), max(at(s["end_time"]) for s in mine)
    scale = (WIDTH - 190) / (end - begin)
    height = TOP + ROW * len(rows) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH} {height}" font-size="13">',
        "<style>text { font-family: sans-serif }</style>",
        f'<rect width="{LEFT + WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (service, colour) in enumerate(COLOURS.items()):
        lines.append(
            f'<rect x="{12 + 90 * number}" y="12" width="12" height="12" fill="{colour}"/>'
        )
        lines.append(f'<text x="{30 + 90 * number}" y="22">{service}</text>')
    lines.append(
        f'<text x="{LEFT}" y="22" fill="#555555">{end - begin:.0f} ms, trace {trace[2:]}</text>'
    )
    middle: dict[str, tuple[float, float]] = {}
    for number, (depth, span) in enumerate(rows):
        y = TOP + ROW * number
        x, wide = (
            LEFT + (at(span["start_time"]) - begin) * scale,
            at(span["end_time"]) - at(span["start_time"]),
        )
        middle[span["context"]["span_id"]] = x, y + 10
        bad = span["status"]["status_code"] == "ERROR"
        colour = COLOURS[span["resource"]["attributes"]["service.name"]]
        edge = ' stroke="#c00000" stroke-width="2.5"' if bad else ""
        lines.append(f'<text x="{12 + 16 * depth}" y="{y + 14}">{escape(span["name"])}</text>')
        lines.append(
            f'<rect x="{x:.1f}" y="{y}" width="{max(3.0, wide * scale):.1f}" height="20" rx="3" fill="{colour}"{edge}/>'
        )
        words = f"{wide:.1f} ms" + (f" {span['attributes'].get('error.type', '')}" if bad else "")
        lines.append(
            f'<text x="{x + max(3.0, wide * scale) + 6:.1f}" y="{y + 14}" fill="#555555">{words}</text>'
        )
    for _, span in rows:
        x, y = middle[span["context"]["span_id"]]
        for link in span["links"]:
            other = link["context"]["span_id"]
            if other in middle and other != span["parent_id"]:
                a, b = middle[other]
                lines.append(
                    f'<path d="M {a:.1f} {b:.1f} C {a - 40:.1f} {b:.1f} {x - 40:.1f} {y:.1f} {x:.1f} {y:.1f}" '
                    'fill="none" stroke="#333333" stroke-dasharray="2 3"/>'
                )
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> int:
    """Draw the trace anew."""
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        PICTURE.write_text(drawn(run(Path(folder))), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
