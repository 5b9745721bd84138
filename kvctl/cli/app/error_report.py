"""Error reports, from an exception to a message and an exit code, and suggestions for unknown commands and options."""

import re
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import typer
from typer.core import TyperOption

from kvctl.cli.app.help_page import argument_usage, arguments, spellings, usage
from kvctl.cli.app.session import Interruption
from kvctl.errors import KvctlError, ReadOnly, UsageError
from kvctl.kv import names
from kvctl.phrases import joined
from kvctl.render.terminal import OutputClosed, Terminal
from kvctl.suggest import nearest
from kvctl.topology.model import subjects

_SECRETS = {
    "--password": "Secrets on the command line are visible to others: use --password-file or NATS_PASSWORD",
    "--token": "Secrets on the command line are visible to others: use --token-file or NATS_TOKEN",
}
_ON_SERVERS = re.compile(r"(?<=`)kvctl (?!context |help |server |[^`]*--(?:help|context)\b)")
"""Beginning of a command line that needs the context of the failed one."""


def report(error: BaseException, terminal: Terminal, argv: Sequence[str] = (), context: str | None = None) -> int:
    """Print the error of a command line to stderr and return the exit code.

    Command lines of the hint name the context that was given.
    """
    error = _first(error)
    if isinstance(error, OutputClosed):
        return 0
    if isinstance(error, Interruption | KeyboardInterrupt):
        return getattr(error, "exit_code", 130)
    shown = _as_kvctl_error(error, argv)
    if shown is None:
        shown = _bug(error, terminal)
    if isinstance(shown, ReadOnly) and shown.aggregate is not None and shown.key is not None:
        shown.hint = _hint_of_origin(shown.aggregate, shown.key, argv) or shown.hint
    shown.hint = shown.hint and with_context(shown.hint, context)
    terminal.report(shown)
    return shown.exit_code


def with_context(text: str, context: str | None) -> str:
    """Return a text whose command lines name the context, if one is given."""
    return _ON_SERVERS.sub(f"kvctl --context {context} ", text) if context else text


def explain(error: typer.TyperException, argv: Sequence[str] = ()) -> UsageError:
    """Convert Typer's error in a command line to a UsageError with names in backticks and a hint."""
    ctx = getattr(error, "ctx", None)
    shown = f"Usage: `{usage(ctx)}`" if ctx is not None else None
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        return UsageError(f"No such option `{option}`", hint=_option_hint(ctx, option))
    if option is not None:
        wrong = "takes no value" if "does not take" in error.message else "needs a value"
        return UsageError(f"Option `{option}` {wrong}", hint=shown)
    param = getattr(error, "param", None)
    if param is not None and "Missing" in type(error).__name__:
        return UsageError(f"Missing {param.param_type_name} `{_name(param)}`", hint=shown)
    if param is not None:
        return UsageError(f"Invalid value for `{_name(param)}`: {_plain(error.message)}", hint=shown)
    if ctx is not None and "--header" in argv:  # of tsv; other tools write headers of messages with it
        shown = OPTION_REMARKS.get(f"{ctx.command_path.partition(' ')[2]} --headers", shown)
    if ctx is not None and ctx.command_path == "kvctl context add" and "://" in error.message:
        shown = f"Give the address with `--server`. {shown}"
    return UsageError(_plain(error.format_message()), hint=shown)


def _first(error: BaseException) -> BaseException:
    """Return the first error of a task group, which caused the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _as_kvctl_error(error: BaseException, argv: Sequence[str]) -> KvctlError | None:
    if isinstance(error, KvctlError):
        return error
    if isinstance(error, typer.TyperException):
        return explain(error, argv)
    if isinstance(error, OSError) and error.filename is not None:
        return KvctlError(f"Cannot use `{error.filename}`: {error.strerror}")
    return None


def _bug(error: BaseException, terminal: Terminal) -> KvctlError:
    if terminal.verbose:
        terminal.emit("".join(traceback.format_exception(error)).rstrip())
    hint = None if terminal.verbose else "Run it again with `-v` for the traceback, and please report it"
    return _Bug(f"This is a bug in kvctl: {type(error).__name__}: {error}", hint=hint)


class _Bug(KvctlError, kind="bug"):
    """Error that kvctl does not expect."""


_WRITES = "put create update touch delete purge edit revert".split()


def _hint_of_origin(aggregate: dict[str, Any], key: str, argv: Sequence[str]) -> str | None:
    """Return the command lines that write the key of an aggregate where it comes from; None if that is unknown."""
    try:
        found = subjects.written_at(aggregate, key)
    except UsageError:  # a transform that kvctl cannot invert
        return None
    verb = next((word for word in argv if word in _WRITES), "put")
    value = " VALUE" if verb in ("put", "create", "update") else ""
    lines: dict[str, str] = {}
    for source, subject in found:
        bucket, _, there = subject.removeprefix(names.SUBJECT_PREFIX).partition(".")
        reachable = source.domain or not source.api  # not in another account
        if reachable and there and subject.startswith(names.SUBJECT_PREFIX) and not names.is_wild(there):
            domain = f"--domain {source.domain} " if source.domain else ""
            lines[f"`kvctl {verb} {domain}{bucket} {there}{value}`"] = f"`{bucket}`"
    if not lines:
        if found:
            return None
        name = aggregate["name"].removeprefix(names.STREAM_PREFIX)
        return f"No origin has a key that lands at `{key}`; see its prefixes with `kvctl aggregate show {name}`"
    return f"The key comes from {joined(dict.fromkeys(lines.values()), 'or')}: {joined(lines, 'or')}"


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return argument_usage(param).strip("[].")
    return str(max(param.opts, key=len))


def _option_hint(ctx: Any, option: str) -> str:
    if option in _SECRETS:
        return _SECRETS[option]
    path = ctx.command_path if ctx is not None else "kvctl"
    options = () if ctx is None else (param for param in ctx.command.params if isinstance(param, TyperOption))
    shown = sorted(name for param in options if not param.hidden for name in spellings(param))
    listed = f"`{path} --help` lists the options"
    meant = of_option(path.partition(" ")[2], option, shown, listed)
    taken = {_name(param).removesuffix("|-") for param in arguments(ctx.command.params if ctx else ())}
    values = {"VALUE"} if option.startswith("--") else taken if option[1:].isdigit() else {"VALUE", "KEY"}
    if meant or not taken & values:
        return meant or listed
    return f"{listed}; put `--` before an argument that starts with a dash"


def _plain(message: str) -> str:
    message = message.removeprefix("Got unexpected extra argument(s) (")
    unexpected = message.removesuffix(")")
    if unexpected != message and "(" not in unexpected:
        return f"Unexpected argument `{unexpected}`"
    return message.rstrip(".").replace("'", "`")


# -- suggestions: near names, other levels, and words of other tools ------------------------------------------

MOST_SUGGESTIONS = 3
"""Maximum number of commands in a hint."""

VERBS = dict(
    pair.split(":")
    for pair in (
        "alter:edit blame:annotate cat:get change:edit compare:diff describe:show destroy:delete drop:delete "
        "inspect:show make:create modify:edit prune:gc remove:delete rollback:revert set:put start:run "
        "undo:revert update:edit"
    ).split()
)
"""Words of other tools -> the command of the same group."""
COMMANDS = {
    "account": "context test", "c": "consumer", "check": "doctor", "con": "consumer", "config": "context",
    "cp": "copy", "ctx": "context", "describe": "bucket show", "export": "dump", "import": "load",
    "inspect": "bucket show", "kv": "bucket", "login": "context add", "mv": "rename", "pub": "put",
    "replicate": "mirror create", "report": "topology status", "rtt": "context test", "s": "stream", "scan": "keys",
    "str": "stream", "sub": "watch", "subscribe": "watch", "tail": "watch", "expire": "touch",
    "hashkv": "topology audit", "make-mirror": "mirror create", "renew": "touch",
    "use": "context select", "validate": "topology plan",
    "aggregate add-source": "aggregate add-origin",
    "aggregate remove-source": "aggregate remove-origin",
    "bucket clone": "bucket copy", "bucket export": "dump", "bucket import": "load", "bucket mirror": "mirror create",
    "bucket replicate": "mirror create", "bucket snapshot": "bucket backup",
    "consumer report": "consumer ls", "consumer sub": "consumer consume",
    "context current": "context show", "context save": "context add", "context switch": "context select",
    "context use": "context select", "context validate": "context test",
    "pipeline dump": "pipeline export", "pipeline import": "pipeline load",
    "repo history": "repo log", "repo rebase": "repo cherry-pick",
    "server check": "doctor", "server report": "topology status",
    "stream find": "stream ls", "stream report": "topology status", "stream rmm": "stream delete-message",
    "stream state": "stream show",
    "table dump": "table entries", "table insert": "table put-if-absent", "table load": "table update",
    "table scan": "table entries",
    "topology check": "topology plan", "topology compare": "topology audit", "topology diff": "topology plan",
    "topology init": "topology export", "topology ls": "topology status", "topology list": "topology status",
    "topology refresh": "topology status", "topology validate": "topology plan", "topology verify": "topology audit",
}  # fmt: skip
"""Command lines of other tools -> the command here."""
_SYNC = (
    "`kvctl bucket copy SRC DST` copies once, a mirror (`kvctl mirror create`) or an aggregate "
    "(`kvctl aggregate create`) follows its origin"
)
REMARKS = {
    "bucket rename": "`kvctl bucket copy NAME NEWNAME --data history` copies a bucket under a new name",
    "repo clone": "`kvctl repo init NEWNAME --from BUCKET` creates a repository from a bucket",
    "repo pull": "`kvctl repo commit NAME@BRANCH --from BUCKET` commits the content of a bucket",
    "repo push": "`kvctl repo checkout NAME@REF --to BUCKET` writes a commit to a bucket",
    "repo stage": "`kvctl put NAME@BRANCH KEY VALUE` stages a change",
    "sync": _SYNC, "bucket sync": _SYNC,
    "ttl": "`kvctl get BUCKET KEY -o json` shows what is left of the ttl, `kvctl touch BUCKET KEY --ttl D` renews it",
}  # fmt: skip
"""Command lines of other tools -> a hint."""
_KEY_COMMANDS = ("create", "del", "delete", "get", "history", "purge", "put", "revert", "rm", "update", "watch")
"""Commands of `nats kv` that work on keys, which are at the root here; `del` also deletes buckets there."""
_ON_KEYS_TOO = ("aggregate", "bucket", "kv", "mirror", "repo")
"""Groups whose members the key commands at the root take."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "--all-keys": ("--match",), "--auto-approve": ("--yes",),
    "--batch": ("--limit", "--count"), "--cas": ("--if-revision",),
    "--check": ("--dry-run",), "--count": ("--limit", "--batch"),
    "--compression": ("--compress",), "--csv": ("-o tsv",), "--delete": ("--prune",),
    "--deletes": ("--ignore-deletes",), "--detailed-exitcode": ("--exit-code",),
    "--expire": ("--ttl",), "--expires": ("--ttl", "--wait-for"), "--external-api": ("--origin-api",),
    "--filter": ("--keys", "--subject", "--match"), "--filter-subject": ("--filter", "--keys", "--subject"),
    "--follow": ("--watch",), "--for": ("--wait-for",), "--force": ("--yes",), "--format": ("--output",),
    "--from": ("--origin",),
    "--host": ("--server",), "--if-exists": ("--ignore-missing",), "--ignore-not-found": ("--ignore-missing",),
    "--json": ("-o json",), "--key": ("--keys",), "--last": ("--limit",),
    "--limit": ("--count", "--batch"), "--max-age": ("--ttl",),
    "--max-bucket-size": ("--max-bytes",), "--max-count": ("--limit", "--count"),
    "--max-msg-size": ("--max-value-size",), "--max-msgs-per-subject": ("--history",), "--mirror": ("--origin",),
    "--mirror-domain": ("--origin-domain",), "--missing-ok": ("--ignore-missing",), "--name-only": ("-o name",),
    "--names": ("-o name",), "--no-color": ("--color never",), "--no-colour": ("--color never",),
    "--no-confirm": ("--yes",), "--no-deletes": ("--ignore-deletes",), "--num-replicas": ("--replicas",),
    "--modify-index": ("--if-revision",), "--new": ("--updates-only",), "--new-only": ("--updates-only",),
    "--ours": ("--strategy",), "--out": ("--to",), "--placement-cluster": ("--cluster",),
    "--placement-tags": ("--tag",), "--republish-destination": ("--republish",),
    "--republish-headers": ("--republish-headers-only",), "--republish-source": ("--republish",),
    "--revision": ("--if-revision", "--from-revision", "--if-version"),
    "--rev": ("--revision", "--if-revision", "--from-revision"), "--skip-initial": ("--updates-only",),
    "--source": ("--origin",), "--source-domain": ("--origin-domain",), "--subjects": ("--subject",),
    "--tags": ("--tag",), "--to": ("--out",),
    "--theirs": ("--strategy",), "--transform": ("--map",), "--updates": ("--updates-only",),
    "--url": ("--server",), "--username": ("--user",), "--versions": ("--history",), "--wait": ("--wait-for",),
    "--yaml": ("-o yaml",), "-a": ("--all",), "-f": ("--yes",), "-j": ("-o json",), "-n": ("--limit N", "--count N"),
    "-w": ("--watch", "-o json"),
}  # fmt: skip
"""Options of other tools -> options here, of which the first one that the command has is meant."""
_FILTERS = "A filter selects keys: `kvctl keys BUCKET 'a.>'` lists those that begin with `a.`"
_MATCH = "`kvctl delete BUCKET --match '>'` and `kvctl purge BUCKET --match '>'` take a filter, `'a.>'` for a beginning"
_UPDATE = "`kvctl update BUCKET KEY VALUE REVISION` writes a key that has not changed since that revision"
_HEADERS = "`kvctl load BUCKET FILE` writes rows with the field `headers`"
_GROUPS = "`kvctl bucket stats BUCKET --by-prefix 1` groups keys by their first token"
_PROMOTE = "`kvctl mirror promote NAME --as BUCKET` turns a mirror into a bucket"
_VALUES = "`kvctl get BUCKET '>'` shows all keys with their values"
_OPTION_REMARKS = {
    "get keys watch history dump --prefix": _FILTERS,
    "get keys watch history dump --recurse": _FILTERS,
    "delete purge --prefix": _MATCH, "delete purge --all": _MATCH, "delete purge --recurse": _MATCH,
    "keys --display-value": _VALUES, "keys --values": _VALUES,
    "get --keys-only": _FILTERS, "get --keys": _FILTERS, "keys --keys-only": "`kvctl keys BUCKET` lists keys only",
    "keys get --separator": _GROUPS, "keys get --tree": _GROUPS,
    "put --cas": _UPDATE, "put --modify-index": _UPDATE, "put --if-revision": _UPDATE, "put --rev": _UPDATE,
    "put create update -H": _HEADERS, "put create update --headers": _HEADERS,
}  # fmt: skip
OPTION_REMARKS = {
    f"{command} {option}": remark
    for line, remark in _OPTION_REMARKS.items()
    for *commands, option in [line.split()]
    for command in commands
} | {
    "bucket add --mirror": "`kvctl mirror create NAME --origin BUCKET` creates a mirror",
    "bucket add --mirror-domain": "`kvctl mirror create NAME --origin BUCKET --origin-domain DOMAIN` creates a mirror",
    "bucket add --source": "`kvctl aggregate create NAME --origin BUCKET` creates an aggregate",
    "bucket compact -f": "`kvctl bucket compact` asks for no confirmation",
    "bucket edit --no-mirror": _PROMOTE,
    "bucket ls -n": "`kvctl bucket ls -o name` lists names, `--limit N` the first buckets",
    "get --print-value-only": "`kvctl get` writes the exact bytes of a value to a pipe",
    "get --raw": "`kvctl get` writes the exact bytes of a value to a pipe",
    "mirror edit --no-mirror": _PROMOTE,
    "stream ls -w": "`kvctl bucket ls -w` lists buckets until it is stopped, `kvctl topology status -w` their replicas",
    "put --ttl": "`kvctl create --ttl` sets the ttl of a new key, `kvctl touch --ttl` that of an existing one",
}
"""Command and option of other tools -> a hint."""


class Tree(Protocol):
    """Group of commands, as far as suggestions need it."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""

    def all_names(self) -> list[str]:
        """Return the names and aliases of the commands."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name."""

    def canonical(self, name: str) -> str | None:
        """Return the command's name for a name or an alias, or None."""


def of_command(root: Tree, path: Sequence[str], words: Sequence[str], then: str) -> str:
    """Return a hint for the unknown command `words[0]` in the group at `path`; a suggestion is followed by `then`."""
    line = " ".join([*path, words[0]])
    if line in REMARKS:
        return REMARKS[line]
    found = _meant(root, path, words)
    if not found:
        return then
    shown = [f"`kvctl {name}`" for name in found[:MOST_SUGGESTIONS]]
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
    return f"Did you mean {listed}? {then}"


def of_option(command: str, option: str, known: Iterable[str], then: str) -> str | None:
    """Return a hint for an unknown option of a command with these options, or None; see `of_command`."""
    if remark := OPTION_REMARKS.get(f"{command} {option}"):
        return remark
    by_stem = {name.lstrip("-"): name for name in known}
    for other in OPTIONS.get(option, ()):
        if other.partition(" ")[0].lstrip("-") in by_stem:
            return f"Did you mean `{other}`? {then}"
    near = nearest(option.lstrip("-"), by_stem)
    return f"Did you mean `{by_stem[near]}`? {then}" if near else None


def _meant(root: Tree, path: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return command lines that may be meant, the most likely first."""
    name, *rest = words
    if [*path, name] == ["kv"] and rest:
        return _of_nats_kv(root, rest[0])
    if known := COMMANDS.get(" ".join([*path, name])):
        return [known]
    group: Tree = root
    for step in path:
        group = group.get_command(None, step)
    verb = group.canonical(VERBS.get(name, name))
    near = verb or nearest(name, group.all_names())
    if near:
        return [" ".join([*path, near])]
    if path and path[0] in _ON_KEYS_TOO and (found := root.canonical(name)):
        return [found]
    return _elsewhere(root, name)


def _of_nats_kv(root: Tree, name: str) -> list[str]:
    bucket: Tree = root.get_command(None, "bucket")
    if name in _KEY_COMMANDS:
        return [str(root.canonical(name))]
    found = bucket.canonical(name)
    return [f"bucket {found}" if found else "bucket"]


def _elsewhere(root: Tree, name: str) -> list[str]:
    """Return the commands of this name in any group; without one, those with an alias or a near name."""
    groups = {group: root.get_command(None, group) for group in root.list_commands(None)}
    trees: dict[str, Tree] = {group: tree for group, tree in groups.items() if hasattr(tree, "canonical")}
    exact = [f"{group} {name}" for group, tree in trees.items() if name in tree.list_commands(None)]
    if exact:
        return exact
    aliases = [f"{group} {found}" for group, tree in trees.items() if (found := tree.canonical(name))]
    if aliases:
        return aliases
    return [f"{group} {near}" for group, tree in trees.items() if (near := nearest(name, tree.all_names()))]
