"""Engines that write text: one protocol, served by a decoder of this machine, vLLM or an endpoint.

`protocol` says what an engine does, and opens, once per process, what a dataset file asks for.
Engines that run the model here may also read its inside (hidden states) and steer it; the endpoint
only writes, and only from text that is public already.

Shape letters: N texts or prompts, d width of the residual stream, V vocabulary.
"""
