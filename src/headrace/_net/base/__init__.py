"""What the executors of threads and of asyncio share."""
