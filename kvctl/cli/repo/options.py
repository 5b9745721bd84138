"""Shared parameters of the repository commands: names, refs, authors; parsing and opening them."""

from typing import Annotated, Any, NamedTuple

import kvctl
from kvctl.cli.app.options import argument, live, option
from kvctl.cli.app.session import Session
from kvctl.deferred import pattern
from kvctl.errors import NotFoundError, UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.kv.names import is_ref, split_ref
from kvctl.versions import catalog, refs, repositories

_NAME = pattern(r"[a-zA-Z0-9_-]{1,251}\Z")


class At(NamedTuple):
    """Repository and ref."""

    repository: str
    ref: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.ref}"

    @property
    def is_name(self) -> bool:
        """Report if the ref is a legal branch or tag name."""
        try:
            return bool(refs.check_name(self.ref))
        except UsageError:
            return False


def parse_at(text: str) -> At:
    """Parse NAME@REF without looking it up. Raises UsageError."""
    name, ref = split_ref(text)
    if not _NAME.match(name):
        raise UsageError(f"`{text}` is not NAME@REF", hint="Give a repository and a ref, as in `config@main`")
    if not ref:
        raise UsageError(f"`{text}` needs a ref", hint=f"Give a branch, a tag or a commit, as in `{name}@main`")
    return At(name, ref)


def parse_branch(text: str) -> At:
    """Parse NAME@BRANCH. Raises UsageError for any other ref."""
    at = parse_at(text)
    if not at.is_name:
        raise UsageError(f"`{at.ref}` is not a branch", hint=_branches(at.repository))
    return at


def parse_tag(text: str) -> At:
    """Parse NAME@TAG. Raises UsageError for an illegal tag name."""
    at = parse_at(text)
    refs.check_name(at.ref, "tag")
    return at


def parse_name(text: str) -> str:
    """Parse the name of a repository. Raises UsageError."""
    if is_ref(text):
        raise UsageError(f"`{text}` is a ref, not a repository", hint=f"Use `{split_ref(text)[0]}`")
    return catalog.check_repository(text)


def parse_ref(text: str, repository: str) -> str:
    """Parse a ref, with or without the repository's name before it. Raises UsageError."""
    name, ref = split_ref(text)
    ref = ref if ref and name == repository else text
    if not ref:
        raise UsageError(
            "The ref must not be empty", hint="Give a branch, a tag or a commit, as in `main`, `v1` or `main~2`"
        )
    return ref


async def open_repository(
    session: Session, name: str, *, write: bool = False, author: str | None = None
) -> "kvctl.Repository":
    """Open the repository. Raises RepositoryNotFound, ReadOnly for a `write` on a read-only connection."""
    if author == "":
        raise UsageError("The author must not be empty")
    api = await (writable(session) if write else _api(session))
    return await repositories.open_repository(api, name, author=author, write=write)


async def open_branch(session: Session, at: At, *, write: bool = True, author: str | None = None) -> "kvctl.Repository":
    """Open the repository of an existing branch. Raises as `open_repository`.

    Raises BranchNotFound, or UsageError if the ref is not a branch.
    """
    repository = await open_repository(session, at.repository, write=write, author=author)
    try:
        await refs.branch(repository.store, at.ref)
    except refs.BranchNotFound as error:
        try:
            await refs.resolve(repository.store, at.ref)
        except NotFoundError:
            error.hint = _branches(at.repository)
            raise error from None
        raise UsageError(
            f"`{at.ref}` is not a branch",
            hint=f"Create a branch there with `kvctl branch create {at.repository}@NAME --from {at.ref}`",
        ) from None
    return repository


async def writable(session: Session) -> "jetstream_api.Api":
    """Return the API of a writable connection. Raises ReadOnly."""
    session.context.require_writable()
    return await _api(session)


async def _api(session: Session) -> "jetstream_api.Api":
    return (await session.client()).api


def _branches(repository: str) -> str:
    return f"List the branches with `kvctl branch ls {repository}`"


# -- parameters --------------------------------------------------------------------------------------------


def ref_argument(metavar: str, help: str) -> Any:
    """Declare an argument that is a ref of the repository named before."""
    return argument(metavar, help, live("refs"))


def ref_option(spelling: str, help: str) -> Any:
    """Declare an option whose value is a ref of the repository named by the arguments."""
    return option(spelling, "REF", help, live("refs"))


Name = Annotated[str, argument("NAME", "Name of the repository", live("repositories"))]
AtRef = Annotated[str, argument("NAME@REF", "Repository and ref: branch, tag, commit", live("places"))]
AtBranch = Annotated[str, argument("NAME@BRANCH", "Repository and branch", live("places", tags=False))]
AtTag = Annotated[str, argument("NAME@TAG", "Repository and tag", live("places", branches=False))]
Author = Annotated[str | None, option("--author", "TEXT", "Author of the commit [default: KVCTL_AUTHOR or user@host]")]
Message = Annotated[str, option("--message -m", "MSG", "Commit message")]
