"""Decoding passes captured as CUDA graphs: one launch a step instead of a thousand small ones."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

Pass = Callable[["torch.Tensor", "torch.Tensor", int], "torch.Tensor"]
"""(tokens (R,), columns (R,), visible columns) -> logits (R, V)."""

_WARM_UP_PASSES = 2


class _Captured(NamedTuple):
    """A graph and the buffers it reads and writes."""

    graph: Any
    tokens: "torch.Tensor"
    columns: "torch.Tensor"
    logits: "torch.Tensor"


class CapturedPasses:
    """Runs a decoding pass, captured once for each number of rows and of visible columns.

    All graphs share one memory pool, so logits last until the next pass only. A pass that cannot
    be captured (a model that reads a value back to the host) runs as it is from then on.
    """

    def __init__(self, run: Pass) -> None:
        """Keeps the pass; nothing is captured yet.

        Args:
            run: Must write the same cache columns however often it runs with the same inputs.
        """
        self._run = run
        self._captured: dict[tuple[int, int], _Captured] = {}
        self._pool: Any = None
        self.refused: str | None = None

    def __call__(
        self, tokens: "torch.Tensor", columns: "torch.Tensor", visible: int
    ) -> "torch.Tensor":
        """Runs the pass; arguments and result are those of `Pass`."""
        if self.refused is not None:
            return self._run(tokens, columns, visible)
        key = (len(tokens), visible)
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(tokens, columns, visible)
            except RuntimeError as error:
                self.refused = type(error).__name__
                self.forget()
                return self._run(tokens, columns, visible)
        captured = self._captured[key]
        captured.tokens.copy_(tokens)
        captured.columns.copy_(columns)
        captured.graph.replay()
        return captured.logits

    def forget(self) -> None:
        """Drops all graphs: the cache they write into is about to be replaced."""
        self._captured.clear()
        self._pool = None

    def _capture(self, tokens: "torch.Tensor", columns: "torch.Tensor", visible: int) -> _Captured:
        import torch

        tokens, columns = tokens.clone(), columns.clone()
        stream = torch.cuda.Stream(device=tokens.device)
        stream.wait_stream(torch.cuda.current_stream(tokens.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_PASSES):
                self._run(tokens, columns, visible)
        torch.cuda.current_stream(tokens.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = self._run(tokens, columns, visible)
        self._pool = graph.pool()
        return _Captured(graph, tokens, columns, logits)
