"""What the peers' drivers and our side share: settings, recorded inputs and the clock."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WORK = Path(sys.argv[1])
MODEL = WORK / "tiny"
DOCUMENTS, BATCH, TOKENS = (int(os.environ[name]) for name in ("DOCUMENTS", "BATCH", "TOKENS"))


class Clock:
    """Processor time of writing documents: in all, and of the tokens after each one's first.

    The first token of a document waits for its prompts to be read; the rest is decoding alone.
    """

    def __init__(self) -> None:
        self.started = self.stopped = time.process_time()
        self.ticks: list[list[float]] = []

    def __call__(self, documents: Iterable[int], *_: Any, **__: Any) -> Iterator[int]:
        """Stands in for tqdm around a peer's loop over documents, after its model loaded."""
        self.started = time.process_time()
        for document in documents:
            self.ticks.append([])
            yield document
        self.stopped = time.process_time()

    def tick(self, *_: Any) -> None:
        """Marks one token, or one token of every document of a pass."""
        self.ticks[-1].append(time.process_time())

    def save(self, side: str, tokens: int, tokens_a_tick: int = 1) -> None:
        """Appends a line of tokens and seconds, in all and while decoding, to a side's file."""
        decoded = tokens_a_tick * sum(len(ticks) - 1 for ticks in self.ticks)
        decoding = sum(ticks[-1] - ticks[0] for ticks in self.ticks)
        with (WORK / f"{side}.times").open("a") as file:
            file.write(f"{tokens} {self.stopped - self.started} {decoded} {decoding}\n")


class Recorder:
    """Wraps a peer's functions to note what they return, so that our side gets the same."""

    def __init__(self, peer: str) -> None:
        self.file = WORK / f"{peer}.inputs.json"
        self.notes: dict[str, list] = {}

    def wrap(self, module: Any, name: str) -> None:
        """Notes every result of `module.name` from here on."""
        function = getattr(module, name)

        def noted(*arguments: Any, **settings: Any) -> Any:
            result = function(*arguments, **settings)
            self.notes.setdefault(name, []).append(result)
            return result

        setattr(module, name, noted)

    def save(self, prompts: list[str], clip_bound: float) -> None:
        """Writes the prompts of each batch, the public one last, and the clip."""
        batches = [prompts[i : i + BATCH] for i in range(0, len(prompts), BATCH)]
        self.file.write_text(json.dumps({"batches": batches, "clip_bound": float(clip_bound)}))
