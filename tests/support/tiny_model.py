"""A tiny model with random weights, so that tests can have a real llama.cpp server without any download.

It knows 300 tokens and talks printable nonsense for ever: its own end never comes.
"""

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

_LAYERS, _WIDTH, _HIDDEN, _HEADS, _CONTEXT = 4, 256, 512, 4, 8192
_WORDS = """
the a of to and in is it you that he was for on are with as his they be at one have this from or had by
hot but some what there we can out other were all your when
"""
#: The first three are unknown, begin and end of text; then one token a byte; then words.
_TOKENS = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *(f"▁{w}" for w in _WORDS.split()),
]
_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content or '' }}\n{% endfor %}assistant:"
_FIRST_BYTE = 3

Weights = NDArray[np.float32]


def write_tiny_model(path: Path) -> Path:
    """Write the model, always the same: 2.8 million parameters, 11 MB of GGUF. Returns ``path``."""
    writer = gguf.GGUFWriter(path, "llama")
    _write_facts(writer)
    _write_tokens(writer)
    for name, weights in _weights().items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_facts(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny random")
    writer.add_block_count(_LAYERS)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(len(_TOKENS))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _write_tokens(writer: gguf.GGUFWriter) -> None:
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * (len(_TOKENS) - len(kinds) - 256)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(_TOKENS)
    writer.add_token_scores([0.0] * len(_TOKENS))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(_TEMPLATE)


def _weights() -> dict[str, Weights]:
    """All tensors. Channel 0 is kept constant through all layers, so that it can forbid tokens at the end."""
    chance = np.random.default_rng(1)

    def draw(rows: int, columns: int, scale: float = 0.06) -> Weights:
        return chance.normal(0, scale, (rows, columns)).astype(np.float32)

    ones = np.ones(_WIDTH, dtype=np.float32)
    embedding, output = draw(len(_TOKENS), _WIDTH, 0.3), draw(len(_TOKENS), _WIDTH, 0.15)
    embedding[:, 0] = 1
    output[:, 0] = 0
    for token in _unprintable():
        output[token, :] = 0
        output[token, 0] = -20
    tensors = {"token_embd.weight": embedding, "output_norm.weight": ones, "output.weight": output}
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        tensors |= {f"{block}.attn_norm.weight": ones, f"{block}.ffn_norm.weight": ones}
        tensors |= {f"{block}.attn_{name}.weight": draw(_WIDTH, _WIDTH) for name in "qkv"}
        tensors |= {f"{block}.ffn_{name}.weight": draw(_HIDDEN, _WIDTH) for name in ("gate", "up")}
        for name, columns in (("attn_output", _WIDTH), ("ffn_down", _HIDDEN)):
            back = draw(_WIDTH, columns)
            back[0, :] = 0
            tensors[f"{block}.{name}.weight"] = back
    return tensors


def _unprintable() -> list[int]:
    """Tokens that must not be said: bytes that alone are no text, since streams would stall; the end."""
    printable = {_FIRST_BYTE + byte for byte in range(0x20, 0x7F)}
    printable |= set(range(_FIRST_BYTE + 256, len(_TOKENS)))
    return [token for token in range(len(_TOKENS)) if token not in printable]
