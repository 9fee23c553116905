"""A byte-level BPE tokenizer built on the spot, and chat templates in the style of the main families."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "</s>",
]

_CORPUS = [
    "system user assistant tool model tool_call tool_response name arguments calculate expression",
    "The answer is the result of what you asked. Let me calculate that: I think the sum is",
    '{"name": "calculate", "arguments": {"expression": "12+30"}}',
    "Tools: You are a helpful assistant. How many apples are there? What is the weather?\n\n",
] * 4

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CHATML_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "{{ '<tools>' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '\n</tools>\n' }}"
    '{{ \'<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n\' }}'
    "{% elif messages[0].role == 'system' %}"
    "{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'user' or message.role == 'system' and not loop.first %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% elif message.role == 'assistant' %}{{ '<|im_start|>assistant' }}"
    "{% if message.content %}{{ '\n' + message.content }}{% endif %}"
    "{% for call in message.tool_calls %}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ (call.function.arguments | tojson) + '}\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + '</s>' }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)

THINKING = (
    "{% set ns = namespace(last=-1) %}{% for message in messages %}"
    "{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set content = message.content %}"
    "{% if message.role == 'assistant' and loop.index0 < ns.last and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

EMPTY_THINKING_LAST = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' and loop.last and '</think>' not in message.content %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

THINKING_BEGUN = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' and '</think>' in message.content %}"
    "{% set parts = message.content.split('</think>') %}"
    "{{ '<think>\n' + parts[0].strip() + '\n</think>\n\n' + parts[-1].strip() }}"
    "{% else %}{{ message.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)

NO_END_OF_TURN = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


@lru_cache(maxsize=1)
def _trained() -> str:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_CORPUS, trainer)
    return core.to_str()


def small_tokenizer(
    template: str | None = CHATML,
    eos: str = "<|im_end|>",
    *,
    special: Sequence[str] = (),
    added: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """A fresh tokenizer of about 400 tokens with the given chat template, and further tokens: special ones, which make
    no text, and others that are merely tokens of their own."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained()), eos_token=eos, bos_token="<bos>", pad_token=eos
    )
    tokenizer.add_tokens([AddedToken(text, special=True) for text in special], special_tokens=True)
    tokenizer.add_tokens([AddedToken(text, special=False) for text in added])
    tokenizer.chat_template = template
    return tokenizer


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer in the style of SentencePiece: it drops the space that a text begins with, spells unknown characters
    in bytes, and has special tokens in the middle of its vocabulary."""
    letters = [*"\u2581abcdefghijklmnopqrstuvwxyzSO.<>|_/\n"]
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    model = models.BPE(
        vocab={token: id_ for id_, token in enumerate(vocabulary)}, merges=[], byte_fallback=True, unk_token="<unk>"
    )
    core = Tokenizer(model)
    core.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>", *SPECIAL[:2])])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", bos_token="<s>", unk_token="<unk>")
    tokenizer.chat_template = CHATML
    return tokenizer
