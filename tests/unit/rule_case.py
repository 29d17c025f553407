"""One way to change a good submission, and what the checks say of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from coordinator.checks import BundleFiles, check
from coordinator.core import yaml
from coordinator.core.overrides import apply_overrides
from coordinator.core.protocol import BundleFile, Facts, Finding, GpuFacts
from coordinator.core.views import Submission, SubmittedFile

LORA = yaml.load(
    """
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
val_set_size: 0.1
output_dir: ./outputs/run
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
sequence_len: 1024
micro_batch_size: 2
gradient_accumulation_steps: 2
num_epochs: 1
learning_rate: 0.0002
bf16: true
"""
)
LAUNCH = yaml.load(
    """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
num_machines: 2
num_processes: 2
machine_rank: 0
main_process_ip: 10.0.9.59
main_process_port: 29500
deepspeed_config:
  deepspeed_config_file: deepspeed_configs/zero2.json
  zero3_init_flag: false
  deepspeed_multinode_launcher: standard
"""
)
ABSENT = object()


@dataclass(frozen=True)
class Case:
    """What is changed in a good submission, and the code that must come of it.

    Keys are dotted; ABSENT removes one. `launch` None: no accelerate file comes along.
    """

    code: str
    config: dict[str, object] = field(default_factory=dict)
    launch: dict[str, object] | None = None
    deepspeed: dict[str, object] | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    nodes: int | None = None
    gpus_per_node: int | None = None
    gpus: tuple[tuple[str, ...], ...] = ()
    severity: str = "error"
    data_roots: tuple[str, ...] = ()
    purpose: str = "check"


def changed(values: dict[str, object], changes: dict[str, object]) -> str:
    result = apply_overrides(values, ())
    for key, value in changes.items():
        *above, last = key.split(".")
        holder: dict[str, object] = result
        for part in above:
            holder = holder.setdefault(part, {})  # type: ignore[assignment]
        if value is ABSENT:
            holder.pop(last, None)
        else:
            holder[last] = value
    return yaml.dump(result)


def findings(case: Case) -> tuple[Finding, ...]:
    launch = (
        SubmittedFile(name="acc.yaml", text=changed(LAUNCH, case.launch)) if case.launch is not None else None
    )
    brought = (
        SubmittedFile(name="ds.json", text=json.dumps(case.deepspeed)) if case.deepspeed is not None else None
    )
    submission = Submission(
        config=changed(LORA, case.config),
        config_name="config.yml",
        accelerate=launch,
        deepspeed=brought,
        nodes=case.nodes,
        gpus_per_node=case.gpus_per_node,
        files=tuple(BundleFile(path=path, data=data) for path, data in case.files.items()),
    )
    facts = tuple(
        Facts(
            gpus=tuple(
                GpuFacts(index=index, name=f"GPU {capability}", compute_capability=capability)
                for index, capability in enumerate(replica)
            )
        )
        for replica in case.gpus
    )
    verdict = check(
        submission,
        files=BundleFiles(submission),
        facts=facts,
        data_roots=case.data_roots,
        purpose=case.purpose,  # type: ignore[arg-type]
    )
    return verdict.findings


ZERO2 = {"zero_optimization": {"stage": 2}}
V100 = (("7.0",), ("7.0",))
