"""The program that pytest-xdist starts as a process of a parallel run: its standard streams go to a fork of another
process (see `nodes`), and it ends as that does.
"""

import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as link:
    link.connect(sys.argv[1])
    socket.send_fds(link, [b"!"], [0, 1, 2])
    for stream in 0, 1:
        os.dup2(2, stream)
    code = int(link.recv(16) or 1)
sys.exit(code)
