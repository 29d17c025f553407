"""What the coordinator is told from outside: RANKCALL_* in the environment. Read once, in `__main__.py`.

Nothing here is read at import; tests build `Settings(...)` by hand.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from coordinator.core.paths import Layout, state_dir
from coordinator.core.tls import checked
from coordinator.core.whereabouts import checked_address, checked_roots, own_loopback
from coordinator.retention import DAY_S, Keep

# The right token is always answered (limits.py), so guesses come as fast as requests: some billion in a day. Eight random
# characters would stand that for years, eight that a person chose would not; nobody's list of passwords goes up to sixteen.
SHORTEST_TOKEN = 16
# Clients give an answer 30 s to begin.
LONGEST_WAIT_S = 20.0


class SettingsError(ValueError):
    """A setting that cannot be; the text is one sentence for a user."""


def is_loopback(host: str) -> bool:
    """Whether a bind address or a peer's address never leaves this machine."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


class Settings(BaseSettings):
    """The coordinator's settings; each is RANKCALL_<NAME> in the environment.

    Attributes:
        token: join and admin secret. None: loopback only.
        viewer_token: a second secret that may only read.
        previous_token: the join secret before the present one. While it is set, replicas whose environment still
            has it may join and go on; it administers nothing. Without it they are refused until they have the new one.
        nodes: replicas the deployment has; a job's default.
        host: bind address; None: `address` where that is a loopback address (replicas on one machine), else all
            addresses with a token, 127.0.0.1 without.
        port: of the API and the page; 0 takes any free one.
        state_dir: the SQLite store lies in its `coordinator/` folder.
        database_url: another store, e.g. `postgresql+psycopg://…`, which any number of coordinator processes may share.
        address: where those reach this one; None: the address this machine sends from.
        allowed_hosts: names the Host header may have (comma separated); empty: any with a token,
            loopback names without.
        tls_cert, tls_key: PEM files to serve TLS with; None: plain HTTP.
        trusted_proxies: addresses or networks (comma separated) whose X-Forwarded-For, -Proto and -Host are believed;
            those of this machine always are.
        keep_days: logs, figures and files of a job are kept so long after its end.
        keep_gib: so much of them is kept of all jobs together; those that ended first lose theirs first.
        data_roots: absolute paths a submission may name lie under these (`:` separated).
        axolotl_wait_s: so long a submission waits for Axolotl's own word on its config, where Axolotl is installed beside
            the coordinator; 0: it is not asked. Its import takes 4 to 6 s on an idle machine, its answers milliseconds.
    """

    model_config = SettingsConfigDict(env_prefix="RANKCALL_", extra="ignore", env_ignore_empty=True)

    token: SecretStr | None = None
    viewer_token: SecretStr | None = None
    previous_token: SecretStr | None = None
    nodes: int | None = Field(default=None, ge=1, le=4096)
    host: str | None = None
    port: int = Field(default=8000, ge=0, le=65535)
    state_dir: Path = Field(default_factory=state_dir)
    database_url: str | None = None
    address: str | None = None
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    keep_days: float = Field(default=90.0, gt=0)
    keep_gib: float = Field(default=10.0, gt=0)
    data_roots: Annotated[tuple[str, ...], NoDecode] = ()
    axolotl_wait_s: float = Field(default=10.0, ge=0, le=LONGEST_WAIT_S)

    @field_validator("allowed_hosts", "trusted_proxies", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip().lower() for part in value.split(",") if part.strip())
        return value

    @field_validator("trusted_proxies", mode="after")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError:
                raise ValueError(
                    f"{network!r} is neither an address nor a network such as 10.0.0.0/8"
                ) from None
        return value

    @field_validator("data_roots", mode="before")
    @classmethod
    def _split_colons(cls, value: object) -> object:
        return checked_roots(value) if isinstance(value, str) else value

    @field_validator("address", mode="after")
    @classmethod
    def _an_address(cls, value: str | None) -> str | None:
        return checked_address(value.strip()) if value is not None else None

    @model_validator(mode="after")
    def _safe(self) -> Self:
        for name, token in self.secrets().items():
            if token is not None and len(token.get_secret_value()) < SHORTEST_TOKEN:
                raise ValueError(
                    f"{name} is shorter than {SHORTEST_TOKEN} characters and could be guessed; "
                    "`openssl rand -hex 24` makes a good one"
                )
        if self.viewer_token is not None and self.token is None:
            raise ValueError("RANKCALL_VIEWER_TOKEN is set but RANKCALL_TOKEN is not; set both or neither")
        if self.previous_token is not None and self.token is None:
            raise ValueError("RANKCALL_PREVIOUS_TOKEN is set but RANKCALL_TOKEN is not; set both or neither")
        if self.viewer_token is not None and self.viewer_token == self.token:
            raise ValueError(
                "RANKCALL_VIEWER_TOKEN equals RANKCALL_TOKEN; a viewer would be an administrator"
            )
        if self.previous_token is not None and self.previous_token in (self.token, self.viewer_token):
            raise ValueError("RANKCALL_PREVIOUS_TOKEN equals a token that is in force; leave it out")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("RANKCALL_TLS_CERT and RANKCALL_TLS_KEY serve TLS together; set both or neither")
        if self.tls_cert is not None and self.tls_key is not None:
            checked(self.tls_cert, self.tls_key)
        if self.token is None and self.host is not None and not is_loopback(self.host):
            raise ValueError(
                f"RANKCALL_HOST={self.host} would serve without a token to everybody who reaches it; "
                "set RANKCALL_TOKEN, or leave RANKCALL_HOST out to serve this machine only"
            )
        return self

    def secrets(self) -> dict[str, SecretStr]:
        """The secrets that are set, by the name of their variable."""
        named = {
            "RANKCALL_TOKEN": self.token,
            "RANKCALL_VIEWER_TOKEN": self.viewer_token,
            "RANKCALL_PREVIOUS_TOKEN": self.previous_token,
        }
        return {name: token for name, token in named.items() if token is not None}

    @property
    def open_on_loopback(self) -> bool:
        """No token: whoever is on this machine is the administrator."""
        return self.token is None

    @property
    def bind_host(self) -> str:
        """The address to bind; `::` takes IPv4 as well, where the machine has IPv6."""
        return self.host or own_loopback(self.address) or ("127.0.0.1" if self.token is None else "::")

    @property
    def store_url(self) -> str:
        return self.database_url or f"sqlite:///{Layout(self.state_dir).database}"

    @property
    def keep(self) -> Keep:
        return Keep(self.keep_days * DAY_S, int(self.keep_gib * (1 << 30)))

    @classmethod
    def from_environment(cls) -> Settings:
        """The settings of this process.

        Raises:
            SettingsError: naming the variable and what is wrong with it, never its value where it is secret.
        """
        try:
            return cls()
        except ValidationError as error:
            raise SettingsError(
                "; ".join(_sentence(dict(e)) for e in error.errors(include_input=False))
            ) from None


def _sentence(error: dict[str, object]) -> str:
    location = error.get("loc")
    message = str(error.get("msg", "")).removeprefix("Value error, ")
    if isinstance(location, tuple) and location:
        name = f"RANKCALL_{str(location[0]).upper()}"
        return message if message.startswith(name) else f"{name}: {message}"
    return message
