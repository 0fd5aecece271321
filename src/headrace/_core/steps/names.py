"""The names that a handler has given to its steps in one delivery."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from headrace.errors import ConfigurationError


@define(eq=False)
class Names:
    asked: set[str] = field(factory=set[str])
    sourced: set[str] = field(factory=set[str])  # signals that are sources of `first`
    numbers: dict[str, int] = field(factory=dict[str, int])  # how often each was numbered

    def numbered(self, label: str) -> str:
        count = self.numbers[label] = self.numbers.get(label, 0) + 1
        return label if count == 1 else f"{label}-{count}"

    def ask(self, what: str, label: str) -> None:
        if label in self.asked:
            raise ConfigurationError(
                f"{what} {label!r} was taken before in this run: a step is known by its name, so number those of a "
                f'loop: step(f"{label}-{{n}}", …)'
            )
        self.asked.add(label)

    def unused(self, recorded: Iterable[str]) -> list[str]:
        seen = self.asked | self.sourced
        return [name for name in recorded if name and name not in seen]
