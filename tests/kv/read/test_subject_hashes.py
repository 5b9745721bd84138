"""Hashes of subjects, some of them in a file."""

import resource
from collections import Counter

import pytest

from kvctl.kv.read import subject_hashes
from kvctl.kv.read.subject_hashes import SubjectHashes


@pytest.mark.parametrize("held", [1, 3, 7, 1000])
def test_hashes_are_counted_wherever_they_are(held, monkeypatch):
    monkeypatch.setattr(subject_hashes, "HELD", held)
    batches = [[b"$KV.B.%d" % (number * step % 11) for number in range(5)] for step in range(1, 8)]
    hashes, added = SubjectHashes(), list[bytes]()
    assert not hashes.among({hash(b"$KV.B.0")})
    for batch in batches:
        hashes.add(iter(batch))
        added += batch
        wanted = {hash(b"$KV.B.%d" % number) for number in (0, 1, 7, 99)}
        assert hashes.among(wanted) == Counter(hash(subject) for subject in added if hash(subject) in wanted)
        assert len(hashes) == len(added)


@pytest.mark.parametrize("bytes_allowed", [0, 20, 64])
def test_hashes_stay_in_memory_where_no_file_can_be_written(bytes_allowed, monkeypatch):
    monkeypatch.setattr(subject_hashes, "HELD", 4)
    hashes, added = SubjectHashes(), list[bytes]()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_allowed, hard))
    try:
        for number in range(20):
            added.append(b"$KV.B.%d" % (number % 7))
            hashes.add(added[-1:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert hashes.among(set(map(hash, added))) == Counter(map(hash, added))
    assert len(hashes) == 20


def test_hashes_stay_in_memory_where_there_is_no_temporary_folder(monkeypatch):
    monkeypatch.setattr(subject_hashes, "HELD", 1)
    monkeypatch.setattr("tempfile.tempdir", "/dev/null/missing")
    hashes = SubjectHashes()
    for subject in (b"a", b"b", b"a"):
        hashes.add([subject])
    assert hashes.among({hash(b"a"), hash(b"c")}) == {hash(b"a"): 2}
