"""Write a tiny model with random weights that speaks forty words, for a real server to run.

It knows nothing, and it does so the same way every time: what counts is the server around it.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

# Both are there when cassettes are recorded, and at no other time.
np: Any = import_module("numpy")
gguf: Any = import_module("gguf")

_SPOKEN = """
the a lamp light sea ship harbour tide wind rain keeper tower stone door stair night dawn is was
burns turns waits sleeps and over under near far slow bright grey old new one two three
"""
WORDS = tuple(_SPOKEN.split())
SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
CALL = "<tool_call>\n"
SIZE, INNER, HEADS, CONTEXT = 32, 64, 2, 2048
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.content %}{{ m.content }}{% endif -%}
{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def vocabulary() -> list[tuple[str, Any]]:
    """The tokens: marks, the opening of a call, single bytes, single characters, words."""
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * (len(SPECIAL) - 1)]
    return [
        *zip(SPECIAL, kinds, strict=True),
        (CALL, gguf.TokenType.NORMAL),
        *((f"<0x{byte:02X}>", gguf.TokenType.BYTE) for byte in range(256)),
        ("\N{LOWER ONE EIGHTH BLOCK}", gguf.TokenType.NORMAL),
        *((chr(code), gguf.TokenType.NORMAL) for code in range(33, 127)),
        *((f"\N{LOWER ONE EIGHTH BLOCK}{word}", gguf.TokenType.NORMAL) for word in WORDS),
    ]


def write(path: Path) -> None:
    """Write the model."""
    tokens = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, tokens)
    chance = np.random.default_rng(7)
    shapes = {
        "attn_q": (SIZE, SIZE),
        "attn_k": (SIZE, SIZE),
        "attn_v": (SIZE, SIZE),
        "attn_output": (SIZE, SIZE),
        "ffn_gate": (INNER, SIZE),
        "ffn_up": (INNER, SIZE),
        "ffn_down": (SIZE, INNER),
    }
    embedding = chance.standard_normal((len(tokens), SIZE))
    writer.add_tensor("token_embd.weight", embedding.astype(np.float32))
    for name, shape in shapes.items():
        weights = chance.standard_normal(shape) * 0.5
        writer.add_tensor(f"blk.0.{name}.weight", weights.astype(np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(SIZE, dtype=np.float32))
    # Only words are ever likely, so that what it says can be read.
    output = chance.standard_normal((len(tokens), SIZE)) * 0.05
    output[-len(WORDS) :] *= 20
    writer.add_tensor("output.weight", output.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, tokens: list[tuple[str, Any]]) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(SIZE)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(SIZE // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text.encode() for text, _ in tokens])
    writer.add_token_scores([-float(rank) for rank in range(len(tokens))])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(SPECIAL.index("<s>"))
    writer.add_eos_token_id(SPECIAL.index("<|im_end|>"))
    writer.add_unk_token_id(SPECIAL.index("<unk>"))
    writer.add_add_bos_token(value=True)
    writer.add_add_space_prefix(value=False)
    writer.add_chat_template(TEMPLATE)
