"""The SQL outbox of a queue, as it is shown."""

from __future__ import annotations

from attrs import frozen


@frozen
class OutboxView:
    """The waiting rows in a queue's SQL outbox, as the `relay` of this name reported `age`
    seconds ago. `rows` counts 10,000 of them at most, `oldest` is the seconds since the oldest
    was written, and `refused` is the number of refused ones. `why` has the position and the
    reason of the first refused row.
    """

    relay: str
    rows: int
    oldest: float
    refused: int
    ended: bool
    """Whether the relay has ended in good order since."""
    age: float = 0.0
    why: str = ""

    @property
    def dead(self) -> bool:
        """Whether the relay has neither reported for a minute nor ended properly."""
        return not self.ended and self.age > 60.0  # four reports of a relay are missing

    @property
    def text(self) -> str:
        """Its words for screens."""
        rows = f"{self.rows:,} rows" + (
            f", the oldest for {self.oldest:.0f} s" if self.rows else ""
        )
        why = f" ({self.why})" if self.why else ""
        refused = f", {self.refused:,} refused{why}" if self.refused else ""
        running = "is dead, it reported" if self.dead else "reported"
        relay = "ended" if self.ended else running
        return f"{rows}{refused}; the relay {self.relay} {relay} {self.age:.0f} s ago"
