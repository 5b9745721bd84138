"""Storage of tables: a folder of this machine or a prefix of an object store, with the credentials to reach it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from kvctl.atomic_file import flush_folder, open_regular
from kvctl.errors import KvctlError, NotFoundError, UsageError
from kvctl.phrases import quoted
from kvctl.pipeline.tables.origin import damaged

SCHEMES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
"""Schemes of object stores, and the prefix of their options and environment variables."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m|↳")
"""Parts of messages of delta-rs that are for a terminal."""
_COPY_BYTES = 1 << 20
_OF_CONTENT = (None, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR)
"""Errors, besides missing files, that a table's content causes; pyarrow's own have no number."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@dataclass(frozen=True)
class TablePlace:
    """Folder or prefix that a table is stored in. Picklable; `repr` has no options, which may be secrets."""

    uri: str
    """Absolute path, or URL of an object store without a trailing slash."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Given options by their lower-case names, as delta-rs has them; the environment has the others."""

    @classmethod
    def parse(cls, text: str, options: Iterable[str] = ()) -> TablePlace:
        """Parse a path or URL, and the `K=V` of `--storage-option`. Raises UsageError."""
        given = parse_options(options)
        if not text:
            raise UsageError("The path is empty")
        scheme, found, rest = text.partition("://")
        if not found or scheme == "file":
            if given:
                raise UsageError(f"`--storage-option` applies to object stores; `{text}` is a path")
            return cls(os.path.abspath(unquote(urlsplit(text).path) if found else text))
        scheme = "s3" if scheme == "s3a" else scheme
        if scheme not in SCHEMES:
            known = quoted(f"{name}://" for name in SCHEMES)
            raise UsageError(f"`{scheme}://` is not a storage of tables", hint=f"Use a path, or one of {known}")
        parts = rest.strip("/").split("/")
        if not parts[0] or "@" in parts[0] or {"", ".", ".."} & {*parts}:
            raise UsageError(f"`{text}` is not a URL of a table", hint=f"Write it like `{scheme}://BUCKET/FOLDER`")
        return cls(f"{scheme}://{'/'.join(parts)}", given)

    @property
    def path(self) -> Path | None:
        """Return the folder of this machine; None for an object store."""
        return None if "://" in self.uri else Path(self.uri)

    @property
    def name(self) -> str:
        """Return the last part, for messages."""
        return self.uri.rpartition("/")[2]

    @property
    def precious(self) -> bool:
        """Return whether it is never to be emptied: the home or a current folder, or a complete bucket of a store."""
        if self.path is None:
            return "/" not in self._base
        return self.path in (Path.home(), Path.cwd(), *Path.cwd().parents)

    def __str__(self) -> str:
        return self.uri

    def listing(self) -> dict[str, int]:
        """Return the sizes of all files below it, by their relative names; links are not followed."""
        with self.explained("read"):
            if self.path is not None:
                return dict(_local_files(self.path))
            from pyarrow.fs import FileSelector

            found = self._fs.get_file_info(FileSelector(self._base, recursive=True, allow_not_found=True))
            return {info.path[len(self._base) + 1 :]: info.size for info in found if info.is_file}

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of those of the files that exist."""
        wanted = list(names)
        with self.explained("read"):
            if self.path is not None:
                return {name: size for name in wanted if (size := _size(self.path / name)) is not None}
            found = self._fs.get_file_info([self._inside(name) for name in wanted]) if wanted else []
            return {name: info.size for name, info in zip(wanted, found, strict=True) if info.is_file}

    @contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        """Open a file for reading. Raises OSError, also for a link."""
        if self.path is not None:
            with open_regular(self.path / name, buffering=0) as file:
                yield file
        else:
            with self._fs.open_input_file(self._inside(name)) as stream:
                yield stream

    def write(self, name: str, data: BinaryIO) -> None:
        """Create a file with the rest of `data`, flushed to disk, or none. Raises KvctlError."""
        with self.explained("write"):
            if self.path is None:
                with self._fs.open_output_stream(self._inside(name)) as stream:
                    while block := data.read(_COPY_BYTES):
                        stream.write(block)
                return
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(target, _NEW, 0o666), "wb") as file:
                try:
                    shutil.copyfileobj(data, file, _COPY_BYTES)
                    file.flush()
                    os.fsync(file.fileno())
                except BaseException:  # the rest of a file would fill a full disk up, once for each attempt
                    target.unlink(missing_ok=True)
                    raise

    def move(self, old: str, new: str) -> None:
        """Rename a file."""
        with self.explained("write"):
            if self.path is not None:
                os.replace(self.path / old, self.path / new)
                self._prune(old)
            else:
                self._fs.move(self._inside(old), self._inside(new))

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, and the folders that are then empty."""
        with self.explained("write"):
            for name in names:
                if self.path is None:
                    self._fs.delete_file(self._inside(name))
                    continue
                (self.path / name).unlink(missing_ok=True)
                self._prune(name)

    def flush(self, folder: str = "") -> None:
        """Make created and renamed files survive a power failure, in a folder of this machine."""
        if self.path is not None and (self.path / folder).exists():
            with self.explained("write"):
                flush_folder(self.path / folder)

    def file_system(self) -> Any:
        """Return pyarrow's file system of the place itself."""
        from pyarrow import fs

        return fs.SubTreeFileSystem(self._base or self.uri, fs.LocalFileSystem() if self.path else self._fs)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Convert errors of a file system, and of files that cannot be decoded, to KvctlErrors."""
        try:
            yield
        except OSError as error:
            why = _line(error.strerror or str(error))
            local = self.path is not None and error.errno in _OF_CONTENT
            if what == "read" and (local or isinstance(error, FileNotFoundError)):
                raise damaged(self.uri, why) from None
            raise KvctlError(
                f"Could not {what} `{error.filename or self.uri}`: {why}", hint=self._hint(error)
            ) from None
        except Exception as error:
            from pyarrow import ArrowException

            if not isinstance(error, ArrowException):
                raise
            raise damaged(self.uri, _line(str(error))) from None

    def require_existing(self) -> None:
        """Raises NotFoundError for a folder that does not exist, UsageError for a file."""
        if self.path is not None and not self.path.exists():
            raise NotFoundError(f"`{self.uri}` does not exist")
        if self.path is not None and not self.path.is_dir():
            raise UsageError(f"`{self.uri}` is not a folder")

    def _prune(self, name: str) -> None:
        """Remove the folders above a former file that are empty, its place among them."""
        assert self.path is not None
        with suppress(OSError):
            for folder in Path(name).parents:
                (self.path / folder).rmdir()

    def _hint(self, error: OSError) -> str | None:
        if isinstance(error, PermissionError) and self.path is not None:
            return "The user that runs Spark's executors needs to write it, too"
        prefix = None if self.path is not None else SCHEMES[self.uri.partition("://")[0]]
        return prefix and f"Credentials come from {prefix}_... in the environment, or from `--storage-option`"

    @property
    def _base(self) -> str:
        return self.uri.partition("://")[2]

    def _inside(self, name: str) -> str:
        return f"{self._base}/{name}"

    @cached_property
    def _fs(self) -> Any:
        """File system of pyarrow: reading by that of delta-rs may abort the process at its end."""
        from pyarrow import fs

        scheme = self.uri.partition("://")[0]
        if scheme == "gs":
            token = self._given("access_token")
            return fs.GcsFileSystem(access_token=token) if token else fs.GcsFileSystem()
        if scheme == "az":
            return fs.AzureFileSystem(
                self._given("storage_account_name", "account_name") or "",
                account_key=self._given("storage_account_key", "account_key", "storage_access_key"),
                sas_token=self._given("storage_sas_token", "sas_token"),
            )
        endpoint = urlsplit(self._given("endpoint_url", "endpoint") or "")
        return fs.S3FileSystem(
            access_key=self._given("access_key_id"),
            secret_key=self._given("secret_access_key"),
            session_token=self._given("session_token", "token"),
            anonymous=self._given("skip_signature") == "true",
            region=self._given("region", "default_region"),
            scheme=endpoint.scheme or None,
            endpoint_override=endpoint.netloc or None,
        )

    def _given(self, *names: str) -> str | None:
        """Return the first value that is set: an option, with or without the store's prefix, or in the environment."""
        prefix = SCHEMES[self.uri.partition("://")[0]]
        for name in names:
            full = f"{prefix}_{name}"
            found = self.options.get(full.lower()) or self.options.get(name) or os.environ.get(full.upper())
            if found:
                return found
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {"uri": self.uri, "options": self.options}


def parse_options(pairs: Iterable[str]) -> dict[str, str]:
    """Parse `K=V`, or `K=@FILE` for a value in a file. Raises UsageError without repeating a value."""
    options = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise UsageError(
                "A `--storage-option` is not in the form K=V", hint="Write it like `--storage-option aws_region=eu`"
            )
        if value.startswith("@"):
            try:
                value = Path(value[1:]).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError):
                raise UsageError(f"`--storage-option {name}`: could not read `{value[1:]}`") from None
        options[name.strip().lower()] = value
    return options


def _line(text: str) -> str:
    return " ".join(_COLOUR.sub("", text).split())[:300]


def _local_files(folder: Path, above: str = "") -> Iterator[tuple[str, int]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _local_files(Path(entry.path), f"{above}{entry.name}/")
        else:
            yield above + entry.name, entry.stat(follow_symlinks=False).st_size


def _size(path: Path) -> int | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
