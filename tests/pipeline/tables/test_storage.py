"""Places of tables: paths and URLs, and options that never show."""

import errno
import io
import os
import pickle

import pytest

from kvctl.errors import KvctlError, UsageError
from kvctl.pipeline.tables.storage import TablePlace


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("/lake/orders/", "/lake/orders"),
        ("file:///lake/an%20order", "/lake/an order"),
        ("s3://lake/orders/", "s3://lake/orders"),
        ("s3a://lake/orders", "s3://lake/orders"),
        ("gs://lake/orders", "gs://lake/orders"),
        ("az://lake/orders", "az://lake/orders"),
    ],
)
def test_place_is_a_path_or_a_url(text, uri):
    assert TablePlace.parse(text).uri == uri


@pytest.mark.parametrize(
    "text", ["", "hdfs://host/x", "s3://", "s3://key:secret@lake/x", "s3://lake/../x", "s3://a//b"]
)
def test_invalid_place_is_refused(text):
    with pytest.raises(UsageError):
        TablePlace.parse(text)


def test_options_do_not_show(tmp_path):
    (tmp_path / "key").write_text("hidden\n")
    place = TablePlace.parse("s3://lake/x", [f"AWS_SECRET_ACCESS_KEY=@{tmp_path}/key", "aws_region=eu"])
    assert place.options == {"aws_secret_access_key": "hidden", "aws_region": "eu"}
    assert "hidden" not in f"{place!r} {place}"
    assert pickle.loads(pickle.dumps(place)).options == place.options
    with pytest.raises(UsageError) as caught:
        TablePlace.parse("/lake", ["aws_secret_access_key=hidden"])
    assert "hidden" not in str(caught.value)
    with pytest.raises(UsageError, match="not in the form K=V"):
        TablePlace.parse("s3://lake", ["aws_region"])
    with pytest.raises(UsageError) as caught:
        TablePlace.parse("s3://lake", ["hidden"])
    assert "hidden" not in f"{caught.value} {caught.value.hint}"


def test_links_are_neither_followed_nor_written_through(tmp_path):
    folder, other = tmp_path / "table", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "file").write_bytes(b"secret")
    (folder / "linked").symlink_to(other / "file")
    (folder / "below").symlink_to(other)
    place = TablePlace(str(folder))
    assert set(place.listing()) == {"linked", "below"}
    assert place.sizes(["linked"]) == {}
    with pytest.raises(OSError), place.opened("linked"):  # noqa: PT011
        pass


def test_file_that_cannot_be_completed_is_removed(tmp_path):
    class Full(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().read(1)

    with pytest.raises(KvctlError, match="No space left"):
        TablePlace(str(tmp_path)).write("part", Full(b"xy"))
    assert list(tmp_path.iterdir()) == []
