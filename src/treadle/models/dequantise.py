"""GGUF to Hugging Face: unpacks a quantised file into float32 safetensors, config and tokenizer.

The tensors' names and shapes come from the architecture that the file names, built without memory on the meta device;
each must be found in the file or be tied to one that is. transformers' own GGUF reader does the arithmetic, so the
result is what `from_pretrained(gguf_file=...)` gives, without needing accelerate and without a second copy in memory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

from treadle.core.errors import ModelError
from treadle.models.quiet import quiet

reader: Any = modeling_gguf_pytorch_utils
"""transformers' GGUF reader, which is not annotated."""
builder: Any = AutoModelForCausalLM
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    },
}
"""What a GGUF file calls its pre-tokenizer to what it is, where transformers' converter takes a plainer one."""
HEADROOM_BYTES = 64 << 20
"""Disk space that stays free after the weights are written: tokenizer, file system, a run's first records."""


def dequantise(ref: str, file: Path, folder: Path) -> None:
    """Write `file`, unpacked, into the existing folder. Raises ModelError (bad file, no space) or OSError (disk)."""
    try:
        with quiet(), _no_bar():
            config: Any = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
            with torch.device("meta"):
                module = builder.from_config(config)
            weights = _weights(file, module)
            tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as error:  # border to the GGUF readers: a bad file raises anything from KeyError to struct.error
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ModelError(
            f"model `{ref}`: cannot read {file.name} as a GGUF model: {type(error).__name__}: {reason}; "
            f"the file is damaged or its architecture is unknown to transformers, use another one"
        ) from error
    need = sum(tensor.nbytes for tensor in weights.values()) + HEADROOM_BYTES
    free = shutil.disk_usage(folder).free
    if free < need:
        raise ModelError(
            f"model `{ref}`: unpacking needs {need / 1e9:.2f} GB in {folder.parent}, {free / 1e9:.2f} GB are free; "
            f"free some space or choose another cache folder with TREADLE_CACHE"
        )
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = [type(module).__name__]
    config.dtype = "float32"
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _mend_tokenizer(file, folder / "tokenizer.json")


def _mend_tokenizer(file: Path, saved: Path) -> None:
    """Split digits where the file says that the model was trained so; transformers' converter does not.

    White space before a digit is then a token of its own, as it was in training: a shell's output is full of it.
    """
    wanted = PRE_TOKENIZERS.get(_text_field(file, "tokenizer.ggml.pre"))
    if wanted is None:
        return
    content = json.loads(saved.read_text(encoding="utf-8"))
    content["pre_tokenizer"] = wanted
    saved.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _text_field(file: Path, name: str) -> str:
    field = GGUFReader(file).get_field(name)
    return str(field.contents()) if field is not None else ""


def _weights(file: Path, module: Any) -> dict[str, Tensor]:
    read = reader.load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=module, torch_dtype=torch.float32)[
        "tensors"
    ]
    tied = set(module.all_tied_weights_keys)
    wanted = set(module.state_dict()) - tied
    if missing := sorted(wanted - set(read)):
        raise ValueError(f"{len(missing)} tensors are missing, the first is {missing[0]}")
    return {name: read[name].contiguous() for name in sorted(wanted)}


@contextmanager
def _no_bar() -> Iterator[None]:
    """transformers draws a progress bar while unpacking and has no switch for it."""
    bar = reader.tqdm
    reader.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar
