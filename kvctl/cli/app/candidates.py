"""What may come next on a command line, live names included; silent on any failure, one second at most."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from typer.core import TyperArgument, TyperOption

from kvctl.cli.app.command import Group
from kvctl.cli.app.global_options import Shared, SharedOption
from kvctl.cli.app.help_page import spellings, tail_of

BUDGET = 0.8
"""Seconds for asking a server; the rest of the second is Python's start."""
MOST_KEYS = 200
FILES = "\tfiles"
"""Instead of candidates: the shell shall offer files."""

Candidate = tuple[str, str]
"""What to put on the line, and what it is."""

# What a shell could take for code, or a terminal for a command, is never offered.
_SAFE = re.compile(r"[-\w./=:@%+,]+\Z")
_PATHS = ("FILE", "DIR", "PATH", "PLAN")


def complete(tree: Group, words: Sequence[str], incomplete: str) -> list[Candidate]:
    """Candidates for the word `incomplete` after `words`. Raises LookupError after a command that does not exist."""
    ctx = _walk(tree, list(words))
    option = _option_awaiting_value(ctx, words)
    if option is not None:
        # Without its value the option would keep the words before it from being parsed.
        return _values(_walk(tree, list(words[:-1])), option, incomplete)
    if incomplete.startswith("-") and "--" not in words:
        return _option_names(ctx, incomplete)
    if isinstance(ctx.command, Group):
        return _commands(ctx.command, incomplete)
    tail = tail_of(ctx.command.params)
    if tail is not None and "--" in words:
        return [(FILES, "")]
    argument = next((param for param in ctx.command.params if param is not tail and _takes_more(ctx, param)), None)
    return [] if argument is None else _values(ctx, argument, incomplete)


def contexts(incomplete: str) -> list[str]:
    """Names of contexts."""
    from kvctl.contexts import ContextStore

    return [name for name in ContextStore().names() if name.startswith(incomplete)]


def buckets(shared: Shared, incomplete: str) -> list[str]:
    """Names of buckets."""

    async def names(client: Any, found: dict[str, None]) -> None:
        found.update(dict.fromkeys(await client.bucket_names()))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)]


def keyed(shared: Shared, incomplete: str) -> list[str]:
    """What key commands take: names of buckets, and NAME@REF of repositories."""
    if "@" in incomplete:
        return places(shared, incomplete)

    async def names(client: Any, found: dict[str, None]) -> None:
        from kvctl.kv import catalog
        from kvctl.kv.stream_kind import Kind

        for status in (await catalog.listing(client.api)).statuses:
            if status.kind in (Kind.BUCKET, Kind.AGGREGATE, Kind.MIRROR):
                found[status.bucket] = None
            elif status.kind is Kind.REPOSITORY:
                found[f"{status.bucket}@"] = None

    return [name for name in _ask(shared, names) if name.startswith(incomplete)]


def tables(shared: Shared, incomplete: str) -> list[str]:
    """Names of tables."""

    async def names(client: Any, found: dict[str, None]) -> None:
        from kvctl.tables import catalog

        found.update(dict.fromkeys([table.config.name for table in await catalog.listing(client.api)]))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)]


def repositories(shared: Shared, incomplete: str) -> list[str]:
    """Names of repositories."""

    async def names(client: Any, found: dict[str, None]) -> None:
        from kvctl.versions import catalog

        found.update(dict.fromkeys([item.config.name for item in await catalog.listing(client.api)]))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)]


def places(shared: Shared, incomplete: str, *, branches: bool = True, tags: bool = True) -> list[str]:
    """NAME@REF: names of repositories with an `@`, and after it their branches and tags."""
    name, at, ref = incomplete.partition("@")
    if not at:
        return [f"{found}@" for found in repositories(shared, name)]
    return [f"{name}@{found}" for found in refs(shared, name, ref, branches=branches, tags=tags)]


def refs(shared: Shared, repository: str, incomplete: str, *, branches: bool = True, tags: bool = True) -> list[str]:
    """Branches and tags of a repository."""

    async def names(client: Any, found: dict[str, None]) -> None:
        from kvctl.versions.repositories import Repositories

        opened = await Repositories(client).open(repository)
        for wanted, listing in ((branches, opened.branches), (tags, opened.tags)):
            found.update(dict.fromkeys(await listing() if wanted else ()))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)] if repository else []


def streams(shared: Shared, incomplete: str) -> list[str]:
    """Names of streams."""

    async def names(client: Any, found: dict[str, None]) -> None:
        found.update(dict.fromkeys(await client.jetstream.stream_names()))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)]


def consumers(shared: Shared, stream: str | None, incomplete: str) -> list[str]:
    """Names of a stream's consumers."""

    async def names(client: Any, found: dict[str, None]) -> None:
        found.update(dict.fromkeys(await client.jetstream.stream(stream).consumer_names()))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)] if stream else []


def keys(shared: Shared, bucket: str | None, incomplete: str) -> list[str]:
    """Names of keys up to their next token: `NEW.` stands for all that begin with it."""
    head = incomplete[: incomplete.rfind(".") + 1]

    async def tokens(client: Any, found: dict[str, None]) -> None:
        async for key in _keys_of(client, str(bucket), head):
            token, dot, _ = key[len(head) :].partition(".")
            if (head + token).startswith(incomplete):
                found[head + token + dot] = None
            if len(found) >= MOST_KEYS:
                return

    return _ask(shared, tokens) if bucket else []


async def _keys_of(client: Any, bucket: str, head: str) -> AsyncIterator[str]:
    """Keys of a bucket, or of a repository at a ref."""
    name, at, ref = bucket.partition("@")
    filters = [f"{head}>"] if head else []
    if not at:
        async for key in client.bucket(name).keys(*filters):
            yield key
        return
    from kvctl.versions.repositories import Repositories

    repository = await Repositories(client).open(name)
    async for batch in repository.entry_batches(ref, *filters, values=False):
        for entry in batch:
            yield entry.key


def _ask(shared: Shared, question: Callable[[Any, dict[str, None]], Awaitable[None]]) -> list[str]:
    """What the question found in time: it fills a dict, so that half an answer is one, too."""
    import asyncio
    import os

    import kvctl
    from kvctl.contexts import resolve

    found: dict[str, None] = {}

    async def ask() -> None:
        async with asyncio.timeout(BUDGET):
            context = resolve(shared.connection_flags(), os.environ)
            async with kvctl.connect(replace(context, timeout=timedelta(seconds=BUDGET))) as client:
                await question(client, found)

    with suppress(Exception):
        asyncio.run(ask())
    return list(found)


def _walk(tree: Group, words: list[str]) -> Any:
    """The innermost command that `words` name, with what they say parsed."""
    ctx = tree.make_context("kvctl", words, obj=Shared(), resilient_parsing=True)
    while isinstance(ctx.command, Group):
        rest = [*ctx._protected_args, *ctx.args]
        name, command, arguments = ctx.command.resolve_command(ctx, rest) if rest else (None, None, [])
        if command is None:
            if rest:
                raise LookupError(rest[0])
            return ctx
        ctx = command.make_context(name, arguments, parent=ctx, resilient_parsing=True)
    return ctx


def _option_awaiting_value(ctx: Any, words: Sequence[str]) -> TyperOption | None:
    if not words or "--" in words:
        return None
    options = [param for param in ctx.command.params if isinstance(param, TyperOption) and not param.is_flag]
    return next((option for option in options if words[-1] in option.opts), None)


def _option_names(ctx: Any, incomplete: str) -> list[Candidate]:
    name, equals, value = incomplete.partition("=")
    options = [param for param in ctx.command.params if isinstance(param, TyperOption) and not param.hidden]
    if equals:
        option = next((option for option in options if name in option.opts and not option.is_flag), None)
        found = _values(ctx, option, value) if option is not None else []
        return [(text if text == FILES else f"{name}={text}", help) for text, help in found]
    # A command's own options first: the shared ones are many, and rarely what is looked for.
    options.sort(key=lambda option: isinstance(option, SharedOption))
    return [
        (spelling, option.help or "")
        for option in options
        for spelling in sorted(spellings(option), key=len, reverse=True)
        if spelling.startswith(incomplete)
    ]


def _commands(group: Group, incomplete: str) -> list[Candidate]:
    names = group.list_commands(None)
    return [(name, group.entries[name].summary) for name in names if name.startswith(incomplete)]


def _takes_more(ctx: Any, param: Any) -> bool:
    if not isinstance(param, TyperArgument):
        return False
    return param.nargs == -1 or ctx.params.get(param.name) in (None, (), [])


def _values(ctx: Any, param: TyperArgument | TyperOption, incomplete: str) -> list[Candidate]:
    found = [(item.value, item.help or "") for item in param.shell_complete(ctx, incomplete)]
    words = (param.metavar or "").strip("[].").split("|")
    if not found and any(word in _PATHS for word in words):
        return [(FILES, "")]
    return list(_safe(found))


def _safe(candidates: Iterable[Candidate]) -> Iterable[Candidate]:
    return (candidate for candidate in candidates if _SAFE.match(candidate[0]))
