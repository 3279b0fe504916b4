"""The docs are true: every path that the map names exists, every example is accepted as it is."""

import json
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from specengine.trees.registry import TREES
from specpilot.cli.earlier_runs import Speed
from specpilot.cli.init import command as init
from specpilot.cli.plan import check_inputs, estimate
from specpilot.core.deployment import Drafter, load_deployment, parse_deployment
from specpilot.workload.benchmarks import prompts_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
MAP = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def modules_of(folder: str) -> list[str]:
    """Modules that the map lists by name for a folder."""
    rows = re.findall(r"^\| `([a-z]+/[a-z]+/)` \| (`.*) \|$", MAP, re.MULTILINE)
    return [
        name for place, names in rows if place == folder for name in re.findall("`(.*?)`", names)
    ]


def test_every_path_of_the_map_exists() -> None:
    named = re.findall(r"`((?:specengine|specpilot)/[a-z0-9_/.]+)`", MAP)
    assert len(named) > 25
    for name in named:
        path = SOURCE / name
        assert path.exists() or path.with_suffix(".py").is_file(), name


@pytest.mark.parametrize("folder", ["specengine/drafters/", "specengine/trees/",
                                    "specengine/decoding/"])  # fmt: skip
def test_every_module_of_the_map_exists(folder: str) -> None:
    names = modules_of(folder)
    assert names
    for name in names:
        assert (SOURCE / folder / f"{name}.py").is_file(), name


def test_the_map_names_every_package() -> None:
    files = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py")}
    packages = {path.as_posix() for path in files if len(path.parts) > 1}
    assert len(packages) > 15
    missing = [name for name in sorted(packages) if f"`{name}/`" not in MAP]
    assert missing == []


def test_the_map_names_every_drafter_and_tree() -> None:
    kinds = set(get_args(Drafter.model_fields["kind"].annotation)) - {"auto"}
    assert kinds <= set(modules_of("specengine/drafters/"))
    assert set(TREES) <= set(modules_of("specengine/trees/"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_toml_block_is_a_deployment(page: Path) -> None:
    for text in blocks(page.read_text(encoding="utf-8"), "toml"):
        found = parse_deployment(tomllib.loads(text), where=page.name)
        assert estimate(found, Speed(50.0, "given"))["hours"] > 0


def test_deployment_examples_are_there() -> None:
    assert len(blocks(DEPLOYMENT, "toml")) == 2


def test_the_prompt_file_of_the_docs_is_read() -> None:
    rows = [json.loads(line) for text in blocks(DEPLOYMENT, "json") for line in text.splitlines()]
    prompts = prompts_of("mine", rows, "docs")
    assert [prompt.text for prompt in prompts] == [row["prompt"] for row in rows]
    assert len(rows) == 2


@pytest.mark.model
def test_the_example_can_be_planned_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (ROOT / "models" / "smollm2-135m-instruct" / "config.json").is_file():
        pytest.skip("the demo's target is not prepared: make model")
    for name in ("models", "assets"):
        (tmp_path / name).symlink_to(ROOT / name)
    rows = [json.dumps({"prompt": f"Count to {number}."}) for number in range(16)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "deployment.toml").write_text(blocks(DEPLOYMENT, "toml")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ready = check_inputs(load_deployment(tmp_path / "deployment.toml"))
    assert "8 development and 8 sealed requests" in ready[-1]


def test_every_key_of_the_file_is_in_the_table() -> None:
    schema = parse_deployment(tomllib.loads(blocks(DEPLOYMENT, "toml")[0]), where="docs")
    keys = {key for part in schema.model_dump().values() if isinstance(part, dict) for key in part}
    table = DEPLOYMENT.partition("## Every key")[2]
    for key in sorted(keys - {"mine"}):
        assert f"`{key}`" in table, key


@pytest.mark.parametrize("column", ["cpu", "cuda"])
def test_the_table_of_init_is_what_init_writes(
    column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = ["cpu"] if column == "cpu" else ["cuda:0", "cuda:1"]
    monkeypatch.setattr("specpilot.cli.init.find_devices", lambda: devices)
    init("org/T", "org/D", out=tmp_path / "d.toml", name=None, agent="playbook", as_json=True)
    made = load_deployment(tmp_path / "d.toml")
    work, budget = made.workload, made.budget
    hours = "no limit" if budget.max_gpu_hours is None else f"{budget.max_gpu_hours:g}"
    threads = made.engine.threads
    expected = {
        "`engine.threads`": "all cores" if threads is None else "one less than the cores",
        "`drafter.kind`": f"`{made.drafter.kind}`",
        "`workload.development`, `sealed`": f"{work.development}, {work.sealed}",
        "`workload.max_new_tokens`, `sealed_max_new_tokens`": (
            f"{work.max_new_tokens}, {work.sealed_max_new_tokens}"
        ),
        "`budget.max_rounds`, `max_gpu_hours`": f"{budget.max_rounds}, {hours}",
    }
    table = DEPLOYMENT.partition("## What `specpilot init` writes")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines()]
    found = {row[0]: row[1 if column == "cpu" else 2] for row in rows if len(row) == 3}
    for key, value in expected.items():
        assert found[key] == value, key


def test_every_route_of_the_server_is_in_the_docs() -> None:
    source = (SOURCE / "specengine" / "server" / "app.py").read_text(encoding="utf-8")
    routes = re.findall(r'\("(?:GET|POST)", "([^"{]+)"', source)
    assert len(routes) > 8
    page = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
    table = page.partition("## Requests")[2].partition("\n## ")[0]
    missing = [route for route in routes if f"{route.rstrip('/')}`" not in table]
    assert missing == []


def test_no_pin_contradicts_a_cuda_build_of_torch() -> None:
    # Such a build requires NVIDIA's libraries in the versions that it was built with.
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line.startswith("nvidia-")]
    assert [line for line in pinned if not line.startswith("nvidia-ml-py==")] == []


def test_the_run_in_the_readme_is_the_recorded_one() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    recorded = ROOT / "benchmarks" / "results" / "demo.json"
    report = json.loads(recorded.read_text(encoding="utf-8"))["report"]
    gain = report["gain_over_stock"]
    interval = f"[{gain['low']:.3f}, {gain['high']:.3f}]"
    rates = [report["systems"][name]["tokens_per_second"]["overall"] for name in
             ("ar", "stock", "best")]  # fmt: skip
    expected = [
        f"in {report['seconds']:.0f} s",
        f"{gain['point']:.3f}x {interval}",
        f"A/A noise ±{report['noise']:.1%}",
        f"token forcing accepts {report['forcing']['tokens']} tokens",
        *(f"{rate:.1f}" for rate in rates),
    ]
    missing = [text for text in expected if text not in readme]
    assert missing == [], f"README.md shows another run than {recorded.name}"
