"""The engines that drive a worker's roles: threads and asyncio."""
