# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[json]", "mypy", "pyright[nodejs]"]
# ///
"""Type checkers see the installed package. They accept a user's right code and refuse each wrong
line."""

from __future__ import annotations

import re
from pathlib import Path

from programs import Program

wrong = {
    n for n, line in enumerate(Path("wrong.py").read_text().splitlines(), 1) if "# wrong" in line
}
assert len(wrong) >= 10
Path("pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')

for checker in (("mypy", "--strict"), ("pyright",)):
    with Program(*checker, "app.py") as right:
        right.ends()
    with Program(*checker, "wrong.py") as refused:
        said = refused.ends(1)
        found = {int(line) for line in re.findall(r"wrong\.py:(\d+):.*\berror: ", said)}
        assert found == wrong, (
            f"accepted: {sorted(wrong - found)}, refused: {sorted(found - wrong)}\n{said}"
        )
