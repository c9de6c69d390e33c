"""Prompts: texts that some models need before each input, such as "query: " for E5.

A prompt changes the states of all tokens. With ``include_prompt: false`` its own tokens are not pooled.
"""

from collections.abc import Sequence
from functools import cache

from minisbert.checkpoints.layout import EncoderSettings
from minisbert.core import InputError, one_line
from minisbert.core.tokenizer import Tokenizer
from minisbert.system.console import say

# the names of prompts for queries and documents: the first that the model has counts, as in sentence-transformers
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}


def role_prompt(settings: EncoderSettings, role: str) -> str:
    """Return the model's prompt for a "query" or a "document", or its default; an empty string for none.

    Every model that was loaded has both, empty where its folder states none. So neither its default prompt nor one that
    it calls "passage" is used, unless ``prompts`` was assigned: sentence-transformers does the same when it runs.
    """
    for name in PROMPT_NAMES[role]:
        if name in settings.prompts:
            return choose_prompt(settings, name=name)
    return choose_prompt(settings)


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
    if name not in settings.prompts:
        names = ", ".join(map(one_line, settings.prompts))
        raise InputError(f"the model has no prompt {one_line(name)}; it has {names}")
    if name == "document" and not settings.prompts[name]:
        for other in PROMPT_NAMES[name]:
            if settings.prompts.get(other):
                say_unused(other)
    return settings.prompts[name]


@cache  # says it once
def say_unused(name: str) -> None:
    say(
        f"documents get no prompt: the model's is called {name}, which sentence-transformers does not use for them "
        f'either; give prompt_name="{name}", or rename it "document" in config_sentence_transformers.json'
    )


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
