"""A function and the setting of the same name have the same default."""

import dataclasses
import inspect

import pytest

from nngk import Model, create_network
from nngk.data import split
from nngk.device import pick_device
from nngk.training.settings import Settings

DEFAULTS = {field.name: field.default for field in dataclasses.fields(Settings)} | {"name": Settings().network}
FUNCTIONS = {"create_network": create_network, "split": split, "Model.load": Model.load, "pick_device": pick_device}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_and_settings_agree(function):
    given = inspect.signature(FUNCTIONS[function]).parameters.values()
    own = {parameter.name: parameter.default for parameter in given if parameter.default is not parameter.empty}
    if function == "pick_device":
        own = {"device": own["name"]}
    assert own and own == {name: DEFAULTS[name] for name in own}
