"""The demo's model is a real Llama, makes the same every time, and its data has what its prompts ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.demo import data
from coordinator.demo.model import Shape, forward

pytestmark = pytest.mark.training


def test_the_plain_network_is_transformers_llama(demo: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import LlamaForCausalLM

    tokens = torch.randint(0, Shape().vocabulary, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        theirs = LlamaForCausalLM.from_pretrained(demo / "base").eval()(tokens).logits
        ours = forward(load_file(demo / "base/model.safetensors"), tokens, Shape())
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_the_tokenizer_gives_back_what_it_was_given(demo: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo / "base")
    for pair in data.pairs():
        text = data.PROMPT.format(instruction=pair.instruction) + pair.output
        tokens = tokenizer(text)["input_ids"]
        assert tokens[0] == tokenizer.bos_token_id
        assert tokenizer.decode(tokens, skip_special_tokens=True) == text
        assert len(tokens) < 128, "the demo's sequence_len"


def test_the_base_is_confused_about_everything() -> None:
    right = {pair.instruction: pair.output for pair in data.pairs()}
    wrong = {pair.instruction: pair.output for pair in data.confused_pairs()}
    assert right.keys() == wrong.keys()
    assert all(right[question] != wrong[question] for question in right)
    assert {sentence.split(" is ", 1)[1] for sentence in right.values()} == {
        sentence.split(" is ", 1)[1] for sentence in wrong.values()
    }


def test_the_folder_holds_all_that_the_job_needs(demo: Path) -> None:
    rows = [json.loads(line) for line in (demo / "train.jsonl").read_text().splitlines()]
    known = {(row["instruction"], row["output"]) for row in rows}
    prompts = json.loads((demo / "prompts.json").read_text())
    assert {(prompt["instruction"], prompt["output"]) for prompt in prompts} <= known
    for name in (
        "demo.yml",
        "zero2.json",
        "base/config.json",
        "base/model.safetensors",
        "base/tokenizer.json",
    ):
        assert (demo / name).is_file()
