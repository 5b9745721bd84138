"""Random topology files and the expected contents of each replica, from file and writes, without code of kvctl."""

import base64
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.raw import RawClient

TOKENS = ("a", "b", "NEW", "x-1")
SECTIONS = ("buckets", "mirrors", "aggregates")
Contents = dict[str, bytes]


@dataclass
class OriginOf:
    """An origin of a mirror or an aggregate: a name in the file, and the destinations of its keys."""

    name: str
    rules: list[tuple[str, str]]
    """Filters and where their keys land, `$1` for the first wildcard."""
    words: dict[str, Any]
    """The same in the words of a file, without the name."""


@dataclass
class Resource:
    """One bucket, mirror or aggregate of a file."""

    section: str
    name: str
    place: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    origins: list[OriginOf] = field(default_factory=list)
    alone: bool = False
    """An aggregate whose one origin has no prefix: a second one would collide with it."""

    @property
    def stream(self) -> str:
        """The name of its stream."""
        return self.name if self.section == "mirrors" else f"KV_{self.name}"


class RandomTopology:
    """A topology file that grows and changes at random. `domains` are the JetStream domains, `""` for none."""

    def __init__(
        self,
        dice: random.Random,
        names: Callable[[str], str],
        domains: Mapping[str, str] | None = None,
        *,
        memory: bool = False,
        urls: Mapping[str, str] | None = None,
    ) -> None:
        self.urls = urls or {}
        """Of the servers of places other than `""`."""
        self.dice, self.names, self.domains, self.memory = dice, names, domains or {"": ""}, memory
        self.resources: dict[str, Resource] = {}
        self.title = names("t")
        self.ever: set[str] = set()
        """All names there have been: what `--confirm` may have to name."""
        self.emptied: set[str] = set()
        """Buckets that the next apply makes anew."""
        self._prefixes = 0
        self._add_bucket()

    # -- what it says ----------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """Return the file as plain data; sections and their members in random order."""
        found: dict[str, Any] = {"version": 1, "name": self.title}
        if self.urls:
            found["contexts"] = {place: {"url": url} for place, url in self.urls.items()}
        for section in self.dice.sample(SECTIONS, 3):
            members = [item for item in self.resources.values() if item.section == section]
            self.dice.shuffle(members)
            if members:
                found[section] = {item.name: self._words(item) for item in members}
        return found

    def contents(self, buckets: Mapping[str, Contents]) -> dict[str, Contents]:
        """Return the live keys and values that each of its streams must hold, given those of the buckets."""
        found: dict[str, Contents] = {}

        def of(name: str) -> Contents:
            if name not in found:
                item = self.resources[name]
                found[name] = dict(buckets.get(name, {})) if item.section == "buckets" else {}
                for origin in item.origins:
                    for key, value in of(origin.name).items():
                        if (place := lands(origin.rules, key)) is not None:
                            assert place not in found[name], f"`{place}` of `{name}` comes from two origins"
                            found[name][place] = value
            return found[name]

        for name in self.resources:
            of(name)
        return found

    def key_space(self, name: str) -> str:
        """Return the bucket or aggregate under whose name a stream's keys are stored."""
        item = self.resources[name]
        return self.key_space(item.origins[0].name) if item.section == "mirrors" else name

    @property
    def replicas(self) -> list[Resource]:
        """Return all mirrors and aggregates."""
        return [item for item in self.resources.values() if item.section != "buckets"]

    # -- how it changes ----------------------------------------------------------------------------------------

    def grow(self, count: int) -> None:
        """Add this number of buckets, mirrors and aggregates."""
        for _ in range(count):
            self.dice.choice([self._add_bucket, self._add_mirror, self._add_aggregate, self._add_aggregate])()

    def change(self) -> str:
        """Change the file at random, and return a description."""
        changes = [
            self._add_bucket,
            self._add_mirror,
            self._add_aggregate,
            self._drop,
            self._add_origin,
            self._drop_origin,
            self._drop_origin,
            self._drop_origin,
            self._change_origin,
            self._longer_history,
            self._move_mirror,
            self._recreate,
        ]
        while not (text := self.dice.choice(changes)()):
            pass
        return text

    def _add_bucket(self) -> str:
        fields: dict[str, Any] = {"history": self.dice.randint(1, 4)}
        if self.dice.random() < 0.4:
            fields["marker_ttl"] = "1s"
        return self._add(Resource("buckets", self.names("B"), self._place(), fields))

    def _add_mirror(self) -> str:
        item = Resource("mirrors", self.names("M"), self._place())
        item.origins = [OriginOf(self.dice.choice([*self.resources]), [(">", ">")], {})]
        return self._add(item)

    def _add_aggregate(self) -> str:
        item = Resource("aggregates", self.names("A"), self._place(), alone=self.dice.random() < 0.2)
        for _ in range(1 if item.alone else self.dice.randint(1, 3)):
            self._read(item)
        return self._add(item)

    def _add(self, item: Resource) -> str:
        self.resources[item.name] = item
        self.ever.add(item.name)
        return f"add {item}"

    def _drop(self) -> str:
        read = {origin.name for item in self.resources.values() for origin in item.origins}
        free = [name for name in self.resources if name not in read]
        if len(self.resources) < 4 or not free:
            return ""
        return f"drop {self.resources.pop(self.dice.choice(free))}"

    def _add_origin(self) -> str:
        item = self._some("aggregates", lambda item: not item.alone and len(item.origins) < 4)
        return f"{item.name} reads {item.origins[-1]}" if item and self._read(item) else ""

    def _drop_origin(self) -> str:
        item = self._some("aggregates", lambda item: len(item.origins) > 1)
        return f"{item.name} drops {item.origins.pop(self.dice.randrange(len(item.origins)))}" if item else ""

    def _change_origin(self) -> str:
        item = self._some("aggregates", lambda item: not item.alone)
        if item is None:
            return ""
        at = self.dice.randrange(len(item.origins))
        item.origins[at] = self._origin(item.origins[at].name, item)
        return f"{item.name} reads otherwise {item.origins[at]}"

    def _longer_history(self) -> str:
        item = self._some("buckets")
        if item is None:
            return ""
        item.fields["history"] += 1
        return f"history of {item.name} {item.fields['history']}"

    def _move_mirror(self) -> str:
        item = self._some("mirrors")
        if item is None:
            return ""
        above = [name for name in self.resources if item.name not in self._closure(name)]
        others = [name for name in above if name != item.origins[0].name]
        if not others or self._readers(item.name):  # those know the keys by their bucket
            return ""
        item.origins[0].name = self.dice.choice(others)
        return f"{item.name} mirrors {item.origins[0].name}"

    def _recreate(self) -> str:
        item = self._some("buckets") if self.memory else None
        if item is None:
            return ""
        item.fields["storage"] = "file" if item.fields.get("storage") == "memory" else "memory"
        self.emptied.add(item.name)
        return f"{item.name} is made anew"

    # -- origins ---------------------------------------------------------------------------------------------

    def _read(self, item: Resource) -> bool:
        """Add an origin that an aggregate does not read yet, directly or through others, and that is not itself."""
        read = {name for origin in item.origins for name in self._closure(origin.name)}
        names = [
            name
            for name in self.resources
            if name != item.name
            and item.name not in (above := self._closure(name))
            and not above & read
            and not any(above & self._above(reader) for reader in self._below(item.name))
        ]
        if not names:
            return False
        item.origins.append(self._origin(self.dice.choice(names), item))
        return True

    def _origin(self, name: str, item: Resource) -> OriginOf:
        self._prefixes += 1
        prefix = "" if item.alone else self.dice.choice([f"p{self._prefixes}", f"p{self._prefixes}.q"])
        head = f"{prefix}." if prefix else ""
        said = {"prefix": prefix} if prefix else {}
        shape = self.dice.randrange(3)
        if shape == 0:
            return OriginOf(name, [(">", f"{head}>")], said)
        if shape == 1:
            text = self._filter()
            return OriginOf(name, [(text, head + behind_head(text))], {**said, "keys": [text]})
        firsts = self.dice.sample(TOKENS, self.dice.randint(1, 2))
        maps = {text: self._destination(text, number) for number, text in enumerate(map(self._filter, firsts))}
        return OriginOf(name, [(text, head + dest) for text, dest in maps.items()], {**said, "map": maps})

    def _filter(self, first: str = "") -> str:
        tokens = [first] if first else []
        tokens += [self.dice.choice([*TOKENS, "*"]) for _ in range(self.dice.randint(0 if first else 1, 2))]
        return ".".join([*tokens, *([">"] if self.dice.random() < 0.6 else [])])

    def _destination(self, text: str, number: int) -> str:
        places = [f"${at}" for at in range(1, text.split(".").count("*") + 1)]
        self.dice.shuffle(places)
        return ".".join([f"m{number}", *places, *([">"] if text.endswith(">") else [])])

    # -- the graph -------------------------------------------------------------------------------------------

    def _closure(self, name: str) -> set[str]:
        """Return a name and all its direct and indirect origins."""
        return {name} | {above for origin in self.resources[name].origins for above in self._closure(origin.name)}

    def _above(self, name: str) -> set[str]:
        return self._closure(name) - {name}

    def _readers(self, name: str) -> set[str]:
        return {item.name for item in self.resources.values() if name in {origin.name for origin in item.origins}}

    def _below(self, name: str) -> set[str]:
        found = self._readers(name)
        return found.union(*(self._below(reader) for reader in found))

    def _some(self, section: str, suits: Callable[[Resource], bool] = lambda _: True) -> Resource | None:
        found = [item for item in self.resources.values() if item.section == section and suits(item)]
        return self.dice.choice(found) if found else None

    def _place(self) -> str:
        return self.dice.choice([*self.domains])

    def _words(self, item: Resource) -> dict[str, Any]:
        words = dict(item.fields)
        if item.place:
            words["in"] = item.place
        if item.section == "mirrors":
            (origin,) = item.origins
            words["origin"] = origin.name
            words |= {f"origin_{key}": text for key, text in self._way(item, origin).items()}
        elif item.section == "aggregates":
            words["origins"] = [
                {"bucket": origin.name, **origin.words, **self._way(item, origin)} for origin in item.origins
            ]
        return words

    def _way(self, item: Resource, origin: OriginOf) -> dict[str, str]:
        place = self.resources[origin.name].place
        return {"domain": self.domains[place]} if place != item.place else {}


def taken(text: str, key: str) -> tuple[list[str], str] | None:
    """Return the matches of a filter's wildcards in a key, the last `>` apart; None if it does not match."""
    parts, tokens, wild = text.split("."), key.split("."), []
    for at, part in enumerate(parts):
        if part == ">":
            return (wild, ".".join(tokens[at:])) if len(tokens) > at else None
        if at >= len(tokens) or part not in ("*", tokens[at]):
            return None
        if part == "*":
            wild.append(tokens[at])
    return (wild, "") if len(parts) == len(tokens) else None


def lands(rules: Sequence[tuple[str, str]], key: str) -> str | None:
    """Return the destination of a key under the first matching rule; None if none matches."""
    for text, dest in rules:
        if (found := taken(text, key)) is not None:
            wild, rest = found
            tokens = [wild[int(part[1:]) - 1] if part[:1] == "$" else part for part in dest.split(".")]
            return ".".join(rest if part == ">" else part for part in tokens)
    return None


def behind_head(text: str) -> str:
    """Return a filter without its literal head, its `*` numbered; a filter without wildcards stays."""
    parts = text.split(".")
    wild = [at for at, part in enumerate(parts) if part in ("*", ">")]
    if not wild:
        return text
    kept, number = [], 0
    for part in parts[wild[0] :]:
        number += part == "*"
        kept.append(f"${number}" if part == "*" else part)
    return ".".join(kept)


class Writes:
    """Random writes to the buckets of a topology, and their live keys afterwards."""

    def __init__(self, dice: random.Random, raws: Mapping[str, RawClient], *, kills: bool = False) -> None:
        self.dice, self.raws = dice, raws
        self.kills = kills
        """If servers are killed, nothing expires and no history overflows: when the later entries of a key are removed
        too, with an origin of an aggregate, a killed server up to 2.15 restores such entries (nats-server issue 8505).
        """
        self.alive: dict[str, Contents] = {}
        self._written: Counter[tuple[str, str]] = Counter()
        self._number = 0
        self.last_expiry = 0.0
        """By this clock (`time.monotonic`) everything with a ttl of its own has expired."""

    def some(self, topology: RandomTopology, count: int) -> None:
        """Put, delete, purge, and put with a ttl of a second."""
        buckets = [item for item in topology.resources.values() if item.section == "buckets"]
        for _ in range(count):
            item = self.dice.choice(buckets)
            self._write(item, self.alive.setdefault(item.name, {}))

    def emptied(self, topology: RandomTopology) -> None:
        """Forget the contents of recreated buckets."""
        for name in topology.emptied:
            self.alive.pop(name, None)
        topology.emptied.clear()

    def _write(self, item: Resource, alive: Contents) -> None:
        self._number += 1
        key, value = ".".join(self.dice.choices(TOKENS, k=self.dice.randint(1, 3))), str(self._number).encode()
        chance = self.dice.random()
        headers: dict[str, str] | None = None
        if chance < 0.1 and not self.kills and "marker_ttl" in item.fields:
            key, headers = f"{key}.ttl-{self._number}", {"Nats-TTL": "1s"}  # of its own: what it held would come back
            self.last_expiry = time.monotonic() + 1
        elif chance < 0.25:
            value, headers = b"", {"KV-Operation": "DEL"}
        elif chance < 0.35:
            value, headers = b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
        if self.kills and self._written[item.name, key] >= item.fields["history"]:
            key = f"{key}.new-{self._number}"
        self._written[item.name, key] += 1
        self.raws[item.place].put(item.name, key, value, headers)
        if headers is None:
            alive[key] = value
        else:
            alive.pop(key, None)


def living(raw: RawClient, topology: RandomTopology, name: str) -> Contents:
    """Return the live keys of a stream, with their values, read from its leader one by one."""
    stream, head = topology.resources[name].stream, f"$KV.{topology.key_space(name)}."
    subjects = raw.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})["state"].get("subjects") or {}
    found: Contents = {}
    for subject in subjects:
        reply = raw.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        if "message" not in reply:
            continue  # it has expired since
        assert subject.startswith(head), f"`{subject}` of `{stream}` is not below `{head}`"
        header = base64.b64decode(reply["message"].get("hdrs") or "")
        if b"KV-Operation:" not in header and b"Nats-Marker-Reason:" not in header:
            found[subject.removeprefix(head)] = base64.b64decode(reply["message"].get("data") or "")
    return found
