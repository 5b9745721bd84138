"""Resolution of the argument BUCKET of key commands, decided here alone: a bucket, or a ref of a repository."""

from kvctl.cli.keys.target import bucket_target, ref_target
from kvctl.cli.keys.target.interface import Target
from kvctl.kv.names import is_ref


def parse_target(text: str) -> Target:
    """Return the target that an argument BUCKET names: NAME, or NAME@REF. Nothing is validated or sent yet."""
    if is_ref(text):
        return ref_target.RefTarget(text)
    return bucket_target.BucketTarget(text)
