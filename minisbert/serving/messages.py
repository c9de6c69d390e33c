"""What requests and answers hold, as OpenAI, Cohere and Jina have it.

FastAPI checks requests against these models, and shows requests and answers at /docs. Answers are
not checked: the server makes them itself. (A docstring of a model would be shown at /docs, so the
models have comments.)
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

# A request with more fields is refused as a whole: pydantic would make an error of each.
MOST_FIELDS = 50

# ---------------------------------------------------------------------------------------- requests


# Unknown fields are refused, not ignored, and values are not converted: "8" is refused where a
# number is needed.
class StrictRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = Field(
        None, description="a name of GET /v1/models; if absent, the model that is served"
    )

    @model_validator(mode="before")
    @classmethod
    def refuse_many_fields(cls, fields: Any) -> Any:
        """Refuse a request that has more fields than any client sends."""
        if isinstance(fields, dict) and len(fields) > MOST_FIELDS:
            raise ValueError(f"{len(fields):,} fields, at most {MOST_FIELDS} are accepted")
        return fields


# Checking stops at the first wrong item: a million of them would be a million errors, and minutes.
TextList = Annotated[list[str], Field(fail_fast=True)]


# The fields are OpenAI's, and ``input_type``.
class EmbeddingRequest(StrictRequest):
    input: str | TextList = Field(description="a text or texts, not token ids")
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = Field(
        None, ge=1, description="the first dimensions, scaled to length 1 again"
    )
    input_type: Literal["query", "document"] | None = Field(
        None, description="chooses the model's prompt"
    )
    user: str | None = Field(None, description="OpenAI's; without effect")

    @field_validator("input", mode="before")
    @classmethod
    def refuse_ids(cls, value: Any) -> Any:
        """Refuse token ids: clients send those of OpenAI's vocabulary, which are other words."""
        if isinstance(value, list) and value and isinstance(value[0], int | list):
            raise ValueError(
                "send texts, not token ids (LangChain: check_embedding_ctx_length=False)"
            )
        return value


# Cohere's clients send rows of a table as they are: fields other than the text are ignored.
class Document(BaseModel):
    text: str


# The fields that clients of Cohere, Jina and vLLM send.
class RerankRequest(StrictRequest):
    query: str
    documents: Annotated[list[str | Document], Field(fail_fast=True)]
    top_n: int | None = Field(None, ge=0, description="how many come back; all if 0 or absent")
    return_documents: bool | None = False
    max_tokens_per_doc: int | None = Field(
        None, description="Cohere's; without effect: the model has its own limit"
    )


# ----------------------------------------------------------------------------------------- answers


class Answer(BaseModel):
    # No client may rely on a field that is not described.
    model_config = ConfigDict(extra="forbid")


class Usage(Answer):
    prompt_tokens: int
    total_tokens: int


class Embedding(Answer):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="a string if base64 was asked for")


class EmbeddingAnswer(Answer):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
    truncated: list[int] = Field([], description="numbers of the texts that were cut, if any were")


class RerankResult(Answer):
    index: int
    relevance_score: float
    document: Document | None = Field(None, description="if return_documents was asked for")


class InputTokens(Answer):
    input_tokens: int


class RerankMeta(Answer):
    tokens: InputTokens


class RerankAnswer(Answer):
    id: str
    object: Literal["list"]
    model: str
    results: list[RerankResult] = Field(description="best first")
    usage: Usage
    meta: RerankMeta = Field(description="the tokens again, where Cohere's clients look for them")
    truncated: list[int] = Field(
        [], description="numbers of the documents that were cut, if any were"
    )


class ModelCard(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelCard]


class Error(Answer):
    message: str
    type: str
    param: None
    code: str | None


class ErrorAnswer(Answer):
    error: Error
