"""What Axolotl said of a config becomes findings at the config's keys. Its process is asked in `tests/training`."""

from __future__ import annotations

from coordinator.checks import BundleFiles, examine
from coordinator.checks.axolotl_process import Answer, Complaint
from coordinator.checks.axolotl_said import findings_of
from coordinator.checks.subject import Subject
from coordinator.core.protocol import Facts, Finding
from coordinator.core.views import Submission

CONFIG = (
    "base_model: org/model\ndatasets: [{path: org/data, type: alpaca}]\nlearning_rate: 0.0002\nbf16: true\n"
)
FATAL = "bf16 requested, but AMP is not supported on this GPU. Training will fail, but merging is still functional."


def read(facts: tuple[Facts, ...] = ()) -> tuple[Subject, list[Finding]]:
    given = Submission(config=CONFIG, config_name="c.yml")
    subject, found = examine(given, files=BundleFiles(given), facts=facts)
    assert subject is not None
    return subject, found


def said(answer: Answer, facts: tuple[Facts, ...] = ()) -> list[tuple[str, str, str | None]]:
    subject, found = read(facts)
    return [(one.code, one.severity, one.key) for one in findings_of(subject, found, answer, None)]


def test_a_remark_is_a_note_and_a_training_that_will_fail_an_error_at_its_key() -> None:
    answer = Answer(ok=True, warnings=("auto-enabling kernels", FATAL, FATAL))
    assert said(answer) == [("CFG903", "note", None), ("CFG901", "error", "bf16")]


def test_the_word_of_another_axolotl_than_the_replicas_is_a_warning_that_says_so() -> None:
    answer = Answer(
        ok=False, axolotl="0.19.0", errors=(Complaint(at=("bf16",), message="no"),), warnings=(FATAL,)
    )
    same, other = (Facts(packages={"axolotl": version}) for version in ("0.19.0", "0.21.0"))
    assert {severity for _, severity, _ in said(answer, (same, other))} == {"error"}
    assert {severity for _, severity, _ in said(answer, (other,))} == {"warning"}
    subject, found = read((other,))
    assert "0.19.0 (the replicas have 0.21.0)" in findings_of(subject, found, answer, None)[0].message


def test_what_a_rule_has_said_is_not_said_again() -> None:
    subject, found = read()
    rule = subject.found("CFG403", "no bf16 there", "bf16", severity="error")
    answer = Answer(ok=False, errors=(Complaint(at=("bf16",), message="no"),), warnings=(FATAL,))
    assert not findings_of(subject, [*found, rule], answer, None)
