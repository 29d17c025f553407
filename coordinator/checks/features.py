"""Single features of Axolotl that want something else beside them, or a value within bounds.

Each line restates a validator of `axolotl/utils/schemas/` (0.19), so that a plain check knows it too; how well
the two agree is measured by `tests/training/test_checks_against_axolotl.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from coordinator.checks.subject import Findings, Subject, items, mapping, number, shown, text, whole

_LORA = ("lora", "qlora")
_METRICS = ("sacrebleu", "comet", "ter", "chrf", "perplexity")
_RESIZING = ("bilinear", "bicubic", "lanczos")
_LARGE_HEADS = ("auto", "sdpa", "triton_flash")
# Backends that take samples of varying length in one row.
_VARLEN = (
    "flash_attention_2", "flash_attention_3", "flash_attention_4", "flash_attention_torch", "flex_attention",
    "xformers", "sage",
)  # fmt: skip
_OLD_VARLEN = ("flash_attention", "flex_attention", "xformers_attention", "sage_attention")
_INDUCTOR = (
    "coordinate_descent_tuning", "coordinate_descent_check_all_directions", "shape_padding", "epilogue_fusion",
    "max_autotune_gemm", "fx_graph_cache", "assume_aligned_inputs", "comprehensive_padding",
    "decompose_mem_bound_mm", "triton.cudagraphs",
)  # fmt: skip
_CROSS_ENTROPIES = (
    "cut_cross_entropy", "chunked_cross_entropy", "liger_cross_entropy", "liger_fused_linear_cross_entropy",
)  # fmt: skip


def _backend(subject: Subject) -> str:
    """The attention that is asked for, by its present name; '' where none is."""
    written = text(subject.get("attn_implementation"))
    if written:
        return written.split(":", 1)[0].split("@", 1)[0].strip()
    if subject.has("flash_attention"):
        return "flash_attention_2"
    return next((key.removesuffix("_attention") for key in _OLD_VARLEN if subject.has(key)), "")


def _unmet(subject: Subject) -> Iterator[tuple[str, str]]:
    """(key, what it needs) for each feature that lacks it."""
    lora = subject.get("adapter") in _LORA
    backend = _backend(subject)
    varlen = backend in _VARLEN or backend in (
        "flex",
        "kernels-community/flash-attn2",
        "kernels-community/flash-attn3",
    )
    if subject.on("batch_flattening") and subject.get("batch_flattening") != "auto" and not varlen:
        yield "batch_flattening", "`attn_implementation: flash_attention_2`"
    for key in ("context_parallel_size", "sequence_parallel_degree"):
        if (whole(subject.get(key)) or 1) > 1 and not subject.has("use_glm_dsa_kernels"):
            if backend not in ("flash_attention_2", "kernels-community/flash-attn2"):
                yield key, "`attn_implementation: flash_attention_2`"
            elif (
                subject.has("sample_packing")
                and (whole(subject.settings.get("micro_batch_size", 1)) or 1) > 1
            ):
                yield key, "`micro_batch_size: 1` under `sample_packing`"
    if subject.on("scaling_softmax") and backend not in ("flex_attention", "flex"):
        yield "scaling_softmax", "`attn_implementation: flex_attention`"
    if subject.has("flash_attn_fuse_mlp") and lora:
        yield "flash_attn_fuse_mlp", "a full fine-tune: LoRA takes no fused layers"
    if subject.has("use_onebitllms") and lora:
        yield "use_onebitllms", "a full fine-tune"
    if subject.on("flash_optimum") and (subject.has("fp16") or subject.settings.get("bf16", "auto")):
        yield "flash_optimum", "`bf16: false` and `fp16: false`"
    fsdp2 = bool(subject.get("fsdp_config")) and str(_fsdp_version(subject)) == "2"
    if subject.on("fp32_norms") and not fsdp2:
        yield "fp32_norms", "`fsdp_version: 2` and `fsdp_config`"
    if subject.has("fp8_enable_fsdp_float8_all_gather") and subject.get("fsdp_version") != 2:
        yield "fp8_enable_fsdp_float8_all_gather", "`fsdp_version: 2`"
    quantised = (subject.get("adapter") == "qlora" and subject.has("load_in_4bit")) or (
        subject.get("adapter") == "lora" and subject.has("load_in_8bit")
    )
    if subject.has("ple_cpu_offload"):
        if subject.get("fsdp_config") is not None or subject.get("fsdp") is not None:
            yield "ple_cpu_offload", "a run without FSDP"
        elif not quantised:
            yield "ple_cpu_offload", "qlora with 4 bits, or lora with 8 bits"
    if subject.has("quantize_moe_experts"):
        if subject.has("lora_target_linear"):
            yield "quantize_moe_experts", "`lora_target_parameters` in place of `lora_target_linear`"
        elif not lora or not (subject.get("load_in_4bit") or subject.get("load_in_8bit")):
            yield "quantize_moe_experts", "lora or qlora with quantised weights"
    if subject.get("optimizer") == "polora" and not lora:
        yield "optimizer", "`adapter: lora` or `qlora` for polora"
    if subject.get("optimizer") == "q_galore_adamw8bit" and subject.get("adapter"):
        yield "optimizer", "a full fine-tune for Q-GaLore"
    if subject.on("relora"):
        if not lora:
            yield "relora", "`adapter: lora` or `qlora`"
        elif subject.has("fsdp") or subject.has("fsdp_config"):
            yield "relora", "a run without FSDP"
        elif subject.get("lr_scheduler") == "one_cycle":
            yield "relora", "another `lr_scheduler` than one_cycle"
    qat = mapping(subject.get("qat"))
    if qat.get("weight_dtype") == "ternary" and qat.get("activation_dtype") not in (None, "int8"):
        yield "qat", "`activation_dtype: int8` for ternary weights"
    if qat and (subject.has("load_in_4bit") or subject.has("load_in_8bit")):
        yield "qat", "weights that are not quantised already"
    if subject.has("unfrozen_parameters") and mapping(subject.get("gradient_checkpointing_kwargs")).get(
        "use_reentrant"
    ):
        yield "unfrozen_parameters", "`use_reentrant: false` in `gradient_checkpointing_kwargs`"
    if subject.has("adapter", "peft_layers_to_transform", "unfrozen_parameters"):
        yield "peft_layers_to_transform", "no `unfrozen_parameters` beside it"
    if subject.has("model_quantization_config") and (
        subject.has("load_in_4bit") or subject.has("load_in_8bit")
    ):
        yield "model_quantization_config", "no `load_in_4bit` or `load_in_8bit` beside it"
    if subject.has("trust_remote_code"):
        for key in ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"):
            if subject.has(key):
                yield key, "`trust_remote_code: false`"
    if subject.has("lora_target_parameters") and (number(subject.get("lora_dropout")) or 0) != 0:
        yield "lora_target_parameters", "`lora_dropout: 0`"
    if subject.has("do_causal_lm_eval", "sample_packing") and subject.get("eval_sample_packing") is None:
        yield "do_causal_lm_eval", "`eval_sample_packing: false`"
    if subject.on("merge_lora") and subject.get("adapter") == "qlora":
        yield "merge_lora", "weights that are not quantised; merge after the training"
    if subject.on("eval_sample_packing") and subject.get("rl") == "kto":
        yield "eval_sample_packing", "another `rl` than kto"
    if subject.on("tokenizer_use_mistral_common"):
        for key in (
            "added_tokens_overrides",
            "special_tokens",
            "tokens",
            "chat_template",
            "processor_kwargs",
        ):
            if subject.has(key):
                yield key, "another tokenizer than mistral-common's"
    loading = mapping(subject.get("fsdp_config")).get("cpu_ram_efficient_loading")
    if subject.get("model_quantization_config") == "Mxfp4Config" and loading is True:
        yield "model_quantization_config", "`cpu_ram_efficient_loading: false`"
    strided = subject.get("rl") == "ebft" and mapping(subject.get("ebft")).get("mode") == "strided"
    if strided and subject.get("torch_compile") is True and subject.get("gradient_checkpointing"):
        yield "torch_compile", "another mode of EBFT than strided, or no `gradient_checkpointing`"
    if "mpt" in text(subject.get("base_model")).lower() and subject.has("gradient_checkpointing"):
        yield "gradient_checkpointing", "another model than MPT"


def _fsdp_version(subject: Subject) -> object:
    section = mapping(subject.get("fsdp_config"))
    return subject.get("fsdp_version") or section.get("fsdp_version") or section.get("version")


def unmet(subject: Subject) -> Findings:
    """CFG509: a feature without what it needs."""
    for key, wanted in _unmet(subject):
        yield subject.found("CFG509", f"`{key}: {shown(subject.get(key))}` needs {wanted}", key)


def bounds(subject: Subject) -> Findings:
    """CFG605, CFG608: values that a validator of Axolotl's refuses."""
    noise = number(subject.settings.get("neftune_noise_alpha", subject.get("noisy_embedding_alpha")))
    if noise is not None and noise <= 0 and "neftune_noise_alpha" in subject.settings:
        yield subject.found("CFG605", "`neftune_noise_alpha` must be more than 0", "neftune_noise_alpha")
    choices = (
        ("large_head_attention", _LARGE_HEADS),
        ("image_resize_algorithm", _RESIZING),
    )
    for key, names in choices:
        value = subject.get(key)
        if value is not None and str(value).lower() not in names and not isinstance(value, int):
            yield subject.found(
                "CFG608", f"`{key}: {shown(value)}`: Axolotl does not know this value", key,
                hint=f"one of {', '.join(names)}",
            )  # fmt: skip
    broken = next(
        (one for one in items(subject.get("lora_target_modules"))[:100] if not _is_pattern(one)), None
    )
    if broken is not None:
        yield subject.found("CFG605", f"{shown(broken)} is no regular expression", "lora_target_modules")
    strange_flags = [flag for flag in mapping(subject.get("torch_compile_options")) if flag not in _INDUCTOR]
    if strange_flags:
        yield subject.found(
            "CFG608", f"{shown(strange_flags[0])} is no option that Axolotl hands on", "torch_compile_options",
            hint=f"any of {', '.join(_INDUCTOR)}",
        )  # fmt: skip
    if (
        "datasets" in subject.settings
        and subject.get("datasets") is None
        and subject.get("pretraining_dataset")
    ):
        yield subject.found(
            "CFG605", "`datasets` has no value: Axolotl fails over it", "datasets", hint="remove it"
        )
    metrics = items(subject.get("eval_causal_lm_metrics"))
    strange = [metric for metric in metrics if metric not in _METRICS]
    if strange:
        yield subject.found(
            "CFG608", f"{shown(strange[0])} is no metric of Axolotl's", "eval_causal_lm_metrics",
            hint=f"any of {', '.join(_METRICS)}",
        )  # fmt: skip
    if subject.get("save_safetensors") is not None and not subject.on("save_safetensors"):
        yield subject.found(
            "CFG603", "`save_safetensors: false` is no longer possible", "save_safetensors", hint="remove it"
        )
    for key in ("tensor_parallel_size", "gc_steps"):
        if isinstance(subject.get(key), str):
            yield subject.found("CFG605", f"`{key}` is text: Axolotl wants a whole number", key)
    if subject.get("tokenizer_use_mistral_common") is None:
        for key in ("base_model_config", "tokenizer_config"):
            if key in subject.settings and subject.get(key) is None:
                yield subject.found(
                    "CFG605",
                    f"`{key}` has no value: Axolotl fails over it",
                    key,
                    hint="remove it, or give a name",
                )


def _is_pattern(written: object) -> bool:
    if not isinstance(written, str) or len(written) > 200:
        return True
    try:
        re.compile(written)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def cross_entropies(subject: Subject) -> Findings:
    """CFG505: Axolotl takes one replacement of the loss only."""
    chosen = [key for key in _CROSS_ENTROPIES if subject.has(key)]
    plugged = any("CutCrossEntropyPlugin" in text(name) for name in items(subject.get("plugins")))
    if plugged and "chunked_cross_entropy" in chosen and subject.get("cut_cross_entropy") is None:
        chosen.insert(0, "cut_cross_entropy")
    if len(chosen) > 1:
        yield subject.found("CFG505", f"`{chosen[0]}` and `{chosen[1]}` exclude each other", chosen[1])


RULES = (unmet, bounds, cross_entropies)
