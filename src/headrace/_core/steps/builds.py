"""The builds of a run. A handler says which runs of other builds it continues."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define

from headrace._model.builds import continues, wanted


@define(eq=False)
class Builds:
    own: str = ""
    rule: str = "any"  # which runs the handler continues
    begun_by: str = ""  # known once the records were read
    waits_for: str = ""  # the builds that may continue the run, if this one may not

    def begun(self, build: str) -> None:
        self.begun_by = build
        if not continues(self.rule, self.own, build):
            self.waits_for = wanted(self.rule, build)

    def alive(self, builds: Iterable[str]) -> bool:
        return any(continues(self.rule, build, self.begun_by) for build in builds if build)
