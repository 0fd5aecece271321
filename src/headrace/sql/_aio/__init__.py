"""The relay for asyncio, written by hand."""
