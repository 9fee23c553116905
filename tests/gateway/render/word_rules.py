"""Tokenizers that cut a text into words by the rules of the main families, and texts that are hard to cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BEFORE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_BEFORE[:-1]}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_BEFORE[:-1]}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(*expressions: str) -> Any:
    splits = [Split(Regex(expression), "isolated") for expression in expressions]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


RULES: dict[str, tuple[Any, Callable[[], Any]]] = {
    "gpt2": (None, lambda: ByteLevel(add_prefix_space=False)),
    "llama3": (None, lambda: _split(_BEFORE + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL)),
    "qwen2": (normalizers.NFC(), lambda: _split(_BEFORE + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL)),
    "o200k": (None, lambda: _split(_O200K)),
    "deepseek": (None, lambda: _split(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|" + _TAIL)),
    "digits from the right": (None, lambda: _split(r"\d{1,3}(?=(?:\d{3})*(?!\d))|" + _BEFORE + r"\p{L}+|" + _TAIL)),
    "look behind": (None, lambda: _split(r"(?<=a)b+|\p{L}|\s+|[^\p{L}\s]+")),
    "metaspace": (None, lambda: pre_tokenizers.Metaspace(prepend_scheme="always")),
    "metaspace first": (None, lambda: pre_tokenizers.Metaspace(prepend_scheme="first")),
    "no words": (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), lambda: None),
    "bert": (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer),
}
CUT = ("gpt2", "llama3", "qwen2", "o200k", "deepseek", "metaspace", "bert")
"""Those under which ordinary text is encoded in pieces."""

_CORPUS = ["the answer is what you asked for 12 + 30 = 42, 你好 世界 été naïve don't it's    \n\n  \t aaaa bbbb"] * 8


@cache
def core(rule: str) -> Tokenizer:
    """A small tokenizer with this rule."""
    normalizer, words = RULES[rule]
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    if normalizer is not None:
        made.normalizer = normalizer
    rule_of_words = words()
    if rule_of_words is not None:
        made.pre_tokenizer = rule_of_words
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_CORPUS, trainer)
    made.add_tokens([AddedToken("<stripped>", lstrip=True, rstrip=True), AddedToken("word", single_word=True)])
    return made


def hard_text(rng: random.Random, size: int) -> str:
    """A text of about so many characters: runs of every kind, one after another."""
    kinds: list[Callable[[int], str]] = [
        lambda n: "".join(rng.choices("abcdeABC", k=n)),
        lambda n: "a" * n * rng.choice([1, 1, 1, 40]),
        lambda n: rng.choice([" ", "\n", " \n", "\t", "\u3000"]) * n * rng.choice([1, 1, 20]),
        lambda n: "".join(rng.choices(" \n\r\t", k=n)),
        lambda n: "".join(rng.choices("0123456789", k=n * rng.choice([1, 1, 30]))),
        lambda n: "".join(rng.choices("你好世界，。", k=n)),
        lambda n: "".join(rng.choices(["e", "\u0301", "\u0323", "\u1112", "\u1161", "\u11ab"], k=n)),
        lambda n: "".join(rng.choices(".,;!?<>|_-+=/'\"", k=n)),
        lambda n: "".join(rng.choices(["🙂", "👩\u200d🚀", "\ufe0f"], k=n)),
        lambda n: " ".join(rng.choices(["the", "answer", "it's", "don't", "I'LL", "word", "42,"], k=n)),
        lambda n: rng.choice(["<|im_start|>", "<|im_end|>", " <stripped> ", "<stripped>", "word", "swords", "<|im"]),
    ]
    parts: list[str] = []
    while size > 0:
        part = rng.choice(kinds)(rng.randint(1, 12))
        parts.append(part)
        size -= len(part)
    return "".join(parts)
