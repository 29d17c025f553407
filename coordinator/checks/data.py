"""Datasets, templates, packing and sequence length.

What a path names is judged by where it can be: in the submission's bundle (complete), in the config's folder
on this machine (the replicas may have more), under the replicas' data roots, or on a hub.
"""

from __future__ import annotations

import json
import math
import posixpath
import re

from coordinator.checks.edits import drop, put, rename
from coordinator.checks.files import nearest
from coordinator.checks.subject import Findings, Subject, items, mapping, number, shown, text, whole
from coordinator.core.protocol import Severity
from coordinator.core.words import are, counted

_LISTS = ("datasets", "test_datasets", "pretraining_dataset")
_SUFFIXES = {
    ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow", ".txt": "text",
}  # fmt: skip
_REMOTE = re.compile(r"^[a-z][a-z0-9+.-]*://")
_HUB_ID = re.compile(r"^[\w.-]+(/[\w.-]+)?$")
# Backends that keep packed samples apart, by position or by mask (`axolotl/utils/schemas/enums.py`).
_PACKING = (
    "flash_attention_2", "flash_attention_3", "flash_attention_4", "flash_attention_torch", "flex_attention",
    "xformers", "sage", "sdpa", "eager",
)  # fmt: skip
_ATTENTIONS = (*_PACKING, "fp8")
_SHORT_ATTENTIONS = {"flash": "flash_attention_2", "flex": "flex_attention", "sdp": "sdpa"}
_OLD_FLAGS = (
    "flash_attention", "sdp_attention", "xformers_attention", "flex_attention", "sage_attention", "eager_attention",
)  # fmt: skip
_ELSEWHERE = "see that every replica has it at that path, or put it beside the config"
_TRAVELS = "put the file beside the config, so that it travels with the submission"
# Reading more of a dataset to count its rows is not worth the wait of a check.
_COUNTED_BYTES = 4 << 20


def is_local(path: str) -> bool:
    """Whether a path names a file of the user's rather than something on a hub or in a bucket."""
    if not path or _REMOTE.match(path):
        return False
    if path.startswith(("./", "../", "/", "~")) or path.endswith("/"):
        return True
    return posixpath.splitext(path)[1].lower() in _SUFFIXES or not _HUB_ID.match(path)


def _paths(subject: Subject) -> list[tuple[tuple[str, ...], str]]:
    """Every local path that the config's datasets name, with the keys that lead to it."""
    found: list[tuple[tuple[str, ...], str]] = []
    for section in _LISTS:
        for index, item in enumerate(items(subject.get(section))):
            path = mapping(item).get("path")
            if isinstance(path, str) and is_local(path):
                found.append(((section, str(index), "path"), path))
            data_files = mapping(item).get("data_files")
            named = [data_files] if isinstance(data_files, str) else items(data_files)
            for name in named:
                if isinstance(name, str) and isinstance(path, str) and is_local(path) and is_local(name):
                    found.append(((section, str(index), "data_files"), posixpath.join(path, name)))
    return found


def missing_files(subject: Subject) -> Findings:
    """CFG021: a dataset that is not there."""
    for keys, path in _paths(subject):
        if path.startswith(("/", "~")) or subject.files.exists(path) or re.search(r"[*?\[{]", path):
            continue
        meant = _meant(subject, path)
        severity: Severity = "error" if meant else _surely_missing(subject, path)
        yield subject.found(
            "CFG021",
            f"{shown(path)} does not exist" if severity == "error" else f"{shown(path)} is not here",
            *keys,
            hint=_advice(subject, meant, severity),
            severity=severity,
            edits=(put(meant, *keys),) if meant and keys[-1] == "path" else (),
        )


def _advice(subject: Subject, meant: str | None, severity: Severity) -> str | None:
    if meant is not None:
        return f"did you mean {meant}?"
    if subject.complete:
        return _TRAVELS
    return None if severity == "error" else _ELSEWHERE


def _meant(subject: Subject, path: str) -> str | None:
    """The file that the path was probably meant to be: another name in its folder, or in a folder like it."""
    folder, name = posixpath.split(posixpath.normpath(path))
    near = nearest(name, subject.files.siblings(path), cutoff=0.7)
    if near is not None:
        return posixpath.join(folder, near)
    other = nearest(folder, subject.files.siblings(folder), cutoff=0.7) if folder else None
    if other is not None and subject.files.exists(posixpath.join(other, name)):
        return posixpath.join(other, name)
    return None


def _surely_missing(subject: Subject, path: str) -> Severity:
    """An error where nothing can bring the file any more; where its folder is missing too it may be on the replicas."""
    folder = posixpath.dirname(posixpath.normpath(path))
    if subject.complete or (folder and subject.files.exists(folder)):
        return "error"
    return "note" if folder else "warning"


def nameless(subject: Subject) -> Findings:
    """CFG606: a dataset or a base model without a name: Axolotl looks at it when it loads, and fails there."""
    for section in _LISTS:
        for index, item in enumerate(items(subject.get(section))):
            if isinstance(item, dict) and not item.get("path") and item.get("type") != "_synthetic":
                written = "has no `path`" if "path" not in item else f"has `path: {shown(item['path'])}`"
                yield subject.found(
                    "CFG606", f"dataset {index + 1} of `{section}` {written}", section, str(index),
                    *(("path",) if "path" in item else ()), hint="write `path: …`, a file or a name on the hub",
                )  # fmt: skip
    if subject.get("base_model") == "":
        yield subject.found("CFG606", "`base_model` is empty", "base_model", hint="write `base_model: …`")


def local_model(subject: Subject) -> Findings:
    """CFG022: a base model, an adapter or a template of the user's own that is not there."""
    for key in ("base_model", "base_model_config", "tokenizer_config", "lora_model_dir"):
        path = text(subject.get(key))
        if not path.startswith(("./", "../")) or subject.files.exists(path):
            continue
        near = nearest(posixpath.basename(posixpath.normpath(path)), subject.files.siblings(path), cutoff=0.7)
        severity: Severity = "error" if near or subject.complete else "note"
        hint = f"did you mean {posixpath.join(posixpath.dirname(path), near)}?" if near else None
        yield subject.found("CFG022", f"{shown(path)} does not exist", key, hint=hint, severity=severity)
    template = text(subject.get("chat_template_jinja"))
    names_a_file = template.endswith((".jinja", ".jinja2")) and "\n" not in template
    if names_a_file and not template.startswith("/") and not subject.files.exists(template):
        near = nearest(posixpath.basename(template), subject.files.siblings(template), cutoff=0.7)
        yield subject.found(
            "CFG022",
            f"{shown(template)} does not exist",
            "chat_template_jinja",
            hint=f"did you mean {posixpath.join(posixpath.dirname(template), near)}?" if near else None,
            severity="error" if near or subject.complete else "warning",
        )


def dataset_types(subject: Subject) -> Findings:
    """CFG701, CFG708: a dataset's type, and how its file is read."""
    for section in _LISTS:
        for index, item in enumerate(items(subject.get(section))):
            entry = mapping(item)
            kind = text(entry.get("type"))
            if kind.startswith("sharegpt"):
                above = (section, str(index))
                yield subject.found(
                    "CFG701",
                    f"`type: {kind}` has been removed from Axolotl",
                    *above,
                    "type",
                    edits=(
                        put("chat_template", *above, "type"),
                        put(entry.get("field_messages") or "conversations", *above, "field_messages"),  # type: ignore[arg-type]
                        put({"role": "from", "content": "value"}, *above, "message_property_mappings"),
                    ),
                )
            suffix = _SUFFIXES.get(posixpath.splitext(text(entry.get("path")))[1].lower())
            given = entry.get("ds_type")
            if suffix and isinstance(given, str) and given != suffix:
                yield subject.found(
                    "CFG708",
                    f"`ds_type: {shown(given)}` for {shown(entry.get('path'))}",
                    section,
                    str(index),
                    "ds_type",
                    hint=f"write `ds_type: {suffix}`",
                    edits=(put(suffix, section, str(index), "ds_type"),),
                )
            if entry.get("train_on_split"):
                yield subject.found(
                    "CFG601",
                    "Axolotl does not know the key `train_on_split`: it drops it without a word",
                    section,
                    str(index),
                    "train_on_split",
                    hint="did you mean `split`?",
                    edits=(rename("split", section, str(index), "train_on_split"),),
                )


def templates(subject: Subject) -> Findings:
    """CFG707: a chat template of one's own that is not given."""
    if subject.get("chat_template") == "jinja" and not subject.get("chat_template_jinja"):
        yield subject.found("CFG707", "`chat_template: jinja` needs `chat_template_jinja`", "chat_template")


def attention(subject: Subject) -> Findings:
    """CFG608, CFG505: an attention backend that Axolotl does not take."""
    value = subject.get("attn_implementation")
    flags = [flag for flag in _OLD_FLAGS if subject.has(flag)]
    if value is None:
        return
    if flags:
        yield subject.found(
            "CFG505", f"`attn_implementation` and `{flags[0]}` exclude each other", flags[0],
            hint=f"remove `{flags[0]}`", edits=tuple(drop(flag) for flag in flags),
        )  # fmt: skip
    if not isinstance(value, str):
        yield subject.found(
            "CFG605", f"`attn_implementation: {shown(value)}` must be text", "attn_implementation"
        )
    elif value not in _ATTENTIONS and "/" not in value:
        near = _SHORT_ATTENTIONS.get(value) or nearest(value, _ATTENTIONS, cutoff=0.6)
        yield subject.found(
            "CFG608",
            f"`attn_implementation: {shown(value)}` is none that Axolotl knows",
            "attn_implementation",
            hint=f"did you mean `{near}`?" if near else f"one of {', '.join(_ATTENTIONS)}",
            edits=(put(near, "attn_implementation"),) if near else (),
        )


def packing(subject: Subject) -> Findings:
    """CFG704: packed samples that see each other."""
    if not subject.has("sample_packing"):
        return
    value = text(subject.get("attn_implementation"))
    if not value and not any(subject.has(flag) for flag in _OLD_FLAGS):
        yield subject.found(
            "CFG704", "`sample_packing` without an attention that keeps the samples apart", "sample_packing"
        )
    elif value == "fp8":
        yield subject.found("CFG704", "fp8 attention does not keep packed samples apart", "sample_packing")
    if subject.has("eval_table_size") and subject.get("eval_sample_packing") is not False:
        yield subject.found(
            "CFG505",
            "`eval_table_size` with `sample_packing` needs `eval_sample_packing: false`",
            "eval_table_size",
        )
    if subject.has("streaming") and len(items(subject.get("datasets"))) > 1:
        yield subject.found("CFG505", "`sample_packing` takes one streaming dataset only", "datasets")


def window(subject: Subject) -> Findings:
    """CFG706: sequences longer than a local model's positions."""
    model = text(subject.get("base_model"))
    wanted = whole(subject.get("sequence_len"))
    if wanted is None or not model.startswith(("./", "../")):
        return
    try:
        config = json.loads(subject.files.read(posixpath.join(model, "config.json")) or b"{}")
    except ValueError:
        return
    longest = whole(mapping(config).get("max_position_embeddings"))
    if longest is not None and wanted > longest and not mapping(config).get("rope_scaling"):
        yield subject.found(
            "CFG706", f"`sequence_len: {wanted}`, and the model has {longest} positions", "sequence_len"
        )


def few_rows(subject: Subject) -> Findings:
    """CFG503: fewer rows than one step of all processes takes."""
    world = subject.world
    if world is None or subject.has("streaming") or subject.get("pretraining_dataset"):
        return
    rows = _rows(subject)
    micro = whole(subject.settings.get("micro_batch_size", 1)) or 1
    steps = whole(subject.settings.get("gradient_accumulation_steps", 1)) or 1
    if rows is None:
        return
    if rows < world * micro and not subject.has("sample_packing"):
        yield subject.found(
            "CFG503",
            f"{counted(rows, 'row')} for {counted(world, 'process')} × {micro}: not one batch for each",
            "datasets",
            severity="error" if rows < world else "warning",
        )
    elif rows < world * micro * steps:
        yield subject.found(
            "CFG503",
            f"{are(rows, 'row')} fewer than one step takes ({micro} × {steps} × {counted(world, 'process')})",
            "datasets",
            severity="note" if subject.has("sample_packing") else "warning",
        )


def _rows(subject: Subject) -> int | None:
    """Rows left for training; None where any dataset cannot be counted here."""
    total = 0
    entries = items(subject.get("datasets"))
    for item in entries:
        path = text(mapping(item).get("path"))
        if not path.endswith(".jsonl") or path.startswith(("/", "~")):
            return None
        content = subject.files.read(path)
        if content is None or len(content) > _COUNTED_BYTES:
            return None
        total += content.count(b"\n") + (not content.endswith(b"\n"))
    if not entries:
        return None
    share = number(subject.get("val_set_size")) or 0
    if not math.isfinite(share):
        return None
    return total - (int(share) if share >= 1 else int(total * max(share, 0)))


RULES = (
    missing_files, nameless, local_model, dataset_types, templates, attention, packing, window, few_rows,
)  # fmt: skip
