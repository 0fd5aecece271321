"""The blocking colour: threads and blocking sockets. The same file names as in `_async`."""
