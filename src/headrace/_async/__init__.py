"""The asyncio colour. The same file names as in `_sync`."""
