"""Code that the executors of threads and of asyncio share."""
