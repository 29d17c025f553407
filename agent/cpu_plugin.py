"""Lets Axolotl and DeepSpeed train without a GPU. An Axolotl plugin, named in the rendered config on CPU replicas.

Four things stand in the way of a world larger than one on the CPU, and each is put right here:

- `axolotl.utils.config.normalize_config` makes the local rank a GPU index (`device_map = {"": 0}`).
- `accelerate.PartialState` finds no accelerator and believes in a world of one while DeepSpeed is in a
  world of many: the ranks would all train on the same samples, and evaluation would fail in its gather.
- gloo refuses the in-place view that DeepSpeed's ZeRO 1 and 2 pass to `all_gather_into_tensor`
  (torch 2.13: "no support for view"); DeepSpeed has a slower path that it takes when the backend says
  it lacks the call.
- DeepSpeed compiles a shared-memory collective for ranks on one machine before it starts: twenty seconds
  and a C++ compiler, for something that replicas in different containers cannot use.
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
        if cfg.get("deepspeed"):
            backend: Any = importlib.import_module("deepspeed.comm.torch")
            backend.build_shm_op = lambda: None
            backend.TorchBackend.has_all_gather_into_tensor = lambda _backend: False

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> None:
        """The first hook after the config is final and before the model is loaded; loads no dataset."""
        if not preprocess:
            cfg.device_map = {"": "cpu"}


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
