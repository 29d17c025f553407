"""The two bases: what the API answers, and what a user sends."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class View(BaseModel):
    """Base of what the API answers."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64", defer_build=True)


class Input(BaseModel):
    """Base of what a user sends: an unknown key is refused, because it is a misspelt one."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", defer_build=True
    )
