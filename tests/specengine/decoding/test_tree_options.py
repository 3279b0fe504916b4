"""Options that choose a tree: strict names, files beside `system.toml`, and their counters."""

from pathlib import Path

import pytest

from specengine.decoding.counters import MECHANISMS
from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions, load_options
from specengine.errors import OptionError
from specengine.trees import TREES, Sequoia
from specengine.trees.parameter_file import parameter_text


def test_every_tree_has_an_option_and_a_counter() -> None:
    for name, kind in TREES.items():
        assert EngineOptions(tree=name).tree == name
        assert kind.mechanism in MECHANISMS
    assert len(set(MECHANISMS)) == len(MECHANISMS)


def test_an_unknown_tree_names_the_nearest(tmp_path: Path) -> None:
    system = tmp_path / "system.toml"
    system.write_text('tree = "calibrate"\n', encoding="utf-8")
    with pytest.raises(OptionError, match="did you mean 'calibrated'") as refused:
        load_options(system)
    assert "option 'tree'" in str(refused.value)


def test_a_file_lies_beside_the_options(
    tmp_path: Path, make_target, random_drafter, run_request
) -> None:
    acceptance = Sequoia(((0.6, 0.3), (0.5, 0.2)))
    (tmp_path / "fitted.json").write_text(parameter_text("sequoia", acceptance), encoding="utf-8")
    system = tmp_path / "system.toml"
    system.write_text('tree = "sequoia"\ntree_file = "fitted.json"\nnodes = 5\n', encoding="utf-8")
    options = load_options(system)
    assert options.tree_file == str(tmp_path / "fitted.json")
    target = make_target("llama", taps=(0,))
    engine = Engine(target, random_drafter(target), options)
    plain = run_request(Engine(target, None), [5, 6, 7], 12, ignore_eos=True)
    assert run_request(engine, [5, 6, 7], 12, ignore_eos=True) == plain
    assert engine.counters.activations["sequoia"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tree": "sequoia"}, "'tree_file': is empty"),
        ({"tree": "chain", "tree_file": "x.json"}, "'tree_file': is set"),
        ({"tree": "ddtree", "tree_temperature": 1.3}, "'tree_temperature': is 1.3"),
        ({"tree": "sampled_chain", "tree_temperature": 1.3}, "'tree': is 'sampled_chain'"),
    ],
)
def test_settings_that_do_not_fit_end_the_start(
    options, message, make_target, random_drafter
) -> None:
    target = make_target("llama", taps=(0,))
    with pytest.raises(OptionError, match=message):
        Engine(target, random_drafter(target), EngineOptions(**options))
