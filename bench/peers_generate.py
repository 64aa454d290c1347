"""The peer that everybody has: `transformers.generate` on a model of its own, in the same process and thread."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from treadle.core import compute

Rows = NDArray[np.int64]


class Generate:
    """A model loaded as its users load it: transformers' own attention, key-value cache and sampling."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        loader: Any = AutoModelForCausalLM
        self._model = compute.run(lambda: loader.from_pretrained(folder, dtype=torch.float32, local_files_only=True))
        self._model.eval()

    def sample(self, rows: Rows, tokens: int) -> tuple[Rows, float]:
        """`tokens` new ones for every row of equal length [B, T], temperature 1, and the seconds it took."""

        def work() -> tuple[Rows, float]:
            ids = torch.from_numpy(rows)
            begun = time.perf_counter()
            with torch.inference_mode():
                out = self._model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                    min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0,
                )
            return out.numpy(), time.perf_counter() - begun

        return compute.run(work)
