"""The journeys. `run.py` runs all, each in its own environment. `--full` runs those whose packages
are here."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.journeys.run import HERE, ROOT, declared, journeys, main, play

DOCS = ROOT / "docs" / "how-to"
PAGES = [
    ("ingest.md", "pipeline/load.py"),
    ("ingest.md", "pipeline/produce.py"),
    ("use-in-django.md", "django/shop/jobs.py"),
    ("use-in-flask.md", "flask/jobs.py"),
    ("use-in-flask.md", "flask/web.py"),
    ("use-in-litestar.md", "litestar/mail.py"),
    ("use-in-litestar.md", "litestar/web.py"),
]

ELSEWHERE = {
    "pipeline": "takes ten seconds of processor time: by .ci/run only",
    "types": "needs headrace as it is installed, not in place: by .ci/run only",
}


def installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("name", journeys())
def test_it_arrives(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.option.full:
        pytest.skip("by poe journeys, or with --full")
    if name in ELSEWHERE:
        pytest.skip(ELSEWHERE[name])
    missing = [one for text in declared(name) if not installed(one := Requirement(text).name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not here: by .ci/run only")
    said = play(name, tmp_path / name, Path(sys.executable).parent)
    assert said is None, said


@pytest.mark.parametrize(("page", "name"), PAGES)
def test_a_page_shows_what_runs(page: str, name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert (HERE / name).read_text("utf-8") in blocks


def test_one_that_fails_shows_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "journey.py").write_text(
        "from programs import ask\nprint('so far')\nassert not ask\n"
    )
    (tmp_path / "programs.py").write_text("ask = 1\n")
    monkeypatch.setattr("tests.journeys.run.HERE", tmp_path)
    said = play("lost", tmp_path / "work" / "lost", Path(sys.executable).parent)
    assert said is not None
    assert said.startswith("exit code 1\nso far\n")
    assert "AssertionError" in said
    with pytest.raises(AssertionError, match="declares nothing"):
        declared("lost")


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere"]) == 2
    assert "no journey: nowhere; there are agent, " in capsys.readouterr().out
