"""`kvctl touch`: write a value again with a new ttl."""

from datetime import timedelta
from typing import Annotated

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, KeyName, duration
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_keys, open_bucket
from kvctl.cli.keys.output.entry_rows import revision_view
from kvctl.cli.keys.output.ttl_notice import warn_of_other_life, warn_of_return
from kvctl.cli.records import WRITE


@command("touch", examples=["kvctl touch sessions user.7 --ttl 30m"], see=["create", "update", "lock"], prints=(WRITE,))
async def touch(
    session: Session,
    bucket: BucketName,
    key: KeyName,
    ttl: Annotated[timedelta, duration("--ttl", help="Time until the key expires, from now on")],
) -> None:
    """Renew the ttl of a key.

    Writes the current value again, with its headers and the new ttl, and prints the new revision. If the key is written
    concurrently, the newer value is kept and gets the ttl. A key that does not exist is not written (3).

    The bucket must allow per-key TTLs (`kvctl bucket edit BUCKET --marker-ttl 1s`). In a bucket with history the
    previous entry reappears when the ttl ends, and a warning reports it.
    """
    check_keys([key])
    target = await open_bucket(session, bucket, write=True)
    session.show(revision_view(bucket, key, await target.touch(key, ttl)))
    await warn_of_other_life(session, target, {key: ttl})
    await warn_of_return(session, target, [key])
