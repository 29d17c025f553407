"""What the API document shows as examples: the field report's job, small enough to read."""

from __future__ import annotations

from typing import Any

_CONFIG = """\
base_model: meta-llama/Llama-3.2-1B
datasets:
  - path: data/train.jsonl
    type: alpaca
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 2
num_epochs: 1
learning_rate: 0.0002
optimizer: adamw_torch
lr_scheduler: cosine
bf16: true
output_dir: ./outputs/lora-out
"""

SUBMISSION: dict[str, Any] = {
    "name": "lora-1b",
    "config": _CONFIG,
    "config_name": "lora-1b.yml",
    "overrides": ["num_epochs=1"],
    "nodes": 2,
    "prompts": ["What is a black hole?"],
    "files": [
        {
            "path": "data/train.jsonl",
            "data": "eyJpbnN0cnVjdGlvbiI6ICJXaGF0IGlzIGEgdGlkZT8iLCAib3V0cHV0IjogIlRoZSBzZWEgcmlzaW5nLiJ9Cg==",
        }
    ],
}

JOB: dict[str, Any] = {
    "id": "3f9c01d2",
    "name": "lora-1b",
    "kind": "train",
    "state": "queued",
    "stage": "gather",
    "verdict": "1 of 2 replicas registered, waiting for one more",
    "nodes": 2,
    "gpus_per_node": None,
    "attempts": 0,
    "created_at": "2026-01-31T12:00:00Z",
}

PREFLIGHT: dict[str, Any] = {"nodes": 2, "allow": ["ENV017"], "deadlines": {"gather_s": 600}}

REGISTRATION: dict[str, Any] = {
    "replica_id": "r-0123456789",
    "fingerprint": "5f0c2f9e",
    "incarnation": 1,
    "hostname": "replica-0",
    "addresses": [{"address": "10.0.0.7", "interface": "eth0"}],
    "gpu_count": 1,
    "echo_port": 40123,
}

REPORT: dict[str, Any] = {
    "incarnation": 1,
    "attempt_id": "3f9c01d2-1",
    "appends": [{"attempt_id": "3f9c01d2-1", "stream": "train.log", "offset": 0, "data": "c3RlcCAxCg=="}],
}
