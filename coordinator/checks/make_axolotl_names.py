"""Writes `axolotl_names.json`: names that Axolotl's schema lets through and its trainer, or the data loading, knows or not.

Run by a person when the supported Axolotl changes, in an environment that has it:

    python -m coordinator.checks.make_axolotl_names
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

from coordinator.checks.make_types import written

TABLE = Path(__file__).with_name("axolotl_names.json")
# Packages of dataset types beside the ordinary ones: by the trainer that reads them.
_OF_TRAINERS = ("dpo", "kto", "orpo", "ebft", "bradley_terry")
# The function that a type without a dot stands for.
_PLAIN = {"bradley_terry": "load"}
_STRATEGIES = "axolotl.prompt_strategies"


def _modules(package: str) -> list[Any]:
    """The modules of a package, its sub-packages left out."""
    root = importlib.import_module(package)
    return [
        importlib.import_module(f"{package}.{one.name}")
        for one in pkgutil.iter_modules(root.__path__)
        if not one.ispkg and one.name != "base"
    ]


def _supervised() -> list[str]:
    """`chat_template`, `alpaca_chat.load_qa`: modules with `load`, and each `load_…` in them."""
    from axolotl.utils.data.wrappers import DATASET_HANDLERS

    known = {*DATASET_HANDLERS, "messages", "messages.chat"}
    for module in _modules(_STRATEGIES):
        name = module.__name__.rpartition(".")[2]
        for function in dir(module):
            if function == "load":
                known |= {name, f"{name}.load"}
            elif function.startswith("load_"):
                known.add(f"{name}.{function}")
    return sorted(known)


def _of_trainer(trainer: str) -> list[str]:
    """`llama3.ultra`, and `llama3` where it has `default`: the functions of a trainer's modules that take a config."""
    known = set()
    for module in _modules(f"{_STRATEGIES}.{trainer}"):
        name = module.__name__.rpartition(".")[2]
        for function, made in inspect.getmembers(module, inspect.isfunction):
            if made.__module__ != module.__name__ or "cfg" not in inspect.signature(made).parameters:
                continue
            known.add(f"{name}.{function}")
            if function == _PLAIN.get(trainer, "default"):
                known.add(name)
    return sorted(known)


def make() -> dict[str, Any]:
    """The table, from the Axolotl and transformers of this environment."""
    from axolotl.utils.schemas.enums import CustomSupportedOptimizers
    from transformers.trainer_utils import HubStrategy, SaveStrategy, SchedulerType
    from transformers.training_args import OptimizerNames

    def values(*enums: Any) -> list[str]:
        return sorted({str(member.value) for enum in enums for member in enum})

    return {
        "axolotl": importlib.metadata.version("axolotl"),
        "transformers": importlib.metadata.version("transformers"),
        "names": {
            "optimizer": values(OptimizerNames, CustomSupportedOptimizers),
            # `core/builders/base.py` takes two of its own out before the trainer looks.
            "lr_scheduler": sorted([*values(SchedulerType), "one_cycle", "rex"]),
            "save_strategy": values(SaveStrategy),
            "hub_strategy": values(HubStrategy),
        },
        "datasets": {
            "supervised": _supervised(),
            **{trainer: _of_trainer(trainer) for trainer in _OF_TRAINERS},
        },
    }


if __name__ == "__main__":
    made = json.loads(json.dumps(make()))
    TABLE.write_text(written(made), encoding="utf-8")
    print(f"{TABLE.name}: Axolotl {made['axolotl']}", file=sys.stderr)
