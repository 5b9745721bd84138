"""Short commands as complete processes."""

from bench.case import START, Aim, Prepared, case
from bench.harness import WORKS, Bench

SCRIPT = "leanest nats-py script"


@case("get", "`get` of one key, whole process", seconds=15, rounds=15, aims=(Aim(0.9, SCRIPT), START))
def get(bench: Bench, _: int) -> Prepared:
    """A complete `kvctl get`, beside the shortest script and the bare interpreter.

    The script connects with nats-py, sends one direct get without asking for the bucket first, and prints the value. It
    runs as if aiohttp were not installed, which nats-py imports if it can: that takes twice as long.
    """
    name, key = bench.keys(1000), f"k.{7:018d}"
    python = bench.ours.python
    return {
        **bench.kvctl("get", name, key),
        SCRIPT: lambda: bench.process(python, str(WORKS / "lean_get.py"), bench.url, name, key),
        **bench.nats("nats kv get --raw", "kv", "get", "--raw", name, key),
        "python -c pass": lambda: bench.process(python, "-c", "pass"),
        "python -c 'import asyncio'": lambda: bench.process(python, "-c", "import asyncio"),
    }


@case("put", "`put` of one key, whole process", seconds=6, rounds=9, aims=(START,))
def put(bench: Bench, _: int) -> Prepared:
    """A complete `kvctl put`."""
    name = bench.bucket("PUTS")
    return {**bench.kvctl("put", name, "k", "v"), **bench.nats("nats kv put", "kv", "put", name, "k", "v")}


@case("get-1000", "`get` of 1,000 keys, whole process", seconds=4, rounds=5, aims=(START,))
def get_thousand(bench: Bench, _: int) -> Prepared:
    """A thousand keys of one command."""
    name = bench.keys(1000)
    names = [f"k.{number:018d}" for number in range(1000)]
    (first, ours), *rest = bench.kvctl("get", name, *names, "-o", "ndjson").items()
    assert first == "kvctl get"
    one = bench.kvctl("get", name, names[0])["kvctl get"]
    return {"kvctl get of 1,000 keys": ours, **dict(rest), "kvctl get of one": one}
