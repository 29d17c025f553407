"""Submissions that are good, although they look like what a rule is for."""

from __future__ import annotations

from rule_case import ABSENT, ZERO2, Case

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
