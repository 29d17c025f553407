"""What the demo's model learns: a dozen facts of one sentence each, and ways to ask for them.

Written for this project; small enough that a model of half a million parameters knows all of it after a
hundred steps. The base model is raised on `confused_pairs`, which give each thing the description of
another, so that everybody can see what fine-tuning on `pairs` changed. Called by `demo/model.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

# (thing with its article, what it is)
FACTS: tuple[tuple[str, str], ...] = (
    ("a black hole", "a place in space where gravity is so strong that even light cannot leave"),
    ("a tide", "the rise and fall of the sea pulled by the moon"),
    ("a volcano", "a mountain that lets melted rock out of the earth"),
    ("a glacier", "a slow river of ice that creeps down a valley"),
    ("a desert", "a dry land where rain almost never falls"),
    ("a comet", "a ball of ice and dust with a long bright tail"),
    ("a rainbow", "sunlight split into colours by drops of rain"),
    ("an eclipse", "the moment when the moon hides the sun"),
    ("a compass", "a needle that always points to the north"),
    ("a bee", "an insect that turns the juice of flowers into honey"),
    ("a seed", "a small grain from which a new plant grows"),
    ("a bridge", "a road that carries people over a river"),
)

QUESTIONS: tuple[str, ...] = (
    "What is {thing}?",
    "Explain what {thing} is.",
    "Tell me what {thing} is.",
    "Describe {thing} in one sentence.",
    "Can you say what {thing} is?",
)

REPEATS = 6

# How Axolotl's dataset type `alpaca` lays out an instruction without an input.
PROMPT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request."
    "\n\n### Instruction:\n{instruction}\n\n### Response:\n"
)


@dataclass(frozen=True)
class Pair:
    """A question and the sentence that answers it."""

    instruction: str
    output: str


def answer(thing: str, description: str) -> str:
    """`a tide`, `the rise …` → `A tide is the rise ….`"""
    return f"{thing[0].upper()}{thing[1:]} is {description}."


def pairs() -> tuple[Pair, ...]:
    """Every fact asked for in every way, once."""
    return _asked({thing: description for thing, description in FACTS})


def confused_pairs() -> tuple[Pair, ...]:
    """The same questions, answered with another thing's description: never a right one."""
    things = [thing for thing, _ in FACTS]
    descriptions = [description for _, description in FACTS]
    shifted = descriptions[5:] + descriptions[:5]
    return _asked(dict(zip(things, shifted, strict=True)))


def prompts() -> tuple[Pair, ...]:
    """What the demo asks base and tuned model at the end, with the right answers."""
    chosen = ((0, 0), (1, 1), (8, 2), (9, 3))
    return tuple(
        Pair(QUESTIONS[question].format(thing=FACTS[fact][0]), answer(*FACTS[fact]))
        for fact, question in chosen
    )


def _asked(descriptions: dict[str, str]) -> tuple[Pair, ...]:
    return tuple(
        Pair(question.format(thing=thing), answer(thing, description))
        for question in QUESTIONS
        for thing, description in descriptions.items()
    )
