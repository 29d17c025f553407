"""DeepSpeed settings and whether DeepSpeed 0.18.9's own config class takes them; compared with it in tests/training."""

from __future__ import annotations

ZERO2: dict[str, object] = {"stage": 2}
ZERO3: dict[str, object] = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}


def zero(**more: object) -> dict[str, object]:
    return {"zero_optimization": {**ZERO2, **more}}


def zero3(**more: object) -> dict[str, object]:
    return {"zero_optimization": {**ZERO3, **more}}


# (the key that is wrong, the settings)
REFUSED: tuple[tuple[str, dict[str, object]], ...] = (
    ("zero_optimization.allgather_bucket_size", zero(allgather_bucket_size="5e8")),
    ("zero_optimization.allgather_bucket_size", zero(allgather_bucket_size=-1)),
    ("zero_optimization.allgather_bucket_size", zero(allgather_bucket_size=1.5)),
    ("zero_optimization.overlap_comm", zero(overlap_comm="maybe")),
    ("zero_optimization.overlap_com", zero(overlap_com=True)),
    ("zero_optimization.offload_optimizer.device", zero(offload_optimizer={"device": "gpu"})),
    ("zero_optimization.offload_optimizer", zero(offload_optimizer="cpu")),
    ("zero_optimization.offload_optimizer.ratio", zero3(offload_optimizer={"device": "cpu", "ratio": 2.5})),
    ("zero_optimization.offload_param.pin_memry", zero3(offload_param={"device": "cpu", "pin_memry": True})),
    ("zero_optimization.leaf_module.nams", zero3(leaf_module={"nams": ["x"]})),
    ("bf16.enable", {**zero(), "bf16": {"enable": True}}),
    ("bf16.enabled", {**zero(), "bf16": {"enabled": "maybe"}}),
    ("bf16", {**zero(), "bf16": True}),
    ("fp16", {**zero(), "fp16": None}),
    ("fp16.loss_scal", {**zero(), "fp16": {"enabled": "auto", "loss_scal": 0}}),
    ("fp16.loss_scale", {**zero(), "fp16": {"enabled": "auto", "loss_scale": -1}}),
    ("wandb.enabeld", {**zero(), "wandb": {"enabeld": True}}),
    ("csv_monitor.enabled", {**zero(), "csv_monitor": {"enabled": 2}}),
    ("comms_logger.verbos", {**zero(), "comms_logger": {"verbos": True}}),
    ("optimizer", {**zero(), "optimizer": ["AdamW"]}),
    ("scheduler", {**zero(), "scheduler": "WarmupLR"}),
    ("train_micro_batch_size_per_gpu", {**zero(), "train_micro_batch_size_per_gpu": "1"}),
    ("wall_clock_breakdown", {**zero(), "wall_clock_breakdown": "false"}),
    ("compile.deepcompil", {**zero(), "compile": {"deepcompil": True}}),
)
TAKEN: tuple[dict[str, object], ...] = (
    zero(allgather_bucket_size=5e8, reduce_bucket_size="auto", overlap_comm="yes"),
    zero(cpu_offload=True),
    zero3(leaf_module={"names": "x"}),
    zero3(offload_optimizer={"device": "cpu", "ratio": 0.5, "pin_memory": "auto"}),
    zero3(offload_param={"device": "nvme", "nvme_path": "/nvme", "buffer_size": 1e8, "max_in_cpu": 1e9}),
    zero3(sub_group_size=1e9, stage3_max_live_parameters=1e9, stage3_prefetch_bucket_size="auto"),
    {**zero(), "bf16": {"enabled": "auto", "immediate_grad_update": True}, "fp16": {"enabled": "auto", "loss_scale": 0}},
    {**zero(), "comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]}, "tensorboard": {"enabled": False}},
    {**zero(), "steps_per_print": 1e5, "wall_clock_breakdown": False, "some_new_key": {"a": 1}},
    {**zero(), "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "zero_allow_untested_optimizer": True},
    {**zero(), "aio": None, "activation_checkpointing": {"partition_activations": True}, "timers": {}},
    {**zero(), "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"},
)  # fmt: skip
