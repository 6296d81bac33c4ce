"""Small tokenizers of the families that judges use, trained on a few lines in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "Write critiques for a submitted response on a given user's query, and grade the response:",
    "[BEGIN DATA]\n***\n[Query]: How do I boil an egg?\n***\n[Response]: Ten minutes.\n[END DATA]",
    "After that, you should give a final rating for the response on a scale of 1 to 10.",
    "Rating: [[5]] Rating: [[10]] The response is good. So, the final decision is Response 1",
    "So, the final decision is Response 2. So, the final decision is Tie. user assistant system",
] * 8

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] "
    "+ '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)
LLAMA2_CHAT = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}"
    "{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
PHI3_CHAT = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] "
    "+ '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
GEMMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' "
    "+ message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)


def special(text: str, **kinds: bool) -> AddedToken:
    return AddedToken(text, special=True, normalized=False, **kinds)


def plain(text: str) -> AddedToken:
    """An added token that is kept whole but not flagged special."""
    return AddedToken(text, special=False, normalized=False)


def _byte_level(split: str, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _sentencepiece(metaspace: bool) -> Tokenizer:
    """BPE over text whose spaces are ▁, with bytes for what the vocabulary lacks.

    metaspace: the mark is put before the first piece of the text only (newer conversions);
    otherwise before each piece of text between control tokens (Llama 2).
    """
    bytes_ = [f"<0x{n:02X}>" for n in range(256)]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Digits(True)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=[chr(n) for n in range(33, 127)], show_progress=False
    )
    trained.train_from_iterator((line.replace("\n", " ") for line in CORPUS), trainer)
    learned = trained.get_vocab(with_added_tokens=False)
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    order = ["<unk>", "<s>", "</s>", *bytes_, *sorted(learned, key=lambda t: learned[t])]
    vocab = {token: n for n, token in enumerate(dict.fromkeys(order))}
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    return tokenizer


def llama2(metaspace: bool = False, extra: tuple[AddedToken, ...] = ()) -> Any:
    """SentencePiece style with byte fallback; single digits; adds `<s>`."""
    tokenizer = _sentencepiece(metaspace)
    tokenizer.add_tokens(list(extra))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=LLAMA2_CHAT,
    )


def qwen() -> Any:
    """Byte-level, one token a digit, ChatML; `<tool_call>` is added but not special."""
    tokenizer = _byte_level(QWEN_SPLIT, 500)
    tokenizer.add_special_tokens(
        [special(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    )
    tokenizer.add_tokens([plain("<tool_call>"), plain("</tool_call>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=CHATML
    )


def llama3() -> Any:
    """Byte-level, up to three digits in one token; adds a BOS; its template trims messages."""
    tokenizer = _byte_level(LLAMA3_SPLIT, 500)
    assert tokenizer.token_to_id("10") is not None
    names = "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
    tokenizer.add_special_tokens([special(t) for t in names])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{names[0]} $A", special_tokens=[(names[0], tokenizer.token_to_id(names[0]))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=names[0],
        eos_token="<|eot_id|>",
        chat_template=LLAMA3_CHAT,
    )


def phi3() -> Any:
    """SentencePiece style whose control tokens swallow the white space after them."""
    names = "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"
    tokenizer = llama2(extra=tuple(special(t, rstrip=True) for t in names))
    tokenizer.chat_template = PHI3_CHAT
    return tokenizer


def gemma() -> Any:
    """No mark before the text; runs of line breaks and of spaces are added tokens, not special."""
    tokenizer = _sentencepiece(metaspace=False)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([special(t) for t in ("<start_of_turn>", "<end_of_turn>")])
    tokenizer.add_tokens([plain(t) for t in ("\n\n", "\n\n\n", "▁▁", "▁▁▁")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=GEMMA_CHAT,
    )


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama2": llama2,
    "llama2-metaspace": lambda: llama2(metaspace=True),
    "llama2-added": lambda: llama2(extra=(plain("<tool_call>"),)),
    "qwen": qwen,
    "llama3": llama3,
    "phi3": phi3,
    "gemma": gemma,
}
