"""Streams created while the server still removes a deleted one of the same name."""

from pathlib import Path

import kvctl


async def test_creation_that_fails_for_files_in_the_way_is_tried_again(own_server):
    """The first attempt of the server fails (10049) and clears the place."""
    streams = Path(own_server.store, "jetstream", "$G", "streams")
    streams.mkdir(parents=True)
    (streams / "KV_B").touch()
    async with kvctl.connect(own_server.url) as client:
        bucket = await client.create_bucket("B")
        assert await bucket.put("k", b"v") == 1
