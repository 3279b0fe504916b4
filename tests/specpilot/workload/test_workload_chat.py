"""Prompt ids equal those of Transformers' own chat template rendering."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from specpilot.core.deployment import parse_deployment
from specpilot.core.errors import WorkloadError
from specpilot.workload.chat import ChatTokenizer
from specpilot.workload.loading import load_requests

ROOT = Path(__file__).parents[3]
SMOLLM2 = ROOT / "models" / "smollm2-135m-instruct"
TEXTS = [
    "How many?",
    "  spaces and\nlines\n",
    "def f(x):\n\treturn {'a': x}\n",
    "Größe 漢字 🙂 <|im_end|> {{ not a template }}",
]
TEMPLATES = {
    "plain": "{{ bos_token }}{% for m in messages %}<{{ m.role }}> {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}",
    "blocks": "{% for m in messages %}\n    {%- if m.role == 'user' %}\n"
    "    {% generation %}{{ m.content | trim }}{% endgeneration %}\n    {% endif %}\n"
    "{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ messages | tojson }}"
    "{% if tools is none and enable_thinking is not defined %}<think>{% endif %}",
    "joined": "{%- set ns = namespace(out='') -%}\n{% for m in messages %}"
    "{% set ns.out = ns.out ~ m.content.strip() %}{% endfor %}\n{{ ns.out }}{{ eos_token }}\n",
}


def make_folder(folder: Path, template: str | list[dict[str, str]] | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    vocabulary |= {"<s>": 256, "</s>": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "__type": "AddedToken"},
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def expected_ids(folder: Path, text: str) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
    )
    return list(found)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_ids_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path, TEMPLATES[name])
    chat = ChatTokenizer(folder)
    for text in TEXTS:
        assert list(chat.encode_turn(text)) == expected_ids(folder, text)


def test_the_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "old")
    (folder / "chat_template.jinja").write_text("new {{ messages[0].content }}", encoding="utf-8")
    chat = ChatTokenizer(folder)
    assert chat.render([{"role": "user", "content": "x"}]) == "new x"
    assert list(chat.encode_turn("x")) == expected_ids(folder, "x")


def test_the_default_of_several_templates_is_used(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    assert ChatTokenizer(make_folder(tmp_path, named)).render([]) == "yes"


@pytest.mark.model
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="the demo's model is not prepared")
def test_ids_of_the_demo_model_equal_those_of_transformers() -> None:
    chat = ChatTokenizer(SMOLLM2)
    for text in TEXTS:
        assert list(chat.encode_turn(text)) == expected_ids(SMOLLM2, text)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template"),
        ("{% for %}", "malformed chat template"),
        ("{{ raise_exception('system role missing') }}", "refuses the messages .*system role"),
        ("{{ messages.append(1) }}", "refuses the messages"),
    ],
)
def test_bad_templates_are_named(tmp_path: Path, template: str | None, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        ChatTokenizer(make_folder(tmp_path, template)).encode_turn("x")


def test_missing_and_truncated_tokenizer_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"tokenizer_config\.json"):
        ChatTokenizer(tmp_path)
    folder = make_folder(tmp_path / "cut", "x")
    content = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(content[: len(content) // 2], encoding="utf-8")
    with pytest.raises(WorkloadError, match=r"tokenizer\.json: cannot be read"):
        ChatTokenizer(folder)


def make_deployment(**workload: object) -> object:
    return parse_deployment(
        {
            "name": "test",
            "target": {"model": "t"},
            "drafter": {"kind": "dflash2", "model": "d"},
            "workload": workload,
        },
        where="test",
    )


def test_builtin_requests_are_split_and_tokenized_the_same_every_time(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, TEMPLATES["plain"])
    deployment = make_deployment(
        benchmarks={"gsm8k": "builtin", "mt_bench": "builtin"},
        development=3,
        sealed=4,
        max_new_tokens=16,
        sealed_max_new_tokens=32,
        seed=7,
    )
    split = load_requests(deployment, folder)  # type: ignore[arg-type]
    assert load_requests(deployment, folder) == split  # type: ignore[arg-type]
    assert [r.benchmark for r in split.sealed] == ["gsm8k"] * 4 + ["mt_bench"] * 4
    assert {r.max_new_tokens for r in split.development} == {16}
    assert {r.max_new_tokens for r in split.sealed} == {32}
    ids = [r.id for r in (*split.development, *split.sealed)]
    assert len(set(ids)) == len(ids) == 14
    assert split.development_hash != split.sealed_hash


def test_the_judge_imports_nothing_heavy() -> None:
    program = (
        "import sys, specpilot.workload.loading, specpilot.controller.main;"
        "sys.exit(bool({'torch', 'transformers', 'scipy.stats'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
