"""Every rule fires on what it is for, names its key, and is silent on the config that does it right."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from coordinator.checks import BundleFiles, check
from coordinator.checks.gpus import gpu_of
from coordinator.core import yaml
from coordinator.core.catalogue import CODES
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

FIRES = [
    Case("CFG605", {"datasets": [{"path": "a/b", "type": "chat_template", "roles": {1: ["x"]}}]}),
    Case("CFG605", {"datasets": [{"path": "a/b", "type": "alpaca", "shards": "many"}]}),
    Case("CFG605", {"added_tokens_overrides": {"x": "y"}}),
    Case("CFG120", launch={"dynamo_config": {"dynamo_backend": "INDUCTR"}}),
    Case("CFG120", launch={"dynamo_config": {"dynamo_backend": "SOMETHING"}}, severity="warning"),
    Case("CFG120", launch={"fsdp_config": {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED"}}),
    Case(
        "CFG120",
        launch={
            "deepspeed_config": {
                "zero_stage": 2,
                "offload_optimizer_device": "gpu",
                "deepspeed_multinode_launcher": "standard",
            }
        },
    ),
    Case(
        "CFG023",
        {"deepspeed": "ds.json"},
        files={"ds.json": b'\xef\xbb\xbf{"zero_optimization": {"stage": 2}}'},
    ),
    Case(
        "CFG509",
        {"rl": "ebft", "ebft": {"mode": "strided"}, "torch_compile": True, "gradient_checkpointing": True},
    ),
    # names that the schema lets through
    Case("CFG616", {"optimizer": "adamw_troch"}),
    Case("CFG616", {"optimizer": "adamw_8bits"}),
    Case("CFG616", {"optimizer": "somebodys_own"}, severity="warning"),
    Case("CFG616", {"lr_scheduler": "cosin"}),
    Case("CFG616", {"lr_scheduler": "cosine_with_restart"}),
    Case("CFG616", {"save_strategy": "epochs"}),
    Case("CFG616", {"hub_strategy": "everysave", "hub_model_id": "a/b"}),
    Case("CFG702", {"datasets": [{"path": "a/b", "type": "alpcaa"}]}),
    Case("CFG702", {"datasets": [{"path": "a/b", "type": "chat_templat"}]}),
    Case("CFG702", {"datasets": [{"path": "a/b", "type": "alpaca_chat.load_qaa"}]}),
    Case("CFG702", {"datasets": [{"path": "a/b", "type": "llama3.ultra"}]}),
    Case("CFG702", {"datasets": [{"path": "a/b", "type": "newformat"}]}, severity="warning"),
    Case("CFG702", {"rl": "dpo", "datasets": [{"path": "a/b", "type": "alpaca"}]}),
    Case("CFG702", {"rl": "dpo", "datasets": [{"path": "a/b", "type": "chatml.ulra"}]}),
    Case("CFG702", {"rl": "kto", "datasets": [{"path": "a/b", "type": "chatml.icr"}]}),
    Case("CFG702", {"rl": "orpo", "datasets": [{"path": "a/b", "type": "chat_template.argila"}]}),
    Case("CFG702", {"datasets": [{"path": "a/b", "type": "bradley_terry.chat_templat"}]}),
    # what fails when it is loaded
    Case("CFG605", {"datasets": []}),
    Case("CFG605", {"added_tokens_overrides": {"foo": "<x>"}}),
    Case("CFG605", {"micro_batch_size": "1e1"}),
    Case("CFG606", {"datasets": [{"type": "alpaca"}]}),
    Case("CFG606", {"datasets": [{"path": None, "type": "alpaca"}]}),
    Case("CFG606", {"datasets": [{"path": "", "type": "alpaca"}]}),
    Case("CFG606", {"base_model": ""}),
    Case("CFG502", {"lora_dropout": 1.5}),
    Case("CFG502", {"warmup_steps": -5}),
    Case("CFG506", {"dataloader_prefetch_factor": 2}),
    Case("CFG506", {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 0}),
    Case("CFG703", {"val_set_size": 1.0}),
    Case("CFG703", {"val_set_size": 1}),
    Case("CFG703", {"val_set_size": 1.5}, severity="warning"),
    Case("CFG703", {"val_set_size": 100, "rl": "dpo"}),
    # launch
    Case("CFG101", launch={"deepspeed_config.deepspeed_multinode_launcher": ABSENT}),
    Case("CFG101", launch={"deepspeed_config.deepspeed_multinode_launcher": "pdsh"}),
    Case("CFG101", launch={"deepspeed_config.deepspeed_multinode_launcher": "nossh"}),
    Case("CFG101", launch={"deepspeed_config.deepspeed_multinode_launcher": "Standard"}),
    *(
        Case("CFG102", launch={f"deepspeed_config.{key}": value})
        for key, value in {
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
            "zero_stage": 2,
            "offload_optimizer_device": "none",
            "offload_param_device": "none",
            "offload_param_nvme_path": "/nvme",
            "offload_optimizer_nvme_path": "/nvme",
            "zero3_save_16bit_model": True,
        }.items()
    ),
    Case("CFG102", launch={"mixed_precision": "bf16"}),
    Case("CFG102", launch={"mixed_precision": "no"}),
    Case("CFG103", launch={"num_procesess": 2}),
    Case("CFG103", launch={"gradient_accumulation": 2}),
    Case("CFG104", launch={"zero3_init_flag": True}),
    Case("CFG104", launch={"fsdp_offload_params": True}),
    Case("CFG105", launch={"distributed_type": ABSENT}),
    Case("CFG105", launch={"distributed_type": "DEEPSPEAD"}),
    Case("CFG106", launch={"distributed_type": "NO"}),
    Case("CFG106", launch={"distributed_type": "MULTI_CPU"}),
    Case("CFG107", launch={"num_machines": ABSENT}),
    Case("CFG107", launch={"num_machines": 0}),
    Case("CFG107", launch={"num_machines": "2"}),
    Case("CFG107", launch={"num_machines": 1, "machine_rank": 1}),
    Case("CFG107", launch={"num_machines": 1}, severity="warning"),
    Case("CFG108", launch={"num_processes": 3}),
    Case("CFG108", launch={"num_processes": 1}),
    Case("CFG108", launch={"num_processes": ABSENT}),
    Case("CFG108", launch={"num_processes": "2"}),
    Case("CFG109", launch={"machine_rank": 2}),
    Case("CFG109", launch={"machine_rank": -1}),
    Case("CFG109", launch={"machine_rank": ABSENT}, severity="warning"),
    Case(
        "CFG205",
        launch={
            "deepspeed_config": {
                "zero_stage": 2,
                "gradient_accumulation_steps": 8,
                "deepspeed_multinode_launcher": "standard",
            }
        },
        severity="warning",
    ),
    Case("CFG219", deepspeed={"zero_optimization": {"stage": "2"}}),
    Case("CFG303", launch={"distributed_type": "FSDP"}, purpose="submit", severity="warning"),
    Case("CFG301", {"fsdp_config": {"offload_params": True}}, launch={}, purpose="submit"),
    Case("CFG110", launch={"main_process_ip": ABSENT}),
    Case("CFG110", launch={"main_process_ip": "localhost"}),
    Case("CFG110", launch={"main_process_ip": "127.0.1.1"}),
    Case("CFG110", launch={"main_process_ip": "0.0.0.0"}),
    Case("CFG110", launch={"main_process_ip": "10.0.9.59:29500"}),
    Case("CFG110", launch={"main_process_ip": "10.0.9"}),
    Case("CFG110", launch={"main_process_ip": "None"}),
    Case("CFG111", launch={"main_process_port": 0}),
    Case("CFG111", launch={"main_process_port": 70000}),
    Case("CFG111", launch={"main_process_port": "29500"}),
    Case("CFG112", launch={"rdzv_backend": "c10d"}, severity="note"),
    Case("CFG113", launch={"deepspeed_config.zero3_init_flg": True}),
    Case("CFG113", launch={"deepspeed_config.colour": "red"}, severity="warning"),
    Case("CFG114", launch={"gpu_ids": "0"}, severity="warning"),
    Case("CFG114", launch={"gpu_ids": 0}),
    Case("CFG114", launch={"gpu_ids": "0", "num_processes": 4}),
    Case(
        "CFG115",
        launch={"distributed_type": "MULTI_GPU", "deepspeed_config": ABSENT, "mixed_precision": "bfloat16"},
    ),
    Case(
        "CFG011",
        launch={"distributed_type": "MULTI_GPU", "deepspeed_config": ABSENT, "mixed_precision": False},
    ),
    Case("CFG011", launch={"distributed_type": False}),
    Case("CFG116", launch={"compute_environment": "AMAZON_SAGEMAKER"}),
    Case("CFG118", launch={}, nodes=3),
    Case("CFG118", launch={}, nodes=2, gpus_per_node=4),
    Case("CFG119", launch={"main_process_ip": "172.17.0.2"}, severity="warning"),
    Case("CFG119", launch={"main_process_ip": "036c56dce41b"}, severity="warning"),
    Case("CFG122", launch={"distributed_type": "MULTI_GPU"}, severity="warning"),
    # DeepSpeed
    Case("CFG020", {"deepspeed": "deepspeed_configs/zero2_bf16.json"}),
    Case("CFG020", {"deepspeed": "zero2.json"}),
    Case("CFG020", launch={"deepspeed_config.deepspeed_config_file": "zero5.json"}),
    Case("CFG023", {"deepspeed": "ds.json"}, files={"ds.json": b'{"zero_optimization": {"stage": 2},}'}),
    Case("CFG023", {"deepspeed": "ds.json"}, files={"ds.json": b"// ours\n{}"}),
    Case("CFG023", {"deepspeed": "ds.json"}, files={"ds.json": b"[1]"}),
    Case("CFG023", {"deepspeed": "ds.json"}, files={"ds.json": b"\xff\xfe"}),
    Case("CFG023", {"deepspeed": "ds.json"}, files={"ds.json": b"[" * 200_000}),
    Case("CFG201", launch={"deepspeed_config.deepspeed_config_file": "deepspeed_configs/zero3.json"}),
    Case(
        "CFG201", launch={"deepspeed_config": {"zero_stage": 3, "deepspeed_multinode_launcher": "standard"}}
    ),
    Case("CFG202", {"deepspeed": "deepspeed_configs/zero3.json"}, launch={}),
    Case(
        "CFG202", {"deepspeed": "deepspeed_configs/zero2_torch_compile.json"}, launch={}, severity="warning"
    ),
    Case("CFG203", deepspeed={"bf16": {"enabled": "auto"}}),
    Case("CFG203", {"deepspeed": {"train_batch_size": "auto"}}),
    Case("CFG204", deepspeed={"zero_optimization": {"stage": 2, "overlap_com": True}}),
    Case("CFG220", deepspeed={"zero_optimization": {"stage": 2, "overlap_comm": "maybe"}}),
    Case("CFG221", deepspeed={"zero_optimization": {"stage": 2}, "elasticity": {"enabled": True}}),
    Case("CFG205", deepspeed=ZERO2 | {"gradient_accumulation_steps": 8}),
    Case("CFG205", deepspeed=ZERO2 | {"train_micro_batch_size_per_gpu": 4}),
    Case("CFG206", deepspeed=ZERO2 | {"train_batch_size": 64}, nodes=2, gpus_per_node=1),
    Case("CFG206", deepspeed=ZERO2 | {"train_batch_size": 7}),
    Case("CFG207", deepspeed=ZERO2 | {"fp16": {"enabled": True}}),
    Case("CFG207", deepspeed=ZERO2 | {"bf16": {"enabled": False}}),
    Case("CFG207", {"bf16": False, "fp16": True}, deepspeed=ZERO2 | {"bf16": {"enabled": True}}),
    Case("CFG208", {"load_in_8bit": True, "deepspeed": "deepspeed_configs/zero3.json"}, severity="warning"),
    Case(
        "CFG208",
        {
            "adapter": "qlora",
            "load_in_4bit": True,
            "deepspeed": "deepspeed_configs/zero3.json",
            "bnb_config_kwargs": {"bnb_4bit_quant_storage": "uint8"},
        },
    ),
    Case("CFG209", {"optimizer": "muon", "deepspeed": "deepspeed_configs/zero2.json"}),
    Case("CFG211", {"deepspeed": "deepspeed_configs/zero2.json"}, severity="note"),
    Case("CFG212", launch={"deepspeed_config.zero3_init_flag": True}, severity="warning"),
    Case(
        "CFG213",
        deepspeed={"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
        severity="warning",
    ),
    Case("CFG214", deepspeed={"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}),
    Case("CFG217", deepspeed=ZERO2 | {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}),
    Case("CFG217", deepspeed=ZERO2 | {"gradient_clipping": 0.5}),
    Case("CFG218", deepspeed={"zero_optimization": {"stage": 3}}, severity="warning"),
    Case("CFG219", deepspeed={"zero_optimization": {"stage": 4}}),
    Case(
        "CFG219", launch={"deepspeed_config": {"zero_stage": 5, "deepspeed_multinode_launcher": "standard"}}
    ),
    # FSDP
    Case(
        "CFG301",
        {
            "deepspeed": "deepspeed_configs/zero2.json",
            "fsdp_version": 2,
            "fsdp_config": {"offload_params": False},
        },
    ),
    Case("CFG301", {"fsdp_version": 2, "fsdp_config": {"offload_params": False}}, launch={}),
    Case(
        "CFG301",
        {"deepspeed": "deepspeed_configs/zero2.json"},
        launch={"distributed_type": "FSDP", "deepspeed_config": ABSENT},
    ),
    Case("CFG303", launch={"distributed_type": "FSDP", "deepspeed_config": ABSENT}),
    Case(
        "CFG305",
        {
            "adapter": "qlora",
            "load_in_4bit": True,
            "fsdp_version": 2,
            "fsdp_config": {"cpu_ram_efficient_loading": True},
        },
    ),
    Case(
        "CFG305", {"fsdp_version": 2, "fsdp_config": {"offload_params": True}, "optimizer": "adamw_bnb_8bit"}
    ),
    # precision
    Case("CFG401", {"fp16": True}, severity="warning"),
    Case(
        "CFG402",
        launch={"distributed_type": "MULTI_GPU", "deepspeed_config": ABSENT, "mixed_precision": "fp16"},
        severity="warning",
    ),
    Case("CFG403", gpus=V100),
    Case("CFG403", gpus=(("9.0",), ("7.5",))),
    Case("CFG404", {"fp8": True, "bf16": ABSENT}, gpus=(("8.0",),)),
    Case("CFG405", {"tf32": True, "bf16": False, "fp16": True}, gpus=V100, severity="warning"),
    Case("CFG406", {"attn_implementation": "flash_attention_2", "bf16": False, "fp16": True}, gpus=V100),
    Case("CFG408", {"adapter": "qlora", "load_in_4bit": True}, gpus_per_node=0),
    # batch and schedule
    Case("CFG502", {"micro_batch_size": 0}),
    Case("CFG502", {"num_epochs": 0}),
    Case(
        "CFG503",
        {"datasets": [{"path": "./a.jsonl", "type": "alpaca"}]},
        files={"a.jsonl": b"{}\n" * 3},
        nodes=2,
        gpus_per_node=2,
    ),
    Case("CFG505", {"batch_size": 8}),
    Case("CFG505", {"warmup_steps": 5, "warmup_ratio": 0.1}),
    Case("CFG505", {"streaming": True, "max_steps": 10}),
    Case("CFG505", {"saves_per_epoch": 1, "save_steps": 5}),
    Case("CFG506", {"streaming": True, "val_set_size": 0}),
    Case("CFG507", {"save_strategy": "epoch", "save_steps": 5}),
    Case("CFG508", {"rl": "kto"}),
    Case("CFG508", {"rl": "grpo", "trl": {"num_generations": 3}}),
    Case("CFG509", {"context_parallel_size": 2}),
    # keys
    Case("CFG601", {"micro_batchsize": 8}),
    Case("CFG601", {"lora_rank": 8}),
    Case("CFG601", {"per_device_train_batch_size": 8}),
    Case("CFG601", {"datasets": [{"path": "tatsu-lab/alpaca", "typ": "alpaca"}]}),
    Case("CFG601", {"fsdp_version": 2, "fsdp_config": {"ofload_params": True}}),
    Case("CFG602", {"colour_of_the_sky": "blue"}, severity="warning"),
    Case("CFG603", {"rope_scaling": {"type": "linear"}}),
    Case("CFG603", {"unsloth_lora_qkv": True}),
    Case("CFG604", {"flash_attention": True}, severity="note"),
    Case("CFG605", {"micro_batch_size": "two"}),
    Case("CFG605", {"output_dir": None}),
    Case("CFG605", {"learning_rate": "fast"}),
    Case("CFG606", {"base_model": ABSENT}),
    Case("CFG606", {"datasets": ABSENT}),
    Case("CFG607", {"liger_rope": True}, severity="warning"),
    Case("CFG608", {"attn_implementation": "flash"}),
    Case("CFG608", {"excess_length_strategy": "dropp"}),
    Case("CFG611", {"lora_target_linear": ABSENT}),
    Case("CFG612", {"adapter": "qlora"}),
    Case("CFG612", {"adapter": ABSENT, "load_in_4bit": True}),
    Case("CFG613", {"adapter": ABSENT}, severity="warning"),
    Case("CFG614", {"lora_r": ABSENT}),
    Case("CFG615", {"adapter": "LoRA"}),
    # data
    Case(
        "CFG021", {"datasets": [{"path": "./dat/a.jsonl", "type": "alpaca"}]}, files={"data/a.jsonl": b"{}"}
    ),
    Case("CFG021", {"datasets": [{"path": "./data/tain.jsonl"}]}, files={"data/train.jsonl": b"{}"}),
    Case("CFG021", {"datasets": [{"path": "./data/a.jsonl"}]}, purpose="submit"),
    Case("CFG022", {"base_model": "./modle"}, files={"model/config.json": b"{}"}),
    Case("CFG024", {"datasets": [{"path": "/etc/passwd"}]}, data_roots=("/data",)),
    Case("CFG025", {"datasets": [{"path": "../a.jsonl"}]}, severity="warning"),
    Case("CFG025", {"datasets": [{"path": "../a.jsonl"}]}, purpose="submit"),
    Case("CFG701", {"datasets": [{"path": "a/b", "type": "sharegpt.load_role"}]}),
    Case("CFG703", {"val_set_size": 0, "eval_steps": 5}),
    Case("CFG703", {"val_set_size": 0, "evals_per_epoch": 1}, severity="warning"),
    Case("CFG704", {"sample_packing": True}, severity="warning"),
    Case(
        "CFG706",
        {"base_model": "./model", "sequence_len": 4096},
        files={"model/config.json": b'{"max_position_embeddings": 2048}'},
        severity="warning",
    ),
    Case("CFG707", {"chat_template": "jinja"}),
    Case("CFG708", {"datasets": [{"path": "a/b.parquet", "ds_type": "json"}]}, severity="warning"),
    # surroundings
    Case("CFG801", {"resume_from_checkpoint": "./outputs/checkpoint-5"}, nodes=2),
    Case("CFG801", {"auto_resume_from_checkpoints": True}, nodes=2, severity="warning"),
    Case("CFG803", {"output_dir": "/tmp/out"}, severity="note"),
    Case("CFG804", {"base_model": "meta-llama/Llama-3.2-1B"}, severity="note"),
    Case("CFG805", {"wandb_project": "mine"}, severity="warning"),
    Case("CFG806", {"hub_model_id": "me/mine"}, severity="note"),
    Case("CFG807", {"device_map": {"": 0}}, nodes=2, severity="warning"),
    Case("CFG808", {"use_ray": True}),
    Case("CFG809", {"ddp_timeout": 30}, severity="warning"),
    Case("CFG810", gpus=(("9.0",), ("9.0", "9.0")), nodes=2),
    Case("CFG810", gpus=(("9.0",), ("9.0",)), gpus_per_node=2),
    Case("CFG811", {"tensor_parallel_size": 3}, nodes=2, gpus_per_node=1),
    Case("CFG813", {"hub_model_id": "hf_" + "a" * 34}, severity="warning"),
]

ACCEPTED = [
    *(
        Case(f"optimizer {name}", {"optimizer": name})
        for name in ("stable_adamw", "adamw_bnb_8bit", "ao_adamw_8bit")
    ),
    *(
        Case(f"schedule {name}", {"lr_scheduler": name})
        for name in ("rex", "one_cycle", "cosine_with_min_lr")
    ),
    *(
        Case(f"type {name}", {"datasets": [{"path": "a/b", "type": name}]})
        for name in (
            "alpaca:chat",
            "chat_template",
            "alpaca_chat.load_qa",
            "my_package.formats",
            "my.chat_template",
            "my_format.load_rows",
            "bradley_terry.chat_template",
            "stepwise_supervised",
        )
    ),
    *(
        Case(f"{rl} {name}", {"rl": rl, "datasets": [{"path": "a/b", "type": name}]})
        for rl, name in (
            ("dpo", "chatml.ultra"),
            ("dpo", "my_module.transform"),
            ("ipo", "llama3"),
            ("orpo", "chat_template.argilla"),
            ("grpo", "rewards.gsm8k"),
        )
    ),
    Case("a pre-tokenised dataset", {"datasets": [{"path": "a/b", "type": None}]}),
    Case("a count of rows", {"val_set_size": 100}),
    Case("workers and what they fetch", {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 2}),
    Case("a hub strategy that nothing uses", {"hub_strategy": "everysave"}),
    Case("keys that are numbers where they should be", {"added_tokens_overrides": {128041: "<x>"}}),
    Case("as it is"),
    Case("with its launch file", launch={}),
    Case(
        "one machine needs no address",
        launch={
            "num_machines": 1,
            "num_processes": 4,
            "main_process_ip": ABSENT,
            "main_process_port": 0,
            "deepspeed_config.deepspeed_multinode_launcher": ABSENT,
        },
    ),
    Case(
        "MULTI_GPU and Axolotl's own ZeRO-3",
        {"deepspeed": "deepspeed_configs/zero3.json"},
        launch={"distributed_type": "MULTI_GPU", "deepspeed_config": ABSENT},
    ),
    Case("a host name to meet at", launch={"main_process_ip": "node-0.training.svc"}),
    Case("an IPv6 address to meet at", launch={"main_process_ip": "fd00::17"}),
    Case("no port: accelerate takes 29500", launch={"main_process_port": ABSENT}),
    Case("numbers as text where the schema turns them", {"learning_rate": "2e-4", "lora_r": "16"}),
    Case("bf16 auto", {"bf16": "auto", "fp16": None, "tf32": "auto"}),
    Case("a total that comes out", deepspeed=ZERO2 | {"train_batch_size": 8}, nodes=2, gpus_per_node=1),
    Case("a preset by another folder", {"deepspeed": "/workspace/axolotl/deepspeed_configs/zero1.json"}),
    Case("DeepSpeed in line", {"deepspeed": ZERO2}),
    Case(
        "a dataset's field of another kind of training",
        {
            "datasets": [{"path": "a/b", "type": "chatml.intel", "shards": "many"}],
            "rl": "dpo",
            "sample_packing": False,
        },
    ),
    Case(
        "roles by their names",
        {"datasets": [{"path": "a/b", "type": "chat_template", "roles": {"user": ["human"], "1": ["x"]}}]},
    ),
    Case("QLoRA", {"adapter": "qlora", "load_in_4bit": True}),
    Case("8-bit LoRA", {"load_in_8bit": True}),
    Case("packing", {"sample_packing": True, "attn_implementation": "flash_attention_2"}),
    Case(
        "a plugin and its keys", {"plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_rope": True}
    ),
    Case("a stranger's plugin and its keys", {"plugins": ["mine.Plugin"], "micro_batch_size": 2}),
    Case("weights and biases offline", {"wandb_project": "mine", "wandb_mode": "offline"}),
    Case("a dataset in a bucket", {"datasets": [{"path": "s3://bucket/train.jsonl", "type": "alpaca"}]}),
    Case("a dataset of the replicas", {"datasets": [{"path": "/data/train.jsonl"}]}, data_roots=("/data",)),
    Case("capable GPUs", gpus=(("12.0",), ("12.0",)), nodes=2),
    Case("fp16 on the CPU is switched off by rankcall", {"bf16": False, "fp16": True}, gpus_per_node=0),
    Case(
        "topology is written by rankcall",
        launch={
            "main_process_ip": ABSENT,
            "machine_rank": 7,
            "num_processes": 3,
            "deepspeed_config.deepspeed_multinode_launcher": "pdsh",
        },
        purpose="submit",
    ),
]


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
