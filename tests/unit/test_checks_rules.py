"""Every rule fires on what it is for, names its key, and is silent on the config that does it right."""

from __future__ import annotations

import pytest
from rule_case import LORA, Case, changed, findings
from rules_that_fire import FIRES
from rules_that_rest import ACCEPTED

from coordinator.checks import BundleFiles, check
from coordinator.checks.gpus import gpu_of
from coordinator.core.catalogue import CODES
from coordinator.core.views import Submission


@pytest.mark.parametrize("case", FIRES, ids=lambda case: case.code)
def test_a_rule_finds_what_it_is_for(case: Case) -> None:
    found = [one for one in findings(case) if one.code == case.code]
    assert found, [(one.code, one.message) for one in findings(case)]
    assert {one.severity for one in found} >= {case.severity}
    for one in found:
        assert one.message and one.file
        assert len(one.message) < 400


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.code)
def test_what_works_is_accepted_without_a_warning(case: Case) -> None:
    loud = [one for one in findings(case) if one.severity != "note"]
    assert not loud, [(one.code, one.message) for one in loud]


def test_every_code_about_submissions_is_tried_here_or_beside() -> None:
    beside = {
        "CFG001",
        "CFG002",
        "CFG003",
        "CFG004",
        "CFG005",
        "CFG006",
        "CFG007",
        "CFG008",
        "CFG009",
        "CFG010",
        "CFG026",
        "CFG117",
        "CFG302",
        "CFG901",
        "CFG902",
        "CFG903",
        "CFG904",
    }
    tried = {case.code for case in FIRES}
    assert {code for code in CODES if code.startswith("CFG")} <= tried | beside


def test_every_code_says_what_why_and_what_to_do() -> None:
    for code, entry in CODES.items():
        assert entry.title and entry.what and entry.why and entry.fix, code
        assert bool(entry.bad) == bool(entry.good) and (not entry.bad or entry.bad != entry.good), code


def test_every_code_about_a_submission_shows_an_example_of_each() -> None:
    assert not [code for code, entry in CODES.items() if code.startswith("CFG") and not entry.bad]


def test_an_error_that_is_allowed_by_name_is_a_warning() -> None:
    submission = Submission(config=changed(LORA, {"micro_batchsize": 8}), allow=("CFG601",))
    verdict = check(submission, files=BundleFiles(submission))
    assert verdict.verdict == "accept"
    assert [one.severity for one in verdict.findings if one.code == "CFG601"] == ["warning"]


def test_overrides_are_judged_with_the_config() -> None:
    submission = Submission(config=changed(LORA, {}), overrides=("warmup_steps=5", "warmup_ratio=0.1"))
    assert check(submission, files=BundleFiles(submission)).verdict == "reject"
    submission = Submission(config=changed(LORA, {}), overrides=("learning_rate",))
    assert [one.code for one in check(submission, files=BundleFiles(submission)).findings] == ["CFG010"]


def test_a_key_named_by_a_finding_has_its_line() -> None:
    text = changed(LORA, {"micro_batchsize": 8})
    submission = Submission(config=text)
    (found,) = [
        one for one in check(submission, files=BundleFiles(submission)).findings if one.code == "CFG601"
    ]
    assert found.line is not None
    assert text.splitlines()[found.line - 1] == "micro_batchsize: 8"


@pytest.mark.parametrize(("gpu", "instead"), [("A100", "bf16: true"), ("Tesla T4", "fp16: true")])
def test_what_is_proposed_instead_of_fp8_is_what_the_gpu_can_do(gpu: str, instead: str) -> None:
    given = Submission(config=changed(LORA, {"fp8": True}))
    found = check(given, files=BundleFiles(given), gpu=gpu_of(gpu)).findings
    (hint,) = [one.hint for one in found if one.code == "CFG404"]
    assert hint is not None and instead in hint
