"""What a commit may change: an allow-list, tried with the whole kind of what is not on it."""

from pathlib import Path

import pytest

from specpilot.controller.trees import (
    LARGEST_CHANGE,
    LARGEST_FILE,
    MOST_FILES,
    SUFFIXES,
    Entry,
    ForbiddenPath,
    check_changes,
)

BASE = {
    path: Entry("100644", "0" * 40, 100, path)
    for path in ("system.toml", "specengine/__init__.py", "specengine/kernels/head.cu")
}


def changed(path: str, *, mode: str = "100644", size: int = 10) -> dict[str, Entry]:
    return BASE | {path: Entry(mode, "1" * 40, size, path)}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_source_and_text_may_be_added(suffix: str) -> None:
    after = changed(f"specengine/deep/er/new_part.{suffix}")

    assert [entry.size for entry in check_changes(BASE, after)] == [10]


def test_every_file_of_the_engine_is_of_an_allowed_kind() -> None:
    root = Path(__file__).parents[3] / "src"
    files = [f for f in (root / "specengine").rglob("*") if f.is_file() and f.suffix != ".pyc"]

    for file in files:
        path = file.relative_to(root).as_posix()
        check_changes(BASE, changed(path, size=file.stat().st_size))


@pytest.mark.parametrize(
    "path",
    [
        "specengine/hook.pth",
        "specengine/hook.PTH",
        "specengine/fast.so",
        "specengine/fast.SO",
        "specengine/fast.so.1",
        "specengine/fast.cpython-311-x86_64-linux-gnu.so",
        "specengine/fast.pyd",
        "specengine/fast.pyc",
        "specengine/fast.Py",
        "specengine/fast.py ",
        "specengine/fast.py.",
        "specengine/fast",
        "specengine/.py",
        "specengine/table.npz",
        "specengine/table.pickle",
        "specengine/table.safetensors",
        "specengine/run.sh",
        "specengine/.gitattributes",
        "specengine/.gitmodules",
        "specengine/.git/config",
        "specengine/.GIT/config.txt",
        "specengine/__pycache__/x.py",
        "specengine/__PYCACHE__/x.py",
        "specengine/sitecustomize.py",
        "specengine/UserCustomize.py",
        "specengine/f\u0430st.py",
        "specengine/f\uff41st.py",
        "specengine/fast\u200b.py",
        "specengine/fast.\u0440y",
        "specengine/a b/x.py",
        "specengine/-option.py",
        "specengine/a-1.dist-info/x.txt",
        "specengine/" + "d/" * 9 + "x.py",
        "specengine//x.py",
        "specengine/../x.py",
        "specengine",
        "specengine2/x.py",
        "SPECENGINE/x.py",
        "system.TOML",
        ".gitattributes",
        ".gitmodules",
        "conftest.py",
        "specpilot/controller/promotion.py",
    ],
)
def test_everything_else_is_refused_in_one_line(path: str) -> None:
    with pytest.raises(ForbiddenPath) as caught:
        check_changes(BASE, changed(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["120000", "160000", "100664", "040000"])
def test_only_plain_files_are_allowed(mode: str) -> None:
    with pytest.raises(ForbiddenPath, match="is a link or a submodule"):
        check_changes(BASE, changed("specengine/x.py", mode=mode))


@pytest.mark.parametrize("path", ["specengine/KERNELS/x.py", "specengine/kernels/Head.cu"])
def test_names_that_differ_by_capitals_alone_are_refused(path: str) -> None:
    with pytest.raises(ForbiddenPath, match="by capital letters alone"):
        check_changes(BASE, changed(path))


def test_sizes_and_counts_are_limited() -> None:
    check_changes(BASE, changed("specengine/x.py", size=LARGEST_FILE))
    with pytest.raises(ForbiddenPath, match="holds 524289 bytes"):
        check_changes(BASE, changed("specengine/x.py", size=LARGEST_FILE + 1))

    def several(count: int, size: int) -> dict[str, Entry]:
        names = [f"specengine/x{number}.py" for number in range(count)]
        return BASE | {name: Entry("100644", "1" * 40, size, name) for name in names}

    with pytest.raises(ForbiddenPath, match=f"{LARGEST_CHANGE} may change"):
        check_changes(BASE, several(5, LARGEST_FILE))
    with pytest.raises(ForbiddenPath, match=f"are more than {MOST_FILES}"):
        check_changes(BASE, several(MOST_FILES, 1))


def test_a_file_may_be_deleted() -> None:
    after = {path: entry for path, entry in BASE.items() if not path.endswith("head.cu")}

    assert check_changes(BASE, after) == ()
