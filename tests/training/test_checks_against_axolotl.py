"""The plain check against the authority: Axolotl's own schema, accelerate's and DeepSpeed's classes.

Axolotl is asked through the deep check's own process. A config that Axolotl takes must not be rejected for a
reason that is Axolotl's to judge; nearly all that it refuses must be known without asking it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from deepspeed_settings import REFUSED, TAKEN

from coordinator.checks import BundleFiles, FolderFiles, accelerate, check, examine
from coordinator.checks.axolotl_process import AxolotlSchema, Limits
from coordinator.checks.deep import axolotls_word, deep_check
from coordinator.checks.gpus import gpu_of
from coordinator.checks.keys import key_table
from coordinator.core import yaml
from coordinator.core.deepspeed_refusals import refusals
from coordinator.core.protocol import Facts, GpuFacts
from coordinator.core.views import CheckVerdict, Submission, SubmittedFile

pytestmark = pytest.mark.training

CASES = Path(__file__).parent.parent / "unit" / "data" / "cases"
EXPECTED: tuple[Mapping[str, str], ...] = tuple(
    json.loads(line) for line in (CASES / "expected.jsonl").read_text().splitlines()
)
# Found by rankcall where Axolotl looks away: sizes of nothing, LoRA that PEFT refuses later, files, launchers.
OURS = frozenset(
    {
        "CFG020",
        "CFG220",
        "CFG616",
        "CFG702",
        "CFG203",
        "CFG502",
        "CFG601",
        "CFG611",
        "CFG614",
        "CFG703",
        "CFG808",
    }
)
VALUES: tuple[object, ...] = ("x", "true", "8", 3, 0, -1, 0.5, True, False, None, ["a"], [1], {"a": 1})
# A plugin is not imported here; the trainer refuses to fetch ahead without workers.
BEYOND_ITS_SCHEMA = ("plugins", "dataloader_prefetch_factor")
LEAST_KNOWN = 0.95


@pytest.fixture(scope="module")
def schema() -> Iterator[AxolotlSchema]:
    asked = AxolotlSchema(limits=Limits(import_s=280))
    yield asked
    asked.close()


def submission(folder: Path) -> Submission:
    launch = folder / "accelerate_config.yaml"
    return Submission(
        config=(folder / "axolotl.yml").read_text(),
        config_name="axolotl.yml",
        accelerate=SubmittedFile(name=launch.name, text=launch.read_text()),
    )


def shade(verdict: CheckVerdict) -> str:
    if verdict.verdict == "reject":
        return "reject"
    return "warn" if any(found.severity == "warning" for found in verdict.findings) else "accept"


def test_every_case_comes_out_right_when_axolotl_is_asked(schema: AxolotlSchema) -> None:
    wrong = {}
    for case in EXPECTED:
        folder = CASES / case["id"]
        verdict = deep_check(submission(folder), schema, files=FolderFiles(folder))
        if shade(verdict) != case["verdict"]:
            wrong[case["id"]] = (shade(verdict), [found.message for found in verdict.findings])
    assert not wrong


def long(*values: str) -> Iterable[ParameterSet]:
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def asked(schema: AxolotlSchema, config: dict[str, object]) -> tuple[set[str], bool]:
    """Codes of the plain check's errors, and whether Axolotl refuses."""
    given = Submission(config=yaml.dump(config))
    plain = {f.code for f in check(given, files=BundleFiles(given)).findings if f.severity == "error"}
    answer = schema.ask(
        {
            "config": given.config,
            "capabilities": {
                "bf16": True,
                "fp8": True,
                "tf32": True,
                "n_gpu": 1,
                "compute_capability": "sm_90",
            },
            "deepspeed": None,
        }
    )
    return plain, not answer.ok and answer.unsure is None


@pytest.mark.parametrize("base", ["v01_lora_zero2_std", *long("v03_qlora_ddp", "v05_full_zero1_3x1_rank2")])
def test_plain_and_deep_agree_on_any_one_key(schema: AxolotlSchema, base: str) -> None:
    config = yaml.load((CASES / base / "axolotl.yml").read_text())
    rng = random.Random(base)
    refused = known = 0
    too_strict = []
    for key in rng.sample(sorted(key_table().keys), 120):
        for value in rng.sample(VALUES, 3):
            plain, refuses = asked(schema, {**config, key: value})
            refused += refuses
            known += refuses and bool(plain)
            if plain - OURS and not refuses and key not in BEYOND_ITS_SCHEMA:
                too_strict.append((key, value, plain))
    assert not too_strict
    assert known / refused >= LEAST_KNOWN


def test_axolotl_is_told_the_gpus_of_the_job_not_of_this_machine(schema: AxolotlSchema) -> None:
    """fp8 attention aside, no rule of ours looks at this key."""
    config = yaml.dump(yaml.load((CASES / "v01_lora_zero2_std" / "axolotl.yml").read_text()) | {"fp8": True})
    given = Submission(config=config, config_name="c.yml")

    def codes(facts: tuple[Facts, ...] = (), gpu: str | None = None) -> set[str]:
        verdict = deep_check(
            given, schema, files=BundleFiles(given), facts=facts, gpu=gpu_of(gpu) if gpu else None
        )
        return {found.code for found in verdict.findings if found.severity == "error"}

    assert codes(gpu="NVIDIA A100-SXM4-80GB") == {"CFG404"}
    assert not codes(gpu="NVIDIA GeForce RTX 5090")
    old = Facts(gpus=(GpuFacts(index=0, name="NVIDIA L4", compute_capability="8.9"),))
    assert not codes((old,))


def test_where_axolotl_says_that_the_training_will_fail_it_is_an_error(schema: AxolotlSchema) -> None:
    """It only warns of bf16 on a GPU that has none. Where our rule has said it, with what to write, that is enough."""
    config = yaml.load((CASES / "v01_lora_zero2_std" / "axolotl.yml").read_text()) | {"bf16": True}
    given = Submission(config=yaml.dump(config), config_name="c.yml")
    verdict = deep_check(given, schema, files=BundleFiles(given), gpu=gpu_of("Tesla T4"))
    assert {one.code for one in verdict.findings if one.severity == "error"} >= {"CFG403"}
    subject, found = examine(given, files=BundleFiles(given), gpu=gpu_of("Tesla T4"))
    assert subject is not None
    unsaid = [one for one in found if one.code != "CFG403"]
    (error,) = [one for one in axolotls_word(subject, unsaid, schema) if one.severity == "error"]
    assert (error.code, error.key, error.line is not None) == ("CFG901", "bf16", True)
    assert "Training will fail" in error.message


def test_a_key_that_is_a_number_reaches_axolotl_as_one_and_is_placed(schema: AxolotlSchema) -> None:
    """As text it would be accepted. The plain check knows it too."""
    config = yaml.load((CASES / "v05_full_zero1_3x1_rank2" / "axolotl.yml").read_text())
    roles = {"user": ["human"], 1: ["x"]}
    dataset = {"path": "a/b", "type": "chat_template", "roles": roles}
    given = Submission(config=yaml.dump({**config, "datasets": [dataset]}))
    subject, found = examine(given, files=BundleFiles(given))
    assert subject is not None
    (own,) = [one for one in found if one.severity == "error"]
    (said,) = [one for one in axolotls_word(subject, (), schema) if one.severity == "error"]
    for one, code in ((own, "CFG605"), (said, "CFG901")):
        assert (one.code, one.key, one.line is not None) == (code, "datasets.0.roles.1", True)


DATASET_VALUES: tuple[object, ...] = (*VALUES, {1: ["x"]}, {"user": ["human"]}, [], {})
# A type that is none of Axolotl's, a file that is not there: names are not judged by its schema.
NAMES = frozenset({"CFG021", "CFG601", "CFG602", "CFG606", "CFG701", "CFG702", "CFG708"})


@pytest.mark.parametrize("rl", [None, *long("dpo", "kto", "orpo")])
def test_plain_and_deep_agree_on_any_key_of_a_dataset(schema: AxolotlSchema, rl: str | None) -> None:
    """Axolotl reads a dataset as the one kind that its `rl` stands for."""
    config = yaml.load((CASES / "v05_full_zero1_3x1_rank2" / "axolotl.yml").read_text())
    config |= {"rl": rl, "remove_unused_columns": False} if rl else {}
    rng = random.Random(str(rl))
    fields = {field for name, model in key_table().models.items() if "Dataset" in name for field in model}
    wrong = []
    for field in sorted(fields):
        for value in rng.sample(DATASET_VALUES, 4):
            dataset = {"path": "a/b", "type": "alpaca", field: value}
            given = {**config, "datasets": [dataset]}
            plain, refuses = asked(schema, given)
            if bool(plain - NAMES) != refuses:
                wrong.append((field, value, plain, refuses))
    assert not wrong


def test_without_axolotl_the_plain_verdict_stands_with_a_warning() -> None:
    folder = CASES / "v01_lora_zero2_std"
    for python in ("/nonexistent/python", "/bin/false"):
        nobody = AxolotlSchema(python)
        verdict = deep_check(submission(folder), nobody, files=FolderFiles(folder))
        nobody.close()
        assert verdict.verdict == "accept"
        assert "CFG902" in {found.code for found in verdict.findings}


def test_the_shipped_key_table_is_the_installed_axolotls() -> None:
    from coordinator.checks.make_axolotl_keys import TABLE, make

    shipped = json.loads(TABLE.read_text())
    made = json.loads(json.dumps(make()))
    assert shipped["axolotl"] == made["axolotl"]
    assert shipped["keys"] == made["keys"]
    assert shipped["models"] == made["models"]


def test_the_shipped_names_are_the_installed_axolotls() -> None:
    from coordinator.checks.make_axolotl_names import TABLE, make

    assert json.loads(TABLE.read_text()) == json.loads(json.dumps(make()))


def test_the_accelerate_keys_are_the_installed_accelerates() -> None:
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils import DistributedType, DynamoBackend, PrecisionType

    assert accelerate.KEYS - {"fp16", "dynamo_backend"} == set(ClusterConfig.__dataclass_fields__)
    arguments = {action.dest for action in launch_command_parser()._actions}
    assert arguments >= accelerate.DEEPSPEED_KEYS
    assert set(accelerate.DISTRIBUTED_TYPES) == {kind.value for kind in DistributedType}
    backends = set(accelerate.CHOICES["dynamo_config", "dynamo_backend"])
    assert backends == {kind.value for kind in DynamoBackend}
    assert set(accelerate.MIXED_PRECISIONS) == set(PrecisionType.list())


def test_the_colliding_keys_are_the_installed_accelerates(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.utils import DeepSpeedPlugin

    for key in (*accelerate.COLLIDING, "zero3_init_flag", "deepspeed_multinode_launcher"):
        monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", f"deepspeed_config_file,{key}")
        plugin = object.__new__(DeepSpeedPlugin)
        if key in accelerate.COLLIDING:
            with pytest.raises(ValueError, match="will be ignored"):
                plugin._deepspeed_config_checks()
        else:
            plugin._deepspeed_config_checks()


def test_the_shipped_deepspeed_table_is_the_installed_deepspeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    from coordinator.checks.make_deepspeed_keys import TABLE, make

    assert json.loads(TABLE.read_text()) == json.loads(json.dumps(make()))
    assert DeepSpeedConfigModel.model_config["extra"] == "forbid"


def test_the_lists_of_what_deepspeed_takes_and_refuses_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    for key, settings in REFUSED:
        said = refusals(settings)
        assert said, key
        assert not said[0][0] or key.endswith(".".join(said[0][0])) or "replace" in said[0][1], (key, said)
    for settings in TAKEN:
        assert refusals(settings) == [], settings


def test_deepspeeds_own_class_is_asked_in_the_deep_check(schema: AxolotlSchema) -> None:
    """What no shipped table says: a validator's own code."""
    config = yaml.load((CASES / "v05_full_zero1_3x1_rank2" / "axolotl.yml").read_text()) | {
        "deepspeed": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}
    }
    given = Submission(config=yaml.dump(config), config_name="c.yml")
    assert check(given, files=BundleFiles(given)).verdict == "accept"
    verdict = deep_check(given, schema, files=BundleFiles(given))
    (found,) = [one for one in verdict.findings if one.severity == "error"]
    assert (found.code, found.key) == ("CFG904", "deepspeed.zero_optimization")
    assert "Partial offloading" in found.message
