"""Lets Axolotl and DeepSpeed train without a GPU. An Axolotl plugin, named in the rendered config on CPU replicas.

Seven things stand in the way of training on the CPU, and each is put right here:

- `axolotl.utils.config.normalize_config` makes the local rank a GPU index (`device_map = {"": 0}`).
- `accelerate.PartialState` finds no accelerator and believes in a world of one while DeepSpeed is in a
  world of many: the ranks would all train on the same samples, and evaluation would fail in its gather.
- gloo refuses the in-place view that DeepSpeed's ZeRO 1 and 2 pass to `all_gather_into_tensor`
  (torch 2.13: "no support for view"); DeepSpeed has a slower path that it takes when the backend says
  it lacks the call.
- DeepSpeed compiles a shared-memory collective for ranks on one machine before it starts: twenty seconds
  and a C++ compiler, for something that replicas in different containers cannot use.
- Axolotl asks CUDA whether two GPUs reach each other's memory, and fails where torch was built for CUDA
  and there is no GPU (`axolotl.utils.environment.check_cuda_p2p_support`).
- Without DeepSpeed the trainer's device is `cpu:0`, where torch restores no optimizer of a checkpoint to.
- Axolotl asks DeepSpeed for NCCL when there is only one process (`axolotl.utils.trainer.setup_deepspeed_env`).
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from axolotl.integrations.base import BasePlugin


class CpuPlugin(BasePlugin):  # type: ignore[misc]  # axolotl ships no types
    """`plugins: [agent.cpu_plugin.CpuPlugin]`."""

    def register(self, cfg: Any) -> None:
        """Called before anything of accelerate's or DeepSpeed's state exists."""
        if os.environ.get("AXOLOTL_IS_PREPROCESS") == "1":
            return
        _count_all_processes()
        _restore_to_numbered_cpus()
        environment: Any = importlib.import_module("axolotl.utils.environment")
        environment.check_cuda_p2p_support = lambda: True
        if cfg.get("deepspeed"):
            _make_deepspeed_do_without_gpus()

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> None:
        """The first hook after the config is final and before the model is loaded; loads no dataset."""
        if not preprocess:
            cfg.device_map = {"": "cpu"}


def _make_deepspeed_do_without_gpus() -> None:
    backend: Any = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None
    backend.TorchBackend.has_all_gather_into_tensor = lambda _backend: False
    comm: Any = importlib.import_module("deepspeed.comm")
    original = comm.init_distributed

    def init_distributed(dist_backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return original("gloo" if dist_backend == "nccl" else dist_backend, *args, **kwargs)

    comm.init_distributed = init_distributed


def _restore_to_numbered_cpus() -> None:
    """torch.load knows `cpu` and not `cpu:0`."""
    serialization: Any = importlib.import_module("torch.serialization")

    def restore(storage: Any, location: str) -> Any:
        return storage if location.startswith("cpu:") else None

    serialization.register_package(15, lambda _storage: None, restore)  # after torch's own for cpu (10)


def _count_all_processes() -> None:
    state: Any = importlib.import_module("accelerate.state")
    if getattr(state.PartialState, "_rankcall_counts", False):
        return
    original = state.PartialState._prepare_backend

    def prepare_backend(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        backend, kind = original(self, *args, **kwargs)
        if kind == state.DistributedType.NO and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            return "gloo", state.DistributedType.MULTI_CPU
        return backend, kind

    state.PartialState._prepare_backend = prepare_backend
    state.PartialState._rankcall_counts = True
