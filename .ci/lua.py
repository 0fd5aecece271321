"""Check the scripts with their fragments by luacheck. Debian has it in the package lua-check.

Constants of fragments, and fragments' names that a script uses for its own, are left alone. A
script is put together from fragments that others use, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace._protocol.script import names, script

KNOWN = ["redis", "cjson", "cmsgpack", "struct", "bit", "KEYS", "ARGV", "unpack"]
# Functions of fragments that stay, as the script has a variable of their name.
STAY = ["carried", "declared", "fields_of", "place", "pop", "same"]
# Constants, unused arguments and shadowing come with fragments. A multiple assignment gives values
# at first that are not used (311).
IGNORED = ["211/[A-Z_]+", *(f"211/{name}" for name in STAY), "212", "311", "411", "421", "431"]


def main() -> int:
    """Write all scripts to a folder, and run luacheck there."""
    program = shutil.which("luacheck")
    if program is None:
        print("not checked: luacheck is not on PATH (apt-get install lua-check)")
        return int("CI" in os.environ)
    with TemporaryDirectory() as folder:
        for name in names():
            (Path(folder) / f"{name}.lua").write_text(script(name).source, "utf-8")
        command = [program, ".", "--std", "lua51", "--globals", *KNOWN, "--ignore", *IGNORED]
        done = subprocess.run(
            [*command, "--codes", "--no-max-line-length", "-q"],
            cwd=folder,
            check=False,
            timeout=120,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
