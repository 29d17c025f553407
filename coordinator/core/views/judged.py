"""What is answered without a replica: the verdict on a submission, what would be rendered, and the catalogue of codes."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from coordinator.core.protocol import Finding
from coordinator.core.views.base import View


class RenderedFileView(View):
    path: str
    content: str
    sha256: str


class RenderedView(View):
    """What one rank gets: files, environment and command."""

    rank: int
    files: tuple[RenderedFileView, ...]
    environment: dict[str, str]
    argv: tuple[str, ...]


class CheckVerdict(View):
    verdict: Literal["accept", "reject"]
    findings: tuple[Finding, ...] = ()


class CodeView(View):
    """One entry of the catalogue; `bad` and `good` are an example of what triggers it and of what does not."""

    model_config = ConfigDict(from_attributes=True)

    code: str
    title: str
    severity: str
    what: str
    why: str
    fix: str
    bad: str = ""
    good: str = ""


class CodePage(View):
    items: tuple[CodeView, ...]
