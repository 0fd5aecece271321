"""The public classes for asyncio."""
