"""A tiny teacher with a word tokenizer and a chat template, in float32 on the CPU."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specengine.train.shards import TokenShard, pack
from specengine.train.teacher import Teacher, load_teacher

VOCAB = 61
TEMPLATE = (
    "{% for message in messages %}w3 {{ message['content'] }} w2 {% endfor %}"
    "{% if add_generation_prompt %}w4{% endif %}"
)


def make_folder(path):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", eos_token="w2", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def teacher_folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("teacher"))


@pytest.fixture
def teacher(teacher_folder) -> Teacher:
    return load_teacher(teacher_folder, "cpu", torch.float32)


@pytest.fixture
def shard() -> TokenShard:
    """Sequences with a rule to learn: each answer counts upwards, modulo the vocabulary."""
    generator = torch.Generator().manual_seed(3)
    pairs = []
    for length in (9, 14, 20, 26, 30, 12, 17, 23):
        prompt = torch.randint(5, VOCAB, (4,), generator=generator).tolist()
        start = int(torch.randint(5, VOCAB, (1,), generator=generator))
        pairs.append((prompt, [(start + i) % (VOCAB - 5) + 5 for i in range(length)]))
    return pack(pairs)
