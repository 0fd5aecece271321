"""The network for asyncio."""
