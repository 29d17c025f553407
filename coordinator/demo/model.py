"""Makes all that the demo trains with, on the spot: `python -m coordinator.demo.model FOLDER`.

A process of its own, because it loads torch. It writes a byte-level tokenizer, a tiny Llama that has
learned to speak but mixes everything up (`base/`), the data that puts it right (`train.jsonl`), a LoRA and
ZeRO-2 configuration naming them by relative paths (`demo.yml`, `zero2.json`) and the prompts to compare
(`prompts.json`). Nothing is fetched. Called by `demo/run.py` and the training tests.

The network is written out here in plain torch under the names that transformers gives its weights: a
quarter of the time that importing transformers' own Llama takes. `tests/training` holds both to be equal.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coordinator.demo import data

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

PAD, BOS, EOS = "<pad>", "<s>", "</s>"


@dataclass(frozen=True)
class Shape:
    """The model's sizes: 580,000 parameters, of which the embedding is shared with the output."""

    vocabulary: int = 600
    hidden: int = 128
    intermediate: int = 384
    layers: int = 2
    heads: int = 4
    positions: int = 256
    rope_theta: float = 10_000.0
    epsilon: float = 1e-5


@dataclass(frozen=True)
class Recipe:
    """How the base is raised. Judged by trial: fewer epochs mumble, more change nothing but the wait."""

    epochs: int = 10
    batch: int = 15
    learning_rate: float = 5e-3
    warmup_steps: int = 5
    seed: int = 7


CONFIG: Final = """\
# The demo's job: LoRA with DeepSpeed ZeRO-2 on two replicas, small enough for a CPU.
base_model: ./base
datasets:
  - path: ./train.jsonl
    ds_type: json
    type: alpaca
dataset_prepared_path: ./prepared
val_set_size: 0.1
output_dir: ./outputs/lora-out

adapter: lora
lora_r: 32
lora_alpha: 64
lora_dropout: 0.0
lora_target_linear: true

sequence_len: 128
dataset_num_proc: 1 # a second process would import everything again for 360 short rows
micro_batch_size: 4
gradient_accumulation_steps: 1
num_epochs: 3
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 0.003
warmup_steps: 5
weight_decay: 0.0
seed: 7

bf16: auto
gradient_checkpointing: false
logging_steps: 1
evals_per_epoch: 1
saves_per_epoch: 1
save_total_limit: 1

deepspeed: zero2.json
"""

DEEPSPEED: Final[dict[str, object]] = {
    "zero_optimization": {
        "stage": 2,
        "contiguous_gradients": True,
        "overlap_comm": True,
        "reduce_scatter": True,
    },
    "bf16": {"enabled": "auto"},
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}


def make(folder: Path, shape: Shape = Shape(), recipe: Recipe = Recipe()) -> None:
    """Writes everything under `folder`, the base model last, so that `base/config.json` means all is there."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base"
    base.mkdir(exist_ok=True)
    rows = [asdict(pair) for _ in range(data.REPEATS) for pair in data.pairs()]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "prompts.json").write_text(json.dumps([asdict(pair) for pair in data.prompts()], indent=1))
    (folder / "zero2.json").write_text(json.dumps(DEEPSPEED, indent=2) + "\n")
    (folder / "demo.yml").write_text(CONFIG)
    tokenizer = _make_tokenizer(base, shape)
    _save_weights(_raise(tokenizer, shape, recipe), base)
    _save_configuration(base, shape)


def _texts(pairs: Sequence[data.Pair]) -> list[tuple[str, str]]:
    return [(data.PROMPT.format(instruction=pair.instruction), pair.output) for pair in pairs]


def _make_tokenizer(base: Path, shape: Shape) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=shape.vocabulary,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((prompt + reply for prompt, reply in _texts(data.pairs())), trainer)
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bos)]
    )
    tokenizer.save(str(base / "tokenizer.json"))
    (base / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": BOS,
                "eos_token": EOS,
                "pad_token": PAD,
                "model_max_length": shape.positions,
                "clean_up_tokenization_spaces": False,
            },
            indent=2,
        )
    )
    return tokenizer


def _raise(tokenizer: Tokenizer, shape: Shape, recipe: Recipe) -> dict[str, Tensor]:
    """Trains the confused base and returns its weights."""
    import torch
    from torch.nn import functional

    # One thread: two would wait for each other at every operation as soon as anything else runs.
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    weights = _fresh_weights(shape)
    inputs, labels = _batches(tokenizer, data.confused_pairs())
    optimizer = torch.optim.AdamW(list(weights.values()), lr=recipe.learning_rate, weight_decay=0.0)
    order = torch.Generator().manual_seed(recipe.seed)
    steps_per_epoch = math.ceil(len(inputs) / recipe.batch)
    total = recipe.epochs * steps_per_epoch
    step = 0
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(inputs), generator=order).split(recipe.batch):
            share = min(1.0, (step + 1) / recipe.warmup_steps) * (
                0.5 + 0.5 * math.cos(math.pi * step / total)
            )
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * share
            logits = forward(weights, inputs[rows, :-1], shape)
            loss = functional.cross_entropy(
                logits.flatten(0, 1), labels[rows, 1:].flatten(), ignore_index=-100
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
    print(f"base model raised: {total} steps, loss {loss.item():.3f}", file=sys.stderr)
    return {name: weight.detach() for name, weight in weights.items()}


def _batches(tokenizer: Tokenizer, pairs: Sequence[data.Pair]) -> tuple[Tensor, Tensor]:
    """Token ids and labels, padded to one length; the prompt is learned too, as a base's text is."""
    import torch

    eos, pad = tokenizer.token_to_id(EOS), tokenizer.token_to_id(PAD)
    rows = []
    for prompt, reply in _texts(pairs):
        head = tokenizer.encode(prompt).ids
        rows.append([*head, *tokenizer.encode(reply, add_special_tokens=False).ids, eos])
    width = max(map(len, rows))
    inputs = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    return inputs, labels


def _fresh_weights(shape: Shape) -> dict[str, Tensor]:
    import torch

    def linear(out: int, inside: int) -> Tensor:
        return (torch.randn(out, inside) * inside**-0.5).requires_grad_()

    def ones() -> Tensor:
        return torch.ones(shape.hidden).requires_grad_()

    weights = {
        "model.embed_tokens.weight": (torch.randn(shape.vocabulary, shape.hidden) * 0.05).requires_grad_()
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = ones()
        weights[prefix + "post_attention_layernorm.weight"] = ones()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{prefix}self_attn.{name}.weight"] = linear(shape.hidden, shape.hidden)
        weights[prefix + "mlp.gate_proj.weight"] = linear(shape.intermediate, shape.hidden)
        weights[prefix + "mlp.up_proj.weight"] = linear(shape.intermediate, shape.hidden)
        weights[prefix + "mlp.down_proj.weight"] = linear(shape.hidden, shape.intermediate)
    weights["model.norm.weight"] = ones()
    return weights


def forward(weights: dict[str, Tensor], tokens: Tensor, shape: Shape) -> Tensor:
    """Logits of a Llama: `tokens` is (rows, length), the result (rows, length, vocabulary)."""
    import torch
    from torch.nn import functional

    rows, length = tokens.shape
    head_width = shape.hidden // shape.heads
    frequencies = shape.rope_theta ** (-torch.arange(0, head_width, 2).float() / head_width)
    angles = torch.outer(torch.arange(length).float(), frequencies).repeat(1, 2)
    cosine, sine = angles.cos(), angles.sin()

    def norm(values: Tensor, name: str) -> Tensor:
        return functional.rms_norm(values, (shape.hidden,), weights[name], shape.epsilon)

    def heads(values: Tensor, name: str) -> Tensor:
        projected: Tensor = values @ weights[name].T
        return projected.view(rows, length, shape.heads, head_width).transpose(1, 2)

    def rotate(values: Tensor) -> Tensor:
        left, right = values.chunk(2, dim=-1)
        return values * cosine + torch.cat((-right, left), dim=-1) * sine

    stream = weights["model.embed_tokens.weight"][tokens]
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        normed = norm(stream, prefix + "input_layernorm.weight")
        mixed = functional.scaled_dot_product_attention(
            rotate(heads(normed, prefix + "self_attn.q_proj.weight")),
            rotate(heads(normed, prefix + "self_attn.k_proj.weight")),
            heads(normed, prefix + "self_attn.v_proj.weight"),
            is_causal=True,
        )
        mixed = mixed.transpose(1, 2).reshape(rows, length, shape.hidden)
        stream = stream + mixed @ weights[prefix + "self_attn.o_proj.weight"].T
        normed = norm(stream, prefix + "post_attention_layernorm.weight")
        gate = functional.silu(normed @ weights[prefix + "mlp.gate_proj.weight"].T)
        wide = gate * (normed @ weights[prefix + "mlp.up_proj.weight"].T)
        stream = stream + wide @ weights[prefix + "mlp.down_proj.weight"].T
    logits: Tensor = norm(stream, "model.norm.weight") @ weights["model.embed_tokens.weight"].T
    return logits


def _save_weights(weights: dict[str, Tensor], base: Path) -> None:
    from safetensors.torch import save_file

    save_file(
        {name: weight.contiguous() for name, weight in weights.items()},
        base / "model.safetensors",
        metadata={"format": "pt"},
    )


def _save_configuration(base: Path, shape: Shape) -> None:
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    configuration = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "max_position_embeddings": shape.positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.epsilon,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        **special,
    }
    (base / "generation_config.json").write_text(json.dumps(special, indent=2))
    (base / "config.json").write_text(json.dumps(configuration, indent=2))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m coordinator.demo.model FOLDER", file=sys.stderr)
        return 2
    make(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
