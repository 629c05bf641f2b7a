"""vLLM as a decoder of private prediction: it steps all contexts of a group together.

Private prediction asks for the logits of all contexts of a pass, and chooses their next token from
them. vLLM chooses tokens by itself and schedules each request by itself. Three small parts of ours
turn that round; all else is vLLM's: paged attention, chunked prefill, shared prompts.

* `scheduler.LockstepScheduler` runs one group of requests at a time, the contexts of one pass. It
  reads their prompts, in chunks if need be, up to the last token, and holds each context there
  until all are there. Then one step takes one token of every context, and no other.
* `logits.LockstepLogits`, a batch-level logits processor, sees the logits of every step. It masks
  contexts whose prompt is partly read, takes the logits of the step that holds the whole group,
  and leaves one constant token for vLLM to sample: no token ever follows private logits there. A
  step with some contexts only, or with foreign ones, raises before a token is sampled.
* `contexts.VllmContexts` is what every decoder opens (`models.decoding.Contexts`): one
  call of `next_logits` is one such step. The token that was drawn goes into the documents of all
  contexts of its batch before the next step; the constant one is dropped.

So the loop, the aggregation, the meter and the price are those of the other decoders, and there is
no second copy of them inside vLLM. Calling the aggregation from within the processor would be one
step a token as well, but could not serve methods that compare with public prompts: these have to be
read in a step without private rows, so two steps are under way when one token is drawn, and vLLM
samples at the end of each.

**Privacy** A step holds contexts of one pass. Blocks of keys and values are shared within a pass
alone (its name salts their hashes), hold prompts alone, and no pass can take another one's memory:
each has room for its greatest length from the start. So a record that comes or goes can move, by
rounding, the logits of its own pass only, as `privacy.batch_terms` counts; a public pass follows
no private row, to the last bit. `logit_slack` has to be charged: 0 is refused.
"""

from dpsynth_assets.models.vllm_decoder.lockstep import LockstepError, VllmDecoderError
