"""The agent's own few settings: RANKCALL_* in the environment, read once in `__main__.py`.

No database URL and no viewer token: a replica has no use for them. `rankcall up` and `discovery.py` read the
same object. Nothing is read at import.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from coordinator.core.paths import Layout, state_dir
from coordinator.core.tls import CA, verification
from coordinator.core.whereabouts import HIGHEST_ORDINAL, checked_address, checked_ordinal, checked_roots

# Where platforms say which of its replicas this one is (their documentation; 0-based in all of them).
_PLATFORM_ORDINALS = (
    "NODE_RANK",  # RunPod Instant Clusters
    "DSTACK_NODE_RANK",
    "LWS_WORKER_INDEX",  # Kubernetes LeaderWorkerSet
    "JOB_COMPLETION_INDEX",  # Kubernetes Indexed Job
    "SLURM_NODEID",
    "POD_INDEX",  # by convention filled from the label apps.kubernetes.io/pod-index
)
# A StatefulSet's pod is called <name>-<ordinal>; the random suffixes of other pods have five characters.
_STATEFUL_HOSTNAME = re.compile(r".+-(\d{1,3})")


class SettingsError(ValueError):
    """A setting that cannot be; the text is one sentence for a user."""


class AgentSettings(BaseSettings):
    """Each is RANKCALL_<NAME> in the environment.

    Attributes:
        token: the join secret. None: the coordinator is on this machine and open on loopback.
        url: where the coordinator is, or its processes are (commas between); None: found by `peers` or `shared_dir`.
        peers: addresses of all replicas, the first of which is the master.
        shared_dir: a folder all replicas see, for the lease file of the master.
        port: the coordinator's port.
        nodes: replicas the deployment has.
        address: the address to offer to peers, instead of all there are; the only way to offer loopback.
        ordinal: which of the replicas this is; None: what the platform says, if it does.
        beside_coordinator: set by `rankcall up` for the agent in the coordinator's own replica.
        python: interpreter of the training environment; None: this one.
        tls_cert, tls_ca: whom to believe that he is the coordinator (`core/tls.py`).
        data_roots: folders whose absolute paths a submission may name (`:` separated).
    """

    model_config = SettingsConfigDict(
        env_prefix="RANKCALL_", extra="ignore", env_ignore_empty=True, frozen=True
    )

    token: SecretStr | None = None
    url: str | None = None
    peers: Annotated[tuple[str, ...], NoDecode] = ()
    shared_dir: Path | None = None
    port: int = Field(default=8000, ge=0, le=65535)
    nodes: int | None = Field(default=None, ge=1, le=4096)
    state_dir: Path = Field(default_factory=state_dir)
    address: str | None = None
    ordinal: int | None = Field(default=None, ge=0, le=HIGHEST_ORDINAL)
    beside_coordinator: bool = False
    python: str = Field(default_factory=lambda: sys.executable)
    tls_cert: Path | None = None
    tls_ca: Path | None = None
    data_roots: Annotated[tuple[str, ...], NoDecode] = ()

    @field_validator("peers", mode="before")
    @classmethod
    def _split_peers(cls, value: object) -> object:
        return tuple(part for part in re.split(r"[\s,]+", value) if part) if isinstance(value, str) else value

    @field_validator("data_roots", mode="before")
    @classmethod
    def _split_roots(cls, value: object) -> object:
        return checked_roots(value) if isinstance(value, str) else value

    @field_validator("ordinal", mode="before")
    @classmethod
    def _an_ordinal(cls, value: object) -> object:
        return checked_ordinal(value.strip()) if isinstance(value, str) else value

    @field_validator("address", mode="after")
    @classmethod
    def _an_address(cls, value: str | None) -> str | None:
        return checked_address(value.strip()) if value is not None else None

    @field_validator("state_dir", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return state_dir(value).resolve()

    @field_validator("url", mode="after")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        if value is None:
            return None
        urls = [part for part in re.split(r"[\s,]+", value) if part]
        spelled = [url if url.startswith(("http://", "https://")) else f"http://{url}" for url in urls]
        return ",".join(url.rstrip("/") for url in spelled)

    @model_validator(mode="after")
    def _readable(self) -> Self:
        own = self.tls_ca or self.tls_cert
        if own is not None:
            verification("https:", {CA: str(own)})
        return self

    @property
    def layout(self) -> Layout:
        return Layout(self.state_dir)

    @property
    def join_token(self) -> str | None:
        return self.token.get_secret_value() if self.token else None

    @classmethod
    def from_environment(cls) -> AgentSettings:
        """The settings of this process.

        Raises:
            SettingsError: naming the variable and what is wrong with it, never its value.
        """
        try:
            return cls()
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            name = f"RANKCALL_{str(first['loc'][0]).upper()}" if first["loc"] else "RANKCALL_*"
            said = str(first["msg"]).removeprefix("Value error, ")
            raise SettingsError(said if said.startswith(name) else f"{name}: {said}") from None


def platform_ordinal(environment: Mapping[str, str], hostname: str) -> int | None:
    """Which of its replicas the platform says this is, or None where it does not say."""
    for name in _PLATFORM_ORDINALS:
        value = environment.get(name, "")
        if value.isdigit() and int(value) <= HIGHEST_ORDINAL:
            return int(value)
    stateful = _STATEFUL_HOSTNAME.fullmatch(hostname)
    if stateful and "KUBERNETES_SERVICE_HOST" in environment:
        return int(stateful.group(1))
    return None
