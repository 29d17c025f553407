"""`axolotl preprocess`, and a note of what it prepared: `python -m agent.prepare AXOLOTL_YAML`.

Run on each replica in the prepare stage. Leaves `$RANKCALL_ATTEMPT_DIR/prepare-result.json` with the number
of rows and a digest of their content, equal on replicas whose data is equal: data that differs is found
here, and not by a hang at the end of the shorter replica's epoch. It also says which checkpoints of the job lie here,
and notes what else the output folder holds before anything is trained.

Nothing heavy is imported at the top, on purpose: `datasets` starts its writers by
`spawn`, which imports this module again in each, and with Axolotl at the top that costs ten seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent import leftovers

RESULT = "prepare-result.json"
ROWS_PER_BATCH = 1000


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        print("usage: python -m agent.prepare AXOLOTL_YAML", file=sys.stderr)
        return 2
    from axolotl.cli import preprocess

    attempt = os.environ.get("RANKCALL_ATTEMPT_DIR")
    output = output_of(Path(arguments[0]))
    if attempt and output is not None:
        leftovers.note(output, Path(attempt))
    refused = _refused_by_deepspeed(Path(arguments[0]))
    if refused:
        print("\n".join(refused), file=sys.stderr)
        return 1
    noted: dict[str, Any] = {"rows": None, "eval_rows": None, "digest": None}
    for name in ("load_datasets", "load_preference_datasets"):
        if hasattr(preprocess, name):
            setattr(preprocess, name, _noting(getattr(preprocess, name), noted))
    # Axolotl parses the command line a second time for its own flags.
    sys.argv = ["axolotl preprocess"]
    preprocess.do_cli(config=arguments[0])
    noted["checkpoints"] = checkpoints_in(output, attempt) if output is not None else []
    _leave(noted)
    return 0


def _noting(load: Callable[..., Any], noted: dict[str, Any]) -> Callable[..., Any]:
    """`load`, and then the rows and the digest of what it returned."""

    def load_and_note(*args: Any, **kwargs: Any) -> Any:
        loaded = load(*args, **kwargs)
        noted.update(describe(loaded.train_dataset, loaded.eval_dataset))
        return loaded

    return load_and_note


def describe(train: Any, evaluation: Any) -> dict[str, Any]:
    """Rows and one digest of two datasets; None where a dataset is a stream and has neither."""
    if not hasattr(train, "__len__"):
        return {"rows": None, "eval_rows": None, "digest": None}
    digest = hashlib.sha256()
    for dataset in (train, evaluation):
        if dataset is not None and hasattr(dataset, "__len__"):
            _hash_rows(dataset, digest)
    return {
        "rows": len(train),
        "eval_rows": None if evaluation is None else len(evaluation),
        "digest": digest.hexdigest(),
    }


def _hash_rows(dataset: Any, digest: Any) -> None:
    """The content, row by row and column by column, whatever the files and chunks it lies in."""
    import pyarrow as arrow  # type: ignore[import-untyped]

    columns = sorted(dataset.column_names)
    digest.update(json.dumps([len(dataset), columns]).encode())
    for table in dataset.with_format("arrow").iter(batch_size=ROWS_PER_BATCH):
        for name in columns:
            column = table.column(name).combine_chunks()
            kind = column.type
            is_list = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
            if is_list and arrow.types.is_integer(kind.value_type):
                digest.update(column.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False).tobytes())
                values = column.flatten().cast(arrow.int64()).fill_null(-(2**63))
                digest.update(values.to_numpy(zero_copy_only=False).tobytes())
            else:
                digest.update(json.dumps(column.to_pylist(), default=str).encode())


def _refused_by_deepspeed(config: Path) -> list[str]:
    """What DeepSpeed's config class says against the file that the config names: before the model is loaded, not after."""
    from coordinator.core.deepspeed_refusals import refusals
    from coordinator.core.yaml import load

    named = load(config.read_text(), config.name).get("deepspeed")
    if not isinstance(named, str) or not Path(named).is_file():
        return []
    try:
        found = refusals(json.loads(Path(named).read_text(encoding="utf-8")))
    except ImportError:
        return []  # training says it
    except (OSError, ValueError) as error:
        return [f"ValueError: {named}: {error}"]
    return [f"ValueError: {named}: DeepSpeed refuses {'.'.join(at) or 'it'}: {said}" for at, said in found]


def output_of(config: Path) -> Path | None:
    """The output folder that the rendered configuration names."""
    from coordinator.core.yaml import load

    output = str(load(config.read_text(), config.name).get("output_dir") or "")
    return Path(output) if output else None


def checkpoints_in(output: Path, attempt: str | None) -> list[dict[str, Any]]:
    """What of this job lies in the output folder, for an attempt that is to go on from there."""
    from agent.checkpoints import job_of, listing
    from coordinator.core.checkpoints import held

    return [one.model_dump(mode="json") for one in held(listing(output, job_of(attempt)))]


def _leave(noted: dict[str, Any]) -> None:
    folder = os.environ.get("RANKCALL_ATTEMPT_DIR")
    if not folder:
        print(json.dumps(noted))
        return
    path = Path(folder) / RESULT
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(noted))
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
