"""Random origins, filled to their limits, and replicas with limits of their own: each is flagged, or complete."""

import random
import time
from base64 import b64decode
from collections.abc import Iterable
from itertools import count, pairwise
from typing import Any

import pytest

from kvctl.topology.hazards import hazards, limits
from kvctl.topology.model.origins import Aggregate, Mirror, Origin
from tests.support.raw import RawClient

pytestmark = pytest.mark.oracle
PATIENCE = 60.0
"""Seconds in which a replica that is not flagged gets everything."""
STUCK = 0.4
"""Seconds after which a replica that lacks entries is taken to lack them permanently."""
LARGEST = 20_000
"""Bytes of the largest value for a stream without limits."""
ENTRIES = 400
"""Entries that are written into an origin without a limit."""

SECOND = 1_000_000_000
SOON, LATE = 2 * SECOND, 3600 * SECOND
"""Ages at which entries expire during a test, and after it."""
REFUSED = (10030, 10046)
"""Errors of servers for a limit of values below that of the origin."""


class Pairs:
    """Creates origins and replicas on one server."""

    def __init__(self, raw: RawClient, dice: random.Random) -> None:
        self.raw, self.dice, self.numbers = raw, dice, count(1)
        self.written: list[str] = []
        self.ttls: tuple[str | None, ...] = (None,)
        """Ttls of single entries."""

    def origin(self) -> dict[str, Any]:
        """Create a bucket with random limits."""
        dice = self.dice
        name = f"O{next(self.numbers)}" + "x" * dice.choice((0, 0, 30))
        config = {
            "max_bytes": dice.choice((-1, dice.randint(500, 8000))),
            "max_msg_size": dice.choice((-1, dice.randint(50, 500))),
            "max_msgs": dice.choice((-1, -1, -1, dice.randint(1, 60))),
            "max_msgs_per_subject": dice.choice((1, 1, 3)),
            "storage": dice.choice(("file", "file", "memory")),
            "discard": dice.choice(("new", "new", "new", "old")),
            **self.ages(),
        }
        if config.get("allow_msg_ttl"):
            self.ttls = dice.choice(
                ((None, "never"), (None, "1h", "never"), ("never",), (None,), (None, "1s", "never"))
            )
        created: dict[str, Any] = self.raw.create_bucket(name, duplicate_window=SECOND, **config)["config"]
        return created

    def ages(self) -> dict[str, Any]:
        """Return random ttls of a bucket, of its markers, and of its entries: half of the buckets have none."""
        dice = self.dice
        if dice.random() < 0.5:
            return {}
        expiring = dice.random() < 0.5
        config: dict[str, Any] = {"max_age": dice.choice((0, 0, SOON if expiring else LATE))}
        if dice.random() < 0.8:
            config |= {"allow_msg_ttl": True, "subject_delete_marker_ttl": dice.choice((0, SECOND, LATE))}
        return config

    def replica(self, origin: dict[str, Any]) -> dict[str, Any]:
        """Create a replica of a bucket or an aggregate, with random limits around those of the origin."""
        dice = self.dice
        name = f"R{next(self.numbers)}" + "y" * dice.choice((0, 0, 30))
        bucket = origin["name"].removeprefix("KV_")
        if dice.random() < 0.4:
            stream = Mirror(name, Origin(bucket)).to_stream(origin)
        else:
            spelled = dice.choice(({}, {"prefix": "p"}, {"prefix": "a.long.prefix.of.keys"}, {"keys": ("*", "a.>")}))
            stream = Aggregate(name, (Origin(bucket, **spelled),)).to_stream([origin])
        near = (0.5, 0.9, 1, 1, 1.1, 1.5, 2, 3, 4, 5, 8)
        for field, chance in {"max_bytes": 0.6, "max_msg_size": 0.3, "max_msgs": 0.2}.items():
            if dice.random() < chance:
                base = (
                    origin[field]
                    if origin[field] > 0
                    else dice.choice((30, 60) if field == "max_msgs" else (200, 2000))
                )
                stream[field] = max(int(base * dice.choice(near)) + dice.choice((0, 0, 1, 100)), 20)
        stream["max_msgs_per_subject"] = dice.choice((stream["max_msgs_per_subject"], 1, 3, 9))
        stream["storage"] = dice.choice(("file", "file", "memory"))
        stream["discard"] = dice.choice(("new", "new", "new", "old"))
        for field, value in self.ages().items() if dice.random() < 0.3 else ():
            if not (stream.get("mirror") and field == "subject_delete_marker_ttl"):
                stream[field] = value
        answer = self.raw.api(f"STREAM.CREATE.{stream['name']}", stream)
        if answer.get("error", {}).get("err_code") in REFUSED:
            return self.replica(origin)
        assert "error" not in answer, answer
        config: dict[str, Any] = answer["config"]
        return config

    def put_largest(self, origin: dict[str, Any]) -> None:
        """Write the largest value that the origin takes."""
        largest = min(origin[field] if origin[field] > 0 else LARGEST for field in ("max_msg_size", "max_bytes"))
        while not self.put(origin["name"].removeprefix("KV_"), "k", largest):
            largest -= 1

    def fill(self, origin: dict[str, Any]) -> None:
        """Replace the largest value, and write random or tiny values until the origin is full."""
        bucket, tiny = origin["name"].removeprefix("KV_"), self.dice.random() < 0.5
        self.put(bucket, "k", 0)
        written = [key for number in range(ENTRIES) if self.put(bucket, key := self._key(number), self._size(tiny))]
        while self.put(bucket, f"z{len(written)}", 0) and len(written) < 2 * ENTRIES:
            written.append("")
        self.written = written[:20]

    def overwrite(self, origin: dict[str, Any]) -> None:
        """Write new revisions, which are small: an origin with a short history may have room again."""
        for key in filter(None, self.written * 3):
            self.put(origin["name"].removeprefix("KV_"), key, 0)

    def fill_again(self, origin: dict[str, Any]) -> None:
        """Fill an origin whose entries have expired."""
        time.sleep(2 * SOON / SECOND)
        self.fill(origin)

    def put(self, bucket: str, key: str, size: int) -> bool:
        ttl = self.dice.choice(self.ttls)
        answer = self.raw.request(f"$KV.{bucket}.{key}", b"v" * size, {"Nats-TTL": ttl} if ttl else None).json()
        return "error" not in answer

    def complete(self, origin: dict[str, Any], replica: dict[str, Any]) -> bool:
        """Return whether the replica holds every key of the origin, and none that has expired there."""
        wanted, held = (self._subjects(config["name"]) for config in (origin, replica))
        if len(held) < len(wanted) or not self.expires(origin) or origin["discard"] == "old":
            return len(held) >= len(wanted)
        return self._living(origin["name"], wanted) == self._living(replica["name"], held)

    def expires(self, origin: dict[str, Any]) -> bool:
        """Return whether entries of the origin expire while the test runs."""
        return origin.get("max_age") == SOON or "1s" in self.ttls

    def arrives(self, origin: dict[str, Any], replica: dict[str, Any], patience: float) -> bool:
        deadline = time.monotonic() + patience
        while not (arrived := self.complete(origin, replica)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return arrived

    def _key(self, number: int) -> str:
        return self.dice.choice((f"{number}", f"{number}", f"a.{number}", f"a.{'k' * 100}.{number}"))

    def _size(self, tiny: bool) -> int:
        return 0 if tiny else self.dice.choice((0, 10, 50, self.dice.randint(0, 200)))

    def _living(self, stream: str, subjects: Iterable[str]) -> int:
        """Return the number of subjects whose last message is neither deleted nor a marker."""
        answers = (self.raw.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}) for subject in subjects)
        headers = (b64decode(answer["message"].get("hdrs", "")) for answer in answers if "message" in answer)
        return sum(b"Nats-Marker-Reason" not in header for header in headers)

    def _subjects(self, stream: str) -> dict[str, int]:
        found = self.raw.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})["state"].get("subjects")
        return found or {}


def flags(replica: dict[str, Any], origin: dict[str, Any], *, expiring: bool) -> tuple[list[str], list[str]]:
    """Return what kvctl refuses, and what it warns of; hazards besides limits are for contents that expire."""
    found = hazards.of_replica(replica, [origin])
    refused = [item.evidence for item in found if expiring or item.name == hazards.SMALLER_LIMITS]
    return refused, hazards.possible(replica, [origin])


def test_replica_is_refused_or_warned_of_or_holds_all_that_its_full_origin_holds(own_server, seed, steps):
    for number in range(seed, seed + steps(10)):
        dice = random.Random(number)
        with RawClient(own_server.url, timeout=60) as raw:
            pairs = Pairs(raw, dice)
            pairs.numbers = count(number * 1000)
            chain = [pairs.origin()]
            chain += [one := pairs.replica(chain[0])]
            if not one.get("mirror") and dice.random() < 0.3:
                chain += [pairs.replica(one)]
            expiring = pairs.expires(chain[0])
            flagged = [flags(replica, origin, expiring=expiring) for origin, replica in pairwise(chain)]
            told = f"seed {number}: {chain}\n{flagged}"
            sound = not any(refused or warned for refused, warned in flagged)
            # Others make room, or end early.
            plain = chain[0]["discard"] == "new" and chain[0]["max_msgs"] < 0 and not expiring
            certain = flagged[0][0] if plain else []
            by_value = any("value" in text for text in certain)
            refused = [text for text in certain if "value" not in text]
            for write in (pairs.put_largest, pairs.fill, pairs.overwrite, *[pairs.fill_again] * expiring):
                write(chain[0])
                if sound:
                    for replica in chain[1:]:
                        assert pairs.arrives(chain[0], replica, PATIENCE), told
                elif {pairs.put_largest: by_value, pairs.fill: bool(refused)}.get(write):
                    assert not pairs.arrives(chain[0], one, STUCK), f"refused, but complete: {told}"


def test_limits_are_asked_of_readable_origins_only():
    config = Aggregate("G", (Origin("O"),), max_bytes=10).to_stream([None])
    assert list(limits.shortfalls(config, [None])) == []
