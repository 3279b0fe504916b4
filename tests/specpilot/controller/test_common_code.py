"""Code that every program has may stand in an answer and in a commit; what is special may not."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.controller import contamination
from specpilot.controller.contamination import Exchange, check_content, fingerprints
from specpilot.controller.plain_text import plain, standard_library
from specpilot.controller.trees import ForbiddenPath

SPECIAL = "seven owls count 41 acorns under the bridge of Vrana before dawn"
SHORT = "count acorns below bridge 41"
PROGRAM = f'''
import argparse

parser = argparse.ArgumentParser(description="{SPECIAL}")
args = parser.parse_args()


class Held:
    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_val, exc_tb):
        self.close()
'''
COMMON = {
    "arguments": 'parser = argparse.ArgumentParser(description="Time one kernel")',
    "wrapped": "parser = argparse.ArgumentParser(\n    description=__doc__,\n)",
    "methods": "def __enter__(self):\n return self\ndef __exit__(self, exc_type, exc_val, exc_tb):",
}
KNOWN = fingerprints(
    [[Exchange(text, ())] for text in (*(PROGRAM[start:] for start in range(17)), SHORT)],
    [],
)
"""From every start, so that each window of the program is among them."""


@pytest.mark.parametrize("form", COMMON)
def test_what_the_standard_library_says_too_is_no_copy(form: str) -> None:
    check_content("specengine/x.py", COMMON[form].encode(), KNOWN)


def test_a_common_start_hides_no_copy() -> None:
    assert len(KNOWN.texts) > 60
    for text in (f"{COMMON['arguments']}\n# {SPECIAL}", PROGRAM, f"# {SHORT}"):
        with pytest.raises(ForbiddenPath, match="repeats the text"):
            check_content("specengine/x.py", text.encode(), KNOWN)


def test_the_library_is_read_for_a_hit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def library() -> str:
        nonlocal read
        read += 1
        return ""

    monkeypatch.setattr(contamination, "standard_library", library)
    assert KNOWN.found_in(b"def add(left, right):\n    return left + right\n" * 9) is None
    assert read == 0
    assert KNOWN.found_in(COMMON["arguments"].encode()) is not None
    assert read == 1


def test_the_library_holds_its_modules_and_no_installed_package() -> None:
    assert plain("class ArgumentParser(_AttributeHolder, _ActionsContainer):") in standard_library()
    assert "pytestfixture" not in standard_library()


@given(st.text(st.characters(max_codepoint=127)))
def test_plain_ascii_takes_a_short_cut_to_the_same(text: str) -> None:
    long_way = plain(f"{text}ß").removesuffix("ss")
    assert plain(text) == long_way == unicodedata.normalize("NFKC", long_way)
