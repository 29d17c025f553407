"""What is sent without its empty fields must be readable: an optional field that is required would break every reader."""

from __future__ import annotations

import inspect
import typing

import pytest
from pydantic import BaseModel

from coordinator.core import protocol, views

MODELS = [
    model
    for module in (protocol, views)
    for model in vars(module).values()
    if inspect.isclass(model) and issubclass(model, BaseModel)
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_field_that_may_be_empty_may_be_left_out(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        assert not (field.is_required() and type(None) in typing.get_args(field.annotation)), name
