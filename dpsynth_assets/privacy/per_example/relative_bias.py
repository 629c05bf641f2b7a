"""Tables of relative positions, looked up once for all examples and added to attention scores.

T5 and its kin compute a (1, H, Q, K) bias from a table of one row a bucket and one column a head.
It is repeated for every example before anything reads it, so that each has a gradient of its own.

Shape letters: B examples, H heads, Q queries, K keys, m buckets.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def owners_of_tables(model: "torch.nn.Module") -> "dict[int, torch.nn.Module]":
    """Finds modules with a `relative_attention_bias`, by the table's `id`."""
    from torch import nn

    return {
        id(owner.relative_attention_bias): owner
        for owner in model.modules()
        if isinstance(getattr(owner, "relative_attention_bias", None), nn.Embedding)
    }


def repeats_a_look_up(owner: "torch.nn.Module") -> bool:
    """Says, by trying, whether a module's `compute_bias` does no more than look up and rearrange.

    A look-up of distinct numbers tells which bucket each pair of places reads.
    """
    import torch

    table: Any = owner.relative_attention_bias
    compute = getattr(owner, "compute_bias", None)
    if compute is None or table.padding_idx is not None:
        return False
    indices: list[torch.Tensor] = []
    handle = table.register_forward_pre_hook(lambda _, inputs: indices.append(inputs[0]))
    try:
        with torch.no_grad():
            bias = compute(3, 5)
    except (TypeError, ValueError, RuntimeError):
        return False
    finally:
        handle.remove()
    return len(indices) == 1 and is_look_up(bias, indices[0], table.weight)


def is_look_up(bias: "torch.Tensor", index: "torch.Tensor", weight: "torch.Tensor") -> bool:
    """Says whether a (1, H, Q, K) bias holds, place by place, the rows of the (m, H) table."""
    import torch

    shape = (1, weight.shape[1], *index.shape)
    return bias.shape == shape and torch.equal(bias[0], weight.detach()[index].permute(2, 0, 1))


def bucket_sums(
    index: "torch.Tensor", gradient: "torch.Tensor", buckets: int
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Sums what each example's bias received into the table's shape.

    Args:
        index: (Q, K) int64 in [0, m).
        gradient: (B, H, Q, K).
        buckets: m.

    Returns:
        (B, m · H) float64 gradients, and (B,) float64 sums of the norms of their terms.
    """
    import torch

    places = index.reshape(-1)
    found, coarse = [], []
    for own in gradient:  # one example at a time: Q K numbers in float64 for each head are many
        terms = own.flatten(1).double()
        table = terms.new_zeros(len(terms), buckets).index_add_(1, places, terms)
        found.append(table.T.flatten())
        coarse.append(terms.norm(dim=0).sum())
    return torch.stack(found), torch.stack(coarse)
