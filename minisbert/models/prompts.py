"""Prompts: texts that some models need before each input, such as "query: " for E5.

A prompt changes the states of all tokens. With ``include_prompt: false`` its own tokens are not pooled.
"""

from collections.abc import Sequence

from minisbert.checkpoints.layout import EncoderSettings
from minisbert.core import InputError, one_line
from minisbert.core.tokenizer import Tokenizer

# the names under which models store their prompts for queries and documents, as in sentence-transformers
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}


def role_prompt_name(settings: EncoderSettings, role: str) -> str | None:
    """Return the name of the model's prompt for a "query" or a "document"; None if it has none for them."""
    for name in PROMPT_NAMES[role]:
        if name in settings.prompts:
            return name
    return None


def role_prompt(settings: EncoderSettings, role: str) -> str:
    """Return the model's prompt for a "query" or a "document"; an empty string if it has none for them."""
    name = role_prompt_name(settings, role)
    if name is None:
        return ""
    return settings.prompts[name]


def choose_prompt(settings: EncoderSettings, prompt: str | None = None, name: str | None = None) -> str:
    """Return ``prompt``, or the model's prompt called ``name``, or its default; an empty string for none.

    Raises ``InputError`` for both at once, and for a name that the model lacks.
    """
    for given in (prompt, name):
        if given is not None and not isinstance(given, str):
            raise InputError(f"a prompt and its name are strings, not {one_line(given)}")
    if prompt is not None and name is not None:
        raise InputError(f"prompt {one_line(prompt)} and prompt_name {one_line(name)}: give one of them")
    if prompt is not None:
        return prompt
    if name is None:
        name = settings.default_prompt_name
    if name is None:
        return ""
    if name in settings.prompts:
        return settings.prompts[name]
    if name in PROMPT_NAMES:  # as in sentence-transformers, where every model has these two
        return ""
    names = ", ".join(map(one_line, dict.fromkeys([*settings.prompts, *PROMPT_NAMES])))
    raise InputError(f"the model has no prompt {one_line(name)}; it has {names}")


def with_prompt(
    texts: Sequence[str], settings: EncoderSettings, tokenizer: Tokenizer, prompt: str | None, name: str | None
) -> tuple[list[str], int]:
    """Put the prompt before each text; also return how many tokens at the start of each are not pooled."""
    prompt = choose_prompt(settings, prompt, name)
    skip = 0
    if prompt and not settings.include_prompt:
        skip = prompt_tokens(tokenizer, prompt)
    return [prompt + text for text in texts], skip


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> int:
    """Count the tokens at the start of a text that belong to its prompt: [CLS] and the prompt, without [SEP].

    As in sentence-transformers, counted in the prompt alone: at its end the text may change a token.
    """
    ids = tokenizer.encode([prompt]).ids[0]
    last = tokenizer.backend.get_added_tokens_decoder().get(ids[-1])
    if last is not None and last.special:
        return len(ids) - 1
    return len(ids)
