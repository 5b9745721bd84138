"""The same work with nats-py's own API: run as `python -m bench.rivals WORK URL BUCKET [COUNT]`.

Works that measure inside print the seconds; `get` is a whole process, as lean as nats-py allows.
"""

import asyncio
import sys
import time


async def get(url: str, bucket: str, key: str) -> None:
    """The leanest one-shot get: no STREAM.INFO, one direct get, printed."""
    from nats.aio.client import Client

    client = Client()
    await client.connect(url)
    message = await client.request(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}", b"", timeout=5)
    sys.stdout.buffer.write(message.data)
    await client.close()


async def put(url: str, bucket: str, count: str) -> None:
    """Puts awaited one by one."""
    kv, _ = await _open(url, bucket)
    begun = time.perf_counter()
    for number in range(int(count)):
        await kv.put(f"put.{number:016d}", b"v" * 100)
    print(time.perf_counter() - begun)


async def put_many(url: str, bucket: str, count: str) -> None:
    """Puts by publish_async, 4,000 pending."""
    _, js = await _open(url, bucket)
    begun = time.perf_counter()
    futures = []
    for number in range(int(count)):
        futures.append(await js.publish_async(f"$KV.{bucket}.many.{number:015d}", b"v" * 100))
    await asyncio.gather(*futures)
    print(time.perf_counter() - begun)


async def gets(url: str, bucket: str, count: str) -> None:
    """Gets awaited one by one."""
    kv, _ = await _open(url, bucket)
    begun = time.perf_counter()
    for number in range(int(count)):
        await kv.get(f"k.{number:018d}")
    print(time.perf_counter() - begun)


async def get_many(url: str, bucket: str, count: str) -> None:
    """Gets of named keys, 100 in flight: there is no bulk get."""
    kv, _ = await _open(url, bucket)
    begun = time.perf_counter()
    for first in range(0, int(count), 100):
        await asyncio.gather(*(kv.get(f"k.{number:018d}") for number in range(first, first + 100)))
    print(time.perf_counter() - begun)


async def keys(url: str, bucket: str, count: str) -> None:
    """keys()."""
    kv, _ = await _open(url, bucket)
    begun = time.perf_counter()
    found = await kv.keys()
    seconds = time.perf_counter() - begun
    assert len(found) >= int(count), len(found)
    print(seconds)


async def watch(url: str, bucket: str, count: str) -> None:
    """watchall() until the end of the initial data."""
    kv, _ = await _open(url, bucket)
    begun = time.perf_counter()
    watcher = await kv.watchall()
    number = 0
    async for entry in watcher:
        if entry is None:
            break
        number += 1
    seconds = time.perf_counter() - begun
    assert number >= int(count), number
    print(seconds)


async def load(url: str, bucket: str, file: str) -> None:
    """Rows of a file by publish_async, 4,000 pending."""
    import json

    _, js = await _open(url, bucket)
    with open(file, "rb") as rows:  # noqa: ASYNC230  # the rival at its leanest
        futures = []
        for line in rows:
            row = json.loads(line)
            futures.append(await js.publish_async(f"$KV.{bucket}.{row['key']}", row["value"].encode()))
            if len(futures) == 4000:
                await asyncio.gather(*futures)
                futures = []
        await asyncio.gather(*futures)


async def dump(url: str, bucket: str) -> None:
    """watchall() to lines of JSON on stdout."""
    import json

    kv, _ = await _open(url, bucket)
    async for entry in await kv.watchall():
        if entry is None:
            break
        row = {"bucket": bucket, "key": entry.key, "revision": entry.revision, "value": entry.value.decode()}
        sys.stdout.write(json.dumps(row) + "\n")


async def follow(url: str, bucket: str, _: str) -> None:
    """Print the time of each update as it arrives, until killed."""
    kv, _js = await _open(url, bucket)
    watcher = await kv.watchall()
    async for entry in watcher:
        print("current" if entry is None else entry.key, flush=True)


async def _open(url: str, bucket: str):
    import nats

    client = await nats.connect(url)
    js = client.jetstream(publish_async_max_pending=4000)
    return await js.key_value(bucket), js


if __name__ == "__main__":
    work, *arguments = sys.argv[1:]
    asyncio.run(globals()[work](*arguments))
