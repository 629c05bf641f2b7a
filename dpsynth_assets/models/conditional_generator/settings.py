"""Size, budget and seed of the embedded generator."""

from pydantic import BaseModel, ConfigDict, Field


class GeneratorTrainingSettings(BaseModel):
    """Size, budget and seed of the embedded generator. Defaults fit the demo on two cores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vocabulary: int = Field(2048, ge=300, le=65536, description="Tokens of the byte-level BPE.")
    width: int = Field(128, ge=16, description="Hidden width d; a multiple of `heads`.")
    encoder_layers: int = Field(1, ge=1, description="Layers that read the condition.")
    decoder_layers: int = Field(2, ge=1, description="Layers that write the document.")
    heads: int = Field(4, ge=1, description="Attention heads per layer.")
    feed_forward: int = Field(512, ge=16, description="Width of the feed-forward layers.")
    max_condition_tokens: int = Field(64, ge=8, description="Conditions are cut to this, tokens.")
    max_document_tokens: int = Field(160, ge=8, description="Documents are cut to this, tokens.")
    token_budget: int = Field(280_000, ge=1, description="Document tokens in all.")
    batch_tokens: int = Field(1024, ge=64, description="Document tokens of one optimizer step.")
    topic_share: float = Field(
        0.5, ge=0, le=1, description="Share of conditions with topic keywords, not the document's."
    )
    public_embeddings: bool = Field(
        True, description="Start the embeddings of known words from MiniLM's."
    )
    hold_copying_share: float = Field(
        0.6, ge=0, le=1, description="Share of the budget in which copying attention stays as set."
    )
    matrix_learning_rate: float = Field(0.03, gt=0, description="Muon, for matrices.")
    learning_rate: float = Field(1e-2, gt=0, description="AdamW, for embeddings, norms, biases.")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="Share of the budget to warm up.")
    held_out_share: float = Field(0.03, gt=0, lt=1, description="Documents kept for perplexity.")
    seed: int = Field(0, ge=0, description="Public seed of initial weights and of every draw.")
    threads: int = Field(
        2, ge=1, description="CPU threads, each on a part of every batch; they move last bits."
    )
    device: str = Field("cpu", description="Torch device to train on.")
