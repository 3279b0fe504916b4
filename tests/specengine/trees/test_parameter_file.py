"""Parameter files: what is written comes back, and every wrong file is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import CaDDTree, Calibrated, Sequoia, StepCost, make_builder
from specengine.trees.parameter_file import Parametrised, parameter_text

MakeLattice = Callable[..., Lattice]
CURVES = np.round(np.random.default_rng(0).uniform(-4, 0, (3, 2, 40)), 4)
CURVES[2, 1] = CURVES[0, 0]
FITTED: dict[str, Parametrised] = {
    "calibrated": Calibrated(CURVES),
    "sequoia": Sequoia(((0.5, 0.25), (0.375, 1e-5))),
    "caddtree": CaDDTree(StepCost(0.02, ((1.0, 1.25e-5), (8.0, 0.001)))),
}


def saved(folder: Path, text: str) -> str:
    path = folder / "tree.json"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("tree", FITTED)
def test_what_is_written_builds_the_same_trees(
    tree: str, tmp_path: Path, make_lattice: MakeLattice
) -> None:
    text = parameter_text(tree, FITTED[tree])
    read = make_builder(tree, file=saved(tmp_path, text))
    assert parameter_text(tree, read) == text
    for seed in range(5):
        lattice = make_lattice(seed, 4, 4)
        expected, found = FITTED[tree](lattice, 1, 9), read(lattice, 1, 9)
        np.testing.assert_array_equal(found.tokens, expected.tokens)


def test_a_curve_that_several_depths_share_is_written_once() -> None:
    assert len(json.loads(parameter_text("calibrated", FITTED["calibrated"]))["curves"]) == 5


@pytest.mark.parametrize(
    ("tree", "text", "message"),
    [
        ("sequoia", "{", "are not JSON"),
        ("sequoia", "[1]", "are of tree None, the option is 'sequoia'"),
        ("sequoia", '{"tree": "calibrated"}', "are of tree 'calibrated'"),
        ("sequoia", '{"tree": "sequoia"}', "no field 'acceptance'"),
        ("sequoia", '{"tree": "sequoia", "acceptance": [[0.5]], "x": 1}', "unknown field 'x'"),
        ("sequoia", '{"tree": "sequoia", "acceptance": [[0.5], []]}', "ragged"),
        ("sequoia", '{"tree": "sequoia", "acceptance": [[NaN]]}', "holds nan"),
        ("sequoia", '{"tree": "sequoia", "acceptance": [["a"]]}', "could not convert"),
        ("sequoia", '{"tree": "sequoia", "acceptance": 3}', "not iterable"),
        ("caddtree", '{"tree": "caddtree", "seconds": -1, "slopes": []}', "is -1.0 seconds"),
        ("caddtree", '{"tree": "caddtree", "seconds": 1, "slopes": [[1]]}', "unpack"),
        ("caddtree", '{"tree": "caddtree", "seconds": 1, "slopes": [[1, -2]]}', "-2.0"),
        ("calibrated", '{"tree": "calibrated", "curves": [[0.5]], "places": [[0]]}', "positive"),
        (
            "calibrated",
            '{"tree": "calibrated", "curves": [[-1]], "places": [[1]]}',
            "out of bounds",
        ),
        ("calibrated", '{"tree": "calibrated", "curves": [[-1]], "places": [[-1]]}', "from 0 on"),
        ("calibrated", '{"tree": "calibrated", "curves": [[-1], []], "places": [[0]]}', "shape"),
    ],
)
def test_a_wrong_file_is_refused(tree: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        make_builder(tree, file=saved(tmp_path, text))
    assert "tree.json" in str(refused.value)
    assert "replay --fit" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_settings_that_a_tree_lacks_are_refused(tmp_path: Path) -> None:
    file = saved(tmp_path, parameter_text("sequoia", FITTED["sequoia"]))
    with pytest.raises(OptionError, match=r"'tree_file': is empty, and tree 'sequoia'"):
        make_builder("sequoia")
    with pytest.raises(OptionError, match=r"'tree_file': is set, and tree 'eagle2'"):
        make_builder("eagle2", file=file)
    with pytest.raises(OptionError, match=r"'tree_temperature': is 1.5, and tree 'sequoia'"):
        make_builder("sequoia", file=file, temperature=1.5)
    with pytest.raises(OptionError, match="cannot be read"):
        make_builder("sequoia", file=str(tmp_path / "none.json"))
    for temperature in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="temperature"):
            make_builder("best_first", temperature=temperature)
