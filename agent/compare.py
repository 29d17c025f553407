"""Base against tuned: the same prompts, the same greedy decoding. `python -m agent.compare SPEC_JSON`.

A process of its own on rank 0's replica, after the result was collected; its failure costs no model. Works
for adapters and for whole models, on a GPU and without. Leaves `$RANKCALL_ATTEMPT_DIR/compare-result.json`:
a list of `views.ComparedAnswer`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from agent.repetition import repetition

RESULT = "compare-result.json"


class CompareSpec(BaseModel):
    """What `render` wrote into `compare.json`.

    Attributes:
        base_model, output_dir: folders relative to the working folder, or a hub's name.
        adapter: the result is an adapter on the base, not a model of its own.
        style: how a prompt is laid out: as Axolotl's `alpaca`, by the tokenizer's chat template, by
            `template` (with `{instruction}` in it), or as it is.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    base_model: str
    output_dir: str
    adapter: bool
    prompts: tuple[str, ...]
    style: Literal["alpaca", "chat", "template", "raw"] = "raw"
    template: str = "{instruction}"
    max_new_tokens: int = 128
    trust_remote_code: bool = False


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        print("usage: python -m agent.compare SPEC_JSON", file=sys.stderr)
        return 2
    answers = compare(CompareSpec.model_validate_json(Path(arguments[0]).read_bytes()))
    text = json.dumps(answers, ensure_ascii=False, indent=1)
    folder = os.environ.get("RANKCALL_ATTEMPT_DIR")
    if folder:
        partial = Path(folder) / (RESULT + ".partial")
        partial.write_text(text)
        partial.replace(Path(folder) / RESULT)
    print(text)
    return 0


def compare(spec: CompareSpec) -> list[dict[str, Any]]:
    """One `views.ComparedAnswer` per prompt."""
    from transformers import AutoTokenizer

    output = Path(spec.output_dir)
    has_tokenizer = (output / "tokenizer_config.json").is_file()
    tokenizer = AutoTokenizer.from_pretrained(
        spec.output_dir if has_tokenizer else spec.base_model, trust_remote_code=spec.trust_remote_code
    )
    prompts = [lay_out(prompt, spec, tokenizer) for prompt in spec.prompts]
    model = _load(spec.base_model, spec)
    base = [_answer(model, tokenizer, prompt, spec.max_new_tokens) for prompt in prompts]
    if spec.adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, spec.output_dir).eval()
    else:
        del model
        model = _load(spec.output_dir, spec)
    tuned = [_answer(model, tokenizer, prompt, spec.max_new_tokens) for prompt in prompts]
    return [
        {
            "prompt": prompt,
            "base": before,
            "tuned": after,
            "base_repetition": repetition(before),
            "tuned_repetition": repetition(after),
        }
        for prompt, before, after in zip(spec.prompts, base, tuned, strict=True)
    ]


def lay_out(prompt: str, spec: CompareSpec, tokenizer: Any) -> str:
    """The prompt as the training data had it, so that both models are asked in a form the tuned one knows."""
    if spec.style == "alpaca":
        from axolotl.prompters import AlpacaPrompter

        return str(next(iter(AlpacaPrompter().build_prompt(prompt))))
    if spec.style == "template":
        return spec.template.replace("{instruction}", prompt)
    if spec.style == "chat" and getattr(tokenizer, "chat_template", None):
        return str(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
        )
    return prompt


def _load(name: str, spec: CompareSpec) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    gpu = torch.cuda.is_available()
    narrow = torch.bfloat16 if gpu and torch.cuda.is_bf16_supported() else torch.float16
    return AutoModelForCausalLM.from_pretrained(
        name,
        dtype=narrow if gpu else torch.float32,
        device_map="auto" if gpu else None,
        trust_remote_code=spec.trust_remote_code,
    ).eval()


def _answer(model: Any, tokenizer: Any, prompt: str, max_new_tokens: int) -> str:
    import torch

    chat_began = bool(tokenizer.bos_token) and prompt.startswith(tokenizer.bos_token)
    tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=not chat_began).to(model.device)
    tokens.pop("token_type_ids", None)
    with torch.inference_mode():
        output = model.generate(
            **tokens,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            temperature=None,
            top_p=None,
            top_k=None,
            pad_token_id=tokenizer.pad_token_id
            if tokenizer.pad_token_id is not None
            else tokenizer.eos_token_id,
        )
    new = output[0, tokens["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True)).strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
