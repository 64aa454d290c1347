"""The vLLM side of `decode`: its build for processors, in a process and a virtual environment of its own.

    load    folder, dtype, rows        the first question: the model, ready to serve; the answer says which vLLM
    sample  prompts, size, tokens      so many new ones for each prompt's rollouts: seconds

Sampling is at temperature 1 and knows no end token, as on the other sides. Prompts are shared through vLLM's own prefix
cache, which is emptied before every question. The standard library and vLLM alone are used.
"""

from __future__ import annotations

import os
import time
from typing import Any

from bench.closed_wire import Facts, Wire

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, so that it ends with it
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
CONTEXT = 512


class Served:
    """A model in vLLM."""

    def __init__(self, folder: str, dtype: str, rows: int) -> None:
        import vllm

        self.version = str(vllm.__version__)
        self._params: Any = vllm.SamplingParams
        self._model: Any = vllm.LLM(
            model=folder, dtype=dtype, max_num_seqs=rows, max_model_len=CONTEXT, seed=0, enable_prefix_caching=True
        )

    def sample(self, prompts: list[list[int]], size: int, tokens: int) -> float:
        """Seconds."""
        self._model.reset_prefix_cache()
        asked = [{"prompt_token_ids": ids} for ids in prompts for _ in range(size)]
        params = self._params(temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        done = self._model.generate(asked, params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        if any(len(one.outputs[0].token_ids) != tokens for one in done):
            raise ValueError("a completion has not all its tokens")
        return seconds


def main() -> None:
    """Answer questions until there are no more."""
    os.environ.update(SETTINGS)
    wire = Wire()
    served: Served | None = None
    while (question := wire.hear())["do"] != "quit":
        try:
            if served is None:
                served = Served(question["folder"], question["dtype"], question["rows"])
                answer: Facts = {"version": served.version}
            else:
                answer = {"seconds": served.sample(question["prompts"], question["size"], question["tokens"])}
            wire.say(**answer)
        except Exception as error:  # the border of the process: whatever a peer raises is its answer
            wire.say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
