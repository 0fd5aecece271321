"""The last module that a forkserver imports: what its forks would each do anew, and what they then leave alone."""

from __future__ import annotations

import gc

from headrace._protocol import script

for name in script.names():
    script.script(name)
gc.freeze()  # the collector of a fork would go through all of it, and so copy it
