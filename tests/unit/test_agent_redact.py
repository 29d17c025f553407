"""Masking: what is secret, what is not, and that lengths hold."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.redact import Redactor, secrets_of

SHAPES = [
    "hf_" + "a1B2" * 9,
    "sk-proj-" + "x9" * 20,
    "ghp_" + "Z" * 36,
    "github_pat_" + "a_1" * 12,
    "AKIA" + "ABCDEFGH12345678",
    "wandb_v1_" + "abcdefghij" * 4,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.dozjgNryP4J3jVmNHl0w5N",
]


@pytest.mark.parametrize("token", SHAPES)
def test_tokens_of_well_known_shapes_are_masked_wherever_they_come_from(token: str) -> None:
    text = f"using {token}, thanks"
    assert Redactor().mask_text(text) == f"using {'*' * len(token)}, thanks"


def test_the_password_of_a_url_and_a_bearer_token_are_masked_and_the_rest_stays() -> None:
    mask = Redactor().mask_text
    assert mask("postgresql://ann:pa55@db:5432/x") == "postgresql://" + "*" * 8 + "@db:5432/x"
    assert mask("Authorization: Bearer abcdefghij0123456789") == "Authorization: Bearer " + "*" * 20
    assert mask("https://example.org/a:b@c") == "https://example.org/a:b@c"


@pytest.mark.parametrize(
    "text",
    [
        "{'loss': '1.207', 'grad_norm': '0.5', 'learning_rate': '2e-05', 'epoch': '0.1'}",
        "Loading checkpoint shards: 100%|##########| 2/2 [00:01<00:00]",
        "task-force hf_hub_download disk-usage ask-me eyJ",
        "trainable params: 11,272,192 || all params: 1,247,086,592 || trainable%: 0.9039",
    ],
)
def test_ordinary_training_output_is_left_as_it_is(text: str) -> None:
    assert Redactor().mask_text(text) == text


def test_secrets_are_known_by_the_name_of_their_variable() -> None:
    environment = {
        "HF_TOKEN": "secret-value-1",
        "MY_API_KEY": "secret-value-2",
        "DB_PASSWORD": "secret-value-3",
        "TOKENIZERS_PARALLELISM": "false-but-long",
        "MAX_TOKENS": "4096-tokens",
        "WANDB_API_KEY": "true",
        "PATH": "/usr/bin:/bin",
    }
    assert secrets_of(environment) == ("secret-value-1", "secret-value-2", "secret-value-3")
    assert Redactor.of_environment(environment).mask_text("a secret-value-2 b") == "a ************** b"


@given(st.binary(max_size=200), st.lists(st.text(min_size=8, max_size=20), max_size=3))
def test_masking_keeps_every_length(data: bytes, secrets: list[str]) -> None:
    assert len(Redactor(secrets).mask(data)) == len(data)


@given(st.text(alphabet="abc", min_size=8, max_size=12), st.integers(1, 12))
def test_a_tail_that_could_become_a_secret_is_called_unsafe(secret: str, length: int) -> None:
    begun = secret.encode()[: min(length, len(secret) - 1)]
    assert Redactor([secret]).unsafe_tail(b"x " + begun) >= len(begun)


def test_masking_a_report_of_ordinary_log_lines_costs_milliseconds() -> None:
    line = b"{'loss': '1.207', 'grad_norm': '0.5', 'learning_rate': '2e-05', 'epoch': '0.1'} at https://example.org\n"
    report = line * ((1 << 20) // len(line))
    redactor = Redactor(["not-in-there-at-all", "nor-this-one-either"])
    began = time.process_time()
    redactor.mask(report)
    assert time.process_time() - began < 0.25
