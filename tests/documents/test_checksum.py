"""Checksums of files, of data as it is written, and of documents."""

import hashlib
import io

import pytest

from kvctl.documents import checksum

DATA = bytes(range(256)) * 9000
"""More than two blocks."""


@pytest.mark.parametrize("limit", [0, 1, checksum.BLOCK_BYTES, checksum.BLOCK_BYTES + 1, None])
def test_checksum_reads_no_further_than_its_limit(limit):
    found, file = checksum.Checksum(b"head"), io.BytesIO(DATA)
    blocks = b"".join(found.read(file, limit))
    assert blocks == DATA[:limit] if limit is not None else blocks == DATA
    assert file.tell() == len(blocks)
    assert (found.size, found.sha256) == (4 + len(blocks), hashlib.sha256(b"head" + blocks).hexdigest())


def test_checksum_of_a_document_ignores_the_order_of_fields():
    assert checksum.of_document({"a": 1, "b": [2]}) == checksum.of_document({"b": [2], "a": 1})
    assert checksum.of_document({"a": 1}) != checksum.of_document({"a": "1"})
