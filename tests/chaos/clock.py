"""A server's own clock, which the storm can set. It is a library in front of the C library's."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from attrs import define

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

/* Milliseconds that the tests have put into a file: what the wall clock is ahead. */
static long ahead(void) {
  static volatile long long *shared;
  if (!shared) {
    const char *path = getenv("HEADRACE_CLOCK");
    int fd = path ? open(path, O_RDONLY) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(0, sizeof *shared, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return 0;
    shared = at;
  }
  return (long)*shared;
}

int clock_gettime(clockid_t which, struct timespec *spec) {
  static int (*plain)(clockid_t, struct timespec *);
  if (!plain) plain = dlsym(RTLD_NEXT, "clock_gettime");
  int result = plain(which, spec);
  if (which == CLOCK_REALTIME && result == 0) {
    long ms = ahead();
    spec->tv_sec += ms / 1000;
  }
  return result;
}

int gettimeofday(struct timeval *restrict value, void *restrict zone) {
  struct timespec spec;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &spec);
  value->tv_sec = spec.tv_sec;
  value->tv_usec = spec.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *result) {
  struct timespec spec;
  clock_gettime(CLOCK_REALTIME, &spec);
  if (result) *result = spec.tv_sec;
  return spec.tv_sec;
}
"""


@define
class Clock:
    """The whole seconds by which a server's clock is ahead of the machine's."""

    folder: Path
    ahead: float = 0.0
    furthest: float = 0.0
    """As far ahead as it has ever been."""

    @staticmethod
    def possible() -> bool:
        """Tell whether there is a C compiler."""
        return shutil.which("cc") is not None

    def environment(self) -> dict[str, str]:
        """Return the environment that gives a server this clock."""
        library, shared = self.folder / "clock.so", self.folder / "clock"
        (self.folder / "clock.c").write_text(SOURCE)
        self.jump(0.0)
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            str(library),
            str(self.folder / "clock.c"),
            "-ldl",
        ]
        subprocess.run(command, check=True, capture_output=True)
        return {"LD_PRELOAD": str(library), "HEADRACE_CLOCK": str(shared)}

    def jump(self, seconds: float) -> None:
        self.ahead += seconds
        self.furthest = max(self.furthest, self.ahead)
        with (self.folder / "clock").open(
            "r+b" if (self.folder / "clock").exists() else "wb"
        ) as shared:
            shared.write(struct.pack("q", int(1000 * self.ahead)))
