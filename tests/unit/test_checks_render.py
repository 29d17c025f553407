"""What rankcall itself renders passes its own check as it stands: for every good case, on one to many machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from coordinator.checks import BundleFiles, check
from coordinator.core.protocol import BundleFile
from coordinator.core.views import Submission, SubmittedFile
from coordinator.render import Site, Topology, render

CASES = Path(__file__).parent / "data" / "cases"
GOOD: tuple[Mapping[str, str], ...] = tuple(
    case
    for case in map(json.loads, (CASES / "expected.jsonl").read_text().splitlines())
    if case["verdict"] != "reject"
)


class Attempt:
    """The files of an attempt's folder, by the paths that the rendered files name them with."""

    final = True

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def exists(self, path: str) -> bool:
        return path in self._files

    def read(self, path: str) -> bytes | None:
        text = self._files.get(path)
        return text.encode() if text is not None else None

    def siblings(self, path: str) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize(
    "shape", [(1, 1), (2, 1), (3, 2), (2, 0)], ids=lambda shape: f"{shape[0]}x{shape[1]}"
)
@pytest.mark.parametrize("case", GOOD, ids=lambda case: case["id"])
def test_what_is_rendered_passes_as_it_stands(case: Mapping[str, str], shape: tuple[int, int]) -> None:
    nodes, gpus = shape
    folder = CASES / case["id"]
    config = (folder / "axolotl.yml").read_text()
    launch = folder / "accelerate_config.yaml"
    submission = Submission(
        config=config,
        accelerate=SubmittedFile(name=launch.name, text=launch.read_text()),
        nodes=nodes,
        gpus_per_node=gpus,
        files=tuple(
            BundleFile(path=path, data=b"{}\n" * 100)
            for path in ("data/train.jsonl", "data/chat.jsonl", "data/kto.jsonl", "data/a.jsonl", "data/b.jsonl",
                         "data/eval.jsonl", "data/corpus/x.jsonl")
        ),
    )  # fmt: skip
    before = check(submission, files=BundleFiles(submission), purpose="submit")
    if gpus == 0 and "load_in_4bit" in config:
        assert "CFG408" in {found.code for found in before.findings}
        return
    assert before.verdict == "accept", [found.message for found in before.findings]
    for rank in range(nodes):
        rendered = render(submission, Topology(nodes, gpus, "10.0.0.7", 29501), Site(rank), attempt_number=3)
        files = {f"../attempt-3/{file.path}": file.content for file in rendered.files}
        standing = Submission(
            config=files["../attempt-3/axolotl.yaml"],
            accelerate=SubmittedFile(name="accelerate.yaml", text=files["../attempt-3/accelerate.yaml"]),
            nodes=nodes,
            gpus_per_node=gpus,
        )
        verdict = check(standing, files=Attempt(files), purpose="check")
        loud = [found for found in verdict.findings if found.severity != "note"]
        assert not loud, [(found.code, found.message) for found in loud]
