"""Prompts reach both models in the form the training data had."""

from __future__ import annotations

import pytest

from agent.compare import CompareSpec, lay_out, main

SPEC = CompareSpec(base_model="b", output_dir="o", adapter=True, prompts=("Why?",))


class WithTemplate:
    chat_template = "…"

    def apply_chat_template(self, messages: list[dict[str, str]], **options: object) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        return f"<user>{messages[0]['content']}<assistant>"


def test_a_template_of_the_users_is_filled_in() -> None:
    spec = SPEC.model_copy(update={"style": "template", "template": "Q: {instruction}\nA:"})
    assert lay_out("Why {x}?", spec, None) == "Q: Why {x}?\nA:"


def test_a_chat_is_laid_out_by_the_tokenizer_and_raw_where_it_has_no_template() -> None:
    spec = SPEC.model_copy(update={"style": "chat"})
    assert lay_out("Why?", spec, WithTemplate()) == "<user>Why?<assistant>"
    assert lay_out("Why?", spec, object()) == "Why?"


def test_raw_text_stays_as_it_is() -> None:
    assert lay_out("Once upon", SPEC, WithTemplate()) == "Once upon"


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["/nowhere/compare.json"]])
def test_a_wrong_call_is_answered_with_its_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err
