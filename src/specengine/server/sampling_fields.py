"""The fields of a request that say how tokens are drawn, as OpenAI's and vLLM's APIs name them."""

import secrets

from pydantic import BaseModel, ConfigDict, Field, field_validator

from specengine.decoding.sampling import Sampling


class SamplingFields(BaseModel):
    """Absent fields leave the output greedy."""

    model_config = ConfigDict(extra="forbid", strict=True)

    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    """0, which is also the default, decodes greedily."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Keep the fewest likeliest tokens whose probabilities reach this."""
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    """Keep this many likeliest tokens; 0 and -1 keep all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Keep tokens at least this share as likely as the likeliest."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=10)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Equal seeds draw equal texts; drawn anew for each request when absent."""

    @field_validator("top_k")
    @classmethod
    def _all(cls, value: int | None) -> int | None:
        return 0 if value == -1 else value

    def sampling(self) -> Sampling:
        """How the engine draws this request's tokens."""
        given = {
            name: value
            for name in SamplingFields.model_fields
            if (value := getattr(self, name)) is not None
        }
        return Sampling(**({"seed": secrets.randbits(62)} | given))
