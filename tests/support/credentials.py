"""Keys and JWTs as nsc would make them, for servers in operator mode."""

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys

OPERATOR, ACCOUNT, USER = nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER


class Key:
    """An nkey: `public` and `seed` as text; signs."""

    def __init__(self, kind: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), kind).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public: str = self._pair.public_key.decode()

    def jwt(self, subject: "Key", kind: str, **claims: Any) -> str:
        """A JWT about `subject`, issued by this key; `nats` holds the claims, `exp` the expiry."""
        nats = {"type": kind, "version": 2, **claims.pop("nats", {})}
        names = {"name": kind, "iss": self.public, "sub": subject.public}
        body: dict[str, Any] = {**names, "iat": int(time.time()), "nats": nats, **claims}
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()
        body["jti"] = base64.b32encode(digest).decode().rstrip("=")
        signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(body)}"
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"


class Operator:
    """An operator with one account that has JetStream; `config` for the server, `user` makes credentials."""

    def __init__(self) -> None:
        self._operator, self._account, self._system = Key(OPERATOR), Key(ACCOUNT), Key(ACCOUNT)

    @property
    def config(self) -> str:
        """Server configuration: operator mode, accounts held in memory."""
        limits = {"subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1}
        storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        claims = {"limits": {**limits, **storage, "wildcards": True}}
        account = self._operator.jwt(self._account, "account", nats=claims)
        system = self._operator.jwt(self._system, "account", nats={"limits": limits})
        operator = self._operator.jwt(self._operator, "operator", nats={"system_account": self._system.public})
        return f"""
        listen: 127.0.0.1:@client@
        jetstream {{ store_dir: "@store@" }}
        operator: {operator}
        resolver: MEMORY
        resolver_preload: {{ {self._account.public}: {account}, {self._system.public}: {system} }}
        """

    def user(self, *, expires: int | None = None, issuer: Key | None = None) -> tuple[str, str]:
        """A new user's JWT and seed; `expires` in seconds from now."""
        user = Key(USER)
        nats = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        claims: dict[str, Any] = {"exp": int(time.time()) + expires} if expires is not None else {}
        return (issuer or self._account).jwt(user, "user", nats=nats, **claims), user.seed


def creds_file(path: Path, jwt: str, seed: str) -> Path:
    """Write a credentials file as the NATS tools do."""
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    return path


def _part(document: dict[str, Any]) -> str:
    return _base64(json.dumps(document).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
