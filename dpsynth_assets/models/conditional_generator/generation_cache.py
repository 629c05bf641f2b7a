"""Keys and values of a decoder in buffers that are allocated once."""

from typing import Any


def growing_cache(columns: int) -> Any:
    """An encoder-decoder cache whose self-attention part holds at most `columns` tokens.

    Stock dynamic layers copy everything they hold at every token; these write one column. The part
    for the encoder's states is stock: it is written once.

    Args:
        columns: Tokens a row's decoder may hold.

    Returns:
        A `transformers.EncoderDecoderCache`.
    """
    from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

    class PreallocatedLayer(DynamicLayer):
        """Grows into a buffer; `keys` and `values` are views of its filled part."""

        def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
            """Allocates both buffers, (R, H, columns, D)."""
            self.dtype, self.device = key_states.dtype, key_states.device
            self._buffers = [_buffer(key_states, columns), _buffer(value_states, columns)]
            self._fill(0)
            self.is_initialized = True

        def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            """Writes the next columns; returns views of all that are filled."""
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            start = self._filled
            end = start + key_states.shape[-2]
            for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
                buffer[:, :, start:end] = states
            self._fill(end)
            return self.keys, self.values

        def reorder_cache(self, beam_idx: Any) -> None:
            """Keeps the rows of `beam_idx`, in its order."""
            if self.is_initialized:
                self._buffers = [buffer.index_select(0, beam_idx) for buffer in self._buffers]
                self._fill(self._filled)

        def _fill(self, filled: int) -> None:
            self._filled = filled
            self.keys, self.values = (buffer[:, :, :filled] for buffer in self._buffers)

    return EncoderDecoderCache(Cache(layer_class_to_replicate=PreallocatedLayer), DynamicCache())


def _buffer(like: Any, columns: int) -> Any:
    return like.new_zeros((*like.shape[:2], columns, like.shape[-1]))
