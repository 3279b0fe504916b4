"""The deployment file is strict: every fault is one line with key, value and what is allowed."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.cli.main import run
from specpilot.core.deployment import Deployment, load_deployment, parse_deployment
from specpilot.core.errors import DeploymentError

GOOD = {
    "": 'name = "simulated"',
    "target": 'model = "m"',
    "drafter": 'kind = "dflash2"\nmodel = "d"',
    "engine": 'kind = "simulated"',
}
LEAF = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just("cpu")
)
ANY = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def text_of(changes: dict[str, str]) -> str:
    """The good file with tables added or replaced."""
    tables = {**GOOD, **changes}
    return "\n".join(f"[{name}]\n{body}" if name else body for name, body in tables.items())


def refusal(folder: Path, changes: dict[str, str]) -> str:
    """The one line that a file ends with."""
    path = folder / "d.toml"
    path.write_text(text_of(changes), encoding="utf-8")
    with pytest.raises(DeploymentError) as caught:
        load_deployment(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < 400 + len(str(path))
    return message


WHOLE = "a whole number from 1 to"
TYPES: list[tuple[str, str, str, str]] = [
    ("workload", "development", '"12"', WHOLE),
    ("workload", "development", "true", WHOLE),
    ("workload", "development", "12.0", WHOLE),
    ("workload", "development", "0", WHOLE),
    ("workload", "development", "[12]", WHOLE),
    ("workload", "development", "nan", "finite"),
    ("workload", "development", "1" + 50 * "0", WHOLE),
    ("workload", "development", "1979-05-27", "date"),
    ("workload", "max_new_tokens", "1", "a whole number from 2 to"),
    ("workload", "sealed_max_new_tokens", "1", "a whole number from 2 to"),
    ("workload", "seed", "-1", "a whole number from 0"),
    ("engine", "threads", '"2"', WHOLE),
    ("regime", "concurrency", "1", "a list"),
    ("regime", "concurrency", "[]", "at least one"),
    ("regime", "concurrency", "[1, 1]", "each once"),
    ("regime", "concurrency", '["1"]', WHOLE),
    ("regime", "concurrency", "[true]", WHOLE),
    ("platform", "isolation", '"weak"', "'namespaces'"),
    ("platform", "devices", '"cpu"', "a list"),
    ("agent", "deadline_seconds", "inf", "finite"),
    ("agent", "deadline_seconds", "0", "a number above 0"),
    ("agent", "deadline_seconds", "true", "a number above 0"),
    ("agent", "command", '[""]', "not empty"),
    ("workload", "passes", "3", WHOLE),
    ("budget", "max_usd", "-1", "a number from 0"),
    ("budget", "max_usd", "1e+30", "a number from 0"),
    ("budget", "max_rounds", "1.5", WHOLE),
    ("target", "model", '""', "not empty"),
    ("target", "dtype", '"float16"', "'bfloat16' or 'float32'"),
    ("engine", "options", "{ nodes = [1] }", "'nodes' must be text, a number"),
    ("engine", "options", "{ nodes = nan }", "finite"),
    *(
        ("workload", "benchmarks", value, text)
        for value, text in (
            ("[]", "at least one"),
            ("{}", "at least one"),
            ('["gsm8k", "gsm8k"]', "each once"),
            ('"gsm8k"', "a list of names"),
            ("[1]", "a list of names"),
            ("{ gsm8k = 1 }", "a table of name = file"),
            ('{ gsm8k = "" }', "a table of name = file"),
        )
    ),
    *(
        ("platform", "devices", f'["{device}"]', "'cuda:N'")
        for device in ("0", "cuda:00", "cuda:²", "cuda:٣", "cuda:", "cuda:-1", "CPU", "cuda:0 ")
    ),
    *(
        (table, key, value, "null character")
        for table, key, value in (
            ("target", "model", '"a\\u0000"'),
            ("engine", "options", '{ tree_file = "a\\u0000" }'),
            ("agent", "command", '["a\\u0000"]'),
            ("workload", "benchmarks", '{ "a\\u0000" = "a" }'),
        )
    ),
    ("platform", "devices", '["cuda:0", "cuda:0"]', "each once"),
    ("platform", "devices", '["cpu", "cuda:0"]', "GPUs alone"),
]


@pytest.mark.parametrize(("table", "key", "value", "allowed"), TYPES)
def test_a_wrong_value_names_key_value_and_what_is_allowed(
    tmp_path: Path, table: str, key: str, value: str, allowed: str
) -> None:
    lines = [line for line in GOOD.get(table, "").split("\n") if not line.startswith(f"{key} =")]
    message = refusal(tmp_path, {table: "\n".join([*lines, f"{key} = {value}"])})
    assert f"'{table}.{key}" in message
    assert allowed in message
    shown = [word.strip("[]{}\"'") for word in value.split()]
    assert any(word[:20] in message or json.dumps(word)[1:-1] in message for word in shown)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"target": 'modle = "m"'}, ("'target.modle'", "did you mean 'model'")),
        ({"targt": 'model = "m"', "target": ""}, ("'targt'", "did you mean 'target'")),
        ({"budget": "max_round = 1"}, ("'budget.max_round'", "'max_rounds'")),
        ({"drafter": 'kind = "dflash2"'}, ("'drafter.model' is missing",)),
        ({"": 'name = "../up"'}, ("'name'", '"../up"', "letters")),
        ({"agent": 'preset = "claude"'}, ("'agent'", "'playbook' takes neither")),
        ({"agent": 'script = "edits.toml"'}, ("'agent'", "takes no 'script'")),
        ({"agent": 'kind = "command"'}, ("'agent'", "exactly one of")),
        ({"workload": f"benchmarks = {40 * '['}{40 * ']'}"}, ("nested",)),
        ({"workload": f"benchmarks = {9000 * '['}{9000 * ']'}"}, ("nested",)),
        ({"engine": ".".join(300 * "a") + " = 1"}, ("nested",)),
        ({"engine": f"threads = {9 * 1000 * '9'}"}, ("not valid TOML", "digits")),
        ({"engine": '"a\\nb" = 1'}, ("unknown key", "threads")),
        ({"engine": "threads"}, ("not valid TOML", "line")),
    ],
)
def test_a_wrong_shape_is_named(
    tmp_path: Path, changes: dict[str, str], parts: tuple[str, ...]
) -> None:
    message = refusal(tmp_path, changes)
    assert all(part in message for part in parts), message


def test_two_devices_are_swapped_in_two_passes(tmp_path: Path) -> None:
    two = {"platform": 'devices = ["cuda:0", "cuda:1"]', "workload": "passes = 1"}
    assert "passes must be 2 where two devices are swapped" in refusal(tmp_path, two)
    path = tmp_path / "one.toml"
    path.write_text(text_of({"workload": "passes = 1"}), encoding="utf-8")
    assert load_deployment(path).workload.passes == 1


@pytest.mark.parametrize("few", ["development", "sealed"])
def test_a_load_that_is_never_reached_is_refused(tmp_path: Path, few: str) -> None:
    workload = f'benchmarks = ["gsm8k", "mbpp"]\n{few} = 4'
    changes = {"workload": workload, "regime": "concurrency = [1, 9]"}
    assert "concurrency 9 is never reached: only 8 requests" in refusal(tmp_path, changes)
    path = tmp_path / "enough.toml"
    path.write_text(text_of({**changes, "regime": "concurrency = [8]"}), encoding="utf-8")
    assert load_deployment(path).regime.concurrency == (8,)


def test_what_is_allowed_loads_and_survives_its_own_spelling(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text(
        text_of(
            {
                "platform": 'devices = ["cuda:0", "cuda:10"]',
                "regime": "concurrency = [1, 16]",
                "workload": 'benchmarks = { gsm8k = "a.jsonl", own = "b.jsonl" }',
                "engine": 'options = { tree = "chain", nodes = 8, on = true, share = 0.5 }',
                "agent": "deadline_seconds = 5",
            }
        ),
        encoding="utf-8",
    )
    found = load_deployment(path)
    assert found.platform.devices == ("cuda:0", "cuda:10")
    assert found.engine.options == {"tree": "chain", "nodes": 8, "on": True, "share": 0.5}
    assert found.agent.deadline_seconds == 5.0
    marked = tmp_path / "marked.toml"
    marked.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_deployment(marked) == found, "a byte order mark, which some editors write"
    again = parse_deployment(found.model_dump(mode="json", exclude_none=True), where="again")
    assert again == found == Deployment.model_validate(found.to_json())


@given(st.dictionaries(st.sampled_from([*Deployment.model_fields, "x"]), ANY))
def test_no_table_ends_in_anything_but_one_line(table: dict[str, object]) -> None:
    whole = {
        "name": "n",
        "target": {"model": "m"},
        "drafter": {"kind": "dflash2", "model": "d"},
        **table,
    }
    try:
        parse_deployment(whole, where="test")
    except DeploymentError as error:
        assert "\n" not in str(error)
        assert "pydantic" not in str(error)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_numbers_of_the_command_line_are_finite(
    number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deployment.toml"
    path.write_text(text_of({}), encoding="utf-8")
    for arguments in (
        ["plan", str(path), "--rate", number],
        ["plan", str(path), "--usd-per-gpu-hour", number],
        ["ctl", "close", "--bound", number],
    ):
        assert run(arguments) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert arguments[-2] in captured.err
