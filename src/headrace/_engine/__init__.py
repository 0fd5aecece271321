"""The engines that drive a worker's roles, by threads and by asyncio."""
