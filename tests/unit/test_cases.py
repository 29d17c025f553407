"""The cases with right answers: real public failures and configs that work, and the verdict each must get.

`data/cases/expected.jsonl` says for each what rankcall must say. A case `accept` must be accepted without so
much as a warning; a case that only Axolotl itself refuses is for the deep check too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from coordinator.checks import BundleFiles, FolderFiles, check
from coordinator.core.views import CheckVerdict, Submission, SubmittedFile

CASES = Path(__file__).parent / "data" / "cases"
EXPECTED: tuple[Mapping[str, str], ...] = tuple(
    json.loads(line) for line in (CASES / "expected.jsonl").read_text().splitlines()
)


def submission(folder: Path) -> Submission:
    """What `rankcall check axolotl.yml --accelerate accelerate_config.yaml` makes of a case's folder."""
    launch = folder / "accelerate_config.yaml"
    return Submission(
        config=(folder / "axolotl.yml").read_text(),
        config_name="axolotl.yml",
        accelerate=SubmittedFile(name=launch.name, text=launch.read_text()) if launch.exists() else None,
    )


def shade(verdict: CheckVerdict) -> str:
    """`warn` for an accepted submission that has a warning."""
    if verdict.verdict == "reject":
        return "reject"
    return "warn" if any(found.severity == "warning" for found in verdict.findings) else "accept"


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case["id"])
def test_a_case_gets_the_verdict_it_should(case: Mapping[str, str]) -> None:
    folder = CASES / case["id"]
    verdict = check(submission(folder), files=FolderFiles(folder))
    assert shade(verdict) == case["verdict"], [found.message for found in verdict.findings]


@pytest.mark.parametrize(
    "case", [c for c in EXPECTED if c["verdict"] == "reject"], ids=lambda case: case["id"]
)
def test_every_refusal_says_where_and_what_to_do(case: Mapping[str, str]) -> None:
    folder = CASES / case["id"]
    verdict = check(submission(folder), files=FolderFiles(folder))
    errors = [found for found in verdict.findings if found.severity == "error"]
    assert errors
    for found in errors:
        assert found.file in (*case["files"], None)
        assert found.message and found.hint
        assert found.line is not None or found.key is not None


@pytest.mark.parametrize(
    "case", [c for c in EXPECTED if c["verdict"] == "accept"], ids=lambda case: case["id"]
)
def test_a_good_case_is_accepted_with_its_files_in_a_bundle_too(case: Mapping[str, str]) -> None:
    given = submission(CASES / case["id"])
    assert check(given, files=BundleFiles(given)).verdict == "accept"
