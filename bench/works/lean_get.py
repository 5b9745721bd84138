"""The leanest one-shot get with nats-py: no STREAM.INFO, one direct get, printed. `lean_get.py URL BUCKET KEY`."""

import asyncio
import sys

sys.modules["aiohttp"] = None  # type: ignore[assignment]  # nats-py imports it if it can, for WebSockets alone
from nats.aio.client import Client  # noqa: E402


async def get(url: str, bucket: str, key: str) -> None:
    """Read one key."""
    client = Client()
    await client.connect(url)
    message = await client.request(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}", b"", timeout=5)
    sys.stdout.buffer.write(message.data)
    await client.close()


asyncio.run(get(*sys.argv[1:]))
