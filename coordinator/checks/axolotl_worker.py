"""Asks Axolotl's own schema, in a process of its own: importing it takes seconds and 600 MB.

Started as a file by `axolotl_process.py` with an interpreter that has Axolotl (which need not have rankcall), in an empty
folder; its argument is its niceness. Standard library and Axolotl only. It reads one question a line and answers one line each:

    {"config": "base_model: …", "capabilities": {…}, "torch": "2.9.1", "deepspeed": {…} | null}
    → {"ok": bool, "axolotl": "0.19.0", "errors": [{"at": [...], "message": "…"}], "warnings": ["…"],
       "unsure": "…" | null, "deepspeed": [{"at": [...], "message": "…"}]}

`config` is YAML, or a mapping. `deepspeed` in the answer is what DeepSpeed's own config class refuses; empty where
DeepSpeed cannot be asked.

Its first line, once Axolotl is imported, is {"ready": true}, else {"ready": false, "error": …}, with "absent": true where
there is none.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# A plugin is imported by its name: only Axolotl's own are, never whatever a submission names.
_OWN_PLUGINS = "axolotl.integrations."
_MOST_WARNINGS = 20


class _Warnings(logging.Handler):
    """Keeps what Axolotl says while it reads a config."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("axolotl.utils.schemas") and len(self.said) < _MOST_WARNINGS:
            self.said.append(record.getMessage())


def _answer(question: dict[str, Any], warnings: _Warnings) -> dict[str, Any]:
    """Axolotl's verdict on one config."""
    import yaml
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault
    from pydantic import ValidationError

    warnings.said.clear()
    config = question["config"]
    if isinstance(config, str):
        config = yaml.safe_load(config)
    plugins = [name for name in config.get("plugins") or [] if str(name).startswith(_OWN_PLUGINS)]
    unknown = [name for name in config.get("plugins") or [] if name not in plugins]
    config = (
        {**config, "plugins": plugins} if plugins else {k: v for k, v in config.items() if k != "plugins"}
    )
    errors: list[dict[str, Any]] = []
    unsure = None
    with tempfile.TemporaryDirectory() as folder:
        if question.get("deepspeed") is not None and isinstance(config.get("deepspeed"), str):
            # Axolotl opens the file for some settings; its name counts for others.
            file = Path(folder) / Path(config["deepspeed"]).name
            file.write_text(json.dumps(question["deepspeed"]))
            config["deepspeed"] = str(file)
        try:
            _load_plugins(plugins)
            validate_config(
                DictDefault(config),
                capabilities=question["capabilities"],
                env_capabilities={"torch_version": question.get("torch") or _torch_version()},
            )
        except ValidationError as error:
            errors = [
                {
                    "at": [str(part) for part in one["loc"]],
                    "message": one["msg"].removeprefix("Value error, "),
                }
                for one in error.errors(include_url=False, include_context=False, include_input=False)
            ]
        except (ImportError, OSError) as error:
            # About this machine, not about the config.
            unsure = f"{type(error).__name__}: {error}"
        except Exception as error:
            errors = [{"at": [], "message": f"{error}" or type(error).__name__}]
        finally:
            _forget_plugins()
    if errors and unknown:
        unsure = f"plugins that are not Axolotl's own were left out: {', '.join(map(str, unknown))}"
    return {
        "ok": not errors,
        "axolotl": _axolotl_version(),
        "errors": errors,
        "warnings": list(warnings.said),
        "unsure": unsure,
        "deepspeed": _deepspeed_refusals(question.get("deepspeed")),
    }


def _deepspeed_refusals(values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, dict):
        return []
    file = Path(__file__).parent.parent / "core" / "deepspeed_refusals.py"
    spec = importlib.util.spec_from_file_location("deepspeed_refusals", file)
    assert spec is not None and spec.loader is not None
    asked = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(asked)
    try:
        return [{"at": at, "message": message} for at, message in asked.refusals(values)]
    except (ImportError, OSError):
        return []


def _load_plugins(plugins: list[str]) -> None:
    """So that their keys are known. Their own `register` is not called: one of them clones a repository there."""
    from axolotl.integrations.base import PluginManager

    for name in plugins:
        PluginManager.get_instance().register(name)


def _forget_plugins() -> None:
    from axolotl.integrations.base import PluginManager

    PluginManager.get_instance().plugins.clear()


def _axolotl_version() -> str:
    import axolotl

    return str(getattr(axolotl, "__version__", ""))


def _torch_version() -> str:
    import torch

    return str(torch.__version__).split("+", maxsplit=1)[0]


def main() -> None:
    # Started as a file, Python looks in this folder first, where `accelerate` is ours.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
    # Libraries print to stdout; the answers go where nobody else writes.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    if importlib.util.find_spec("axolotl") is None:
        say({"ready": False, "absent": True, "error": "no module named axolotl"})
        return
    os.nice(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    with contextlib.suppress(OSError):  # where memory is short, a training needs it more
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        import axolotl.utils.config  # noqa: F401
    except Exception as error:
        say({"ready": False, "error": f"{type(error).__name__}: {error}"})
        return
    warnings = _Warnings()
    logging.getLogger("axolotl").addHandler(warnings)
    logging.getLogger("axolotl.utils.schemas").addHandler(warnings)
    say({"ready": True})
    for line in sys.stdin:
        try:
            say(_answer(json.loads(line), warnings))
        except Exception as error:
            say({"ok": True, "errors": [], "warnings": [], "unsure": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
