"""The special tokens that the files of a tokenizer name."""

from pathlib import Path
from typing import Any

import tokenizers

from minisbert.core import InputError, one_line
from minisbert.folder.settings import SPECIAL_TOKENS, unsupported

Files = list[tuple[Path, dict[str, Any]]]  # a file and its contents; a later one overrides those before it


class SpecialTokens:
    """The special tokens that a folder's files name, by key: ``cls_token`` and so on."""

    def __init__(self, backend: tokenizers.Tokenizer, files: Files, defaults: dict[str, str]):
        self.backend = backend
        self.values: dict[str, Any] = dict(defaults)
        self.paths = dict.fromkeys(defaults, files[0][0])
        for path, content in files:
            listed = isinstance(self.values.get("additional_special_tokens"), list)
            for key, value in content.items():
                if path.name == SPECIAL_TOKENS and key == "additional_special_tokens" and listed:
                    continue  # tokenizer_config.json has the last word
                self.values[key], self.paths[key] = value, path

    def content(self, key: str) -> str:
        """A token's text; an empty string if the files do not name one."""
        token = added_token(self.values[key])
        return "" if token is None else token.content

    def __getitem__(self, key: str) -> tuple[str, int]:
        """A token and its id."""
        token = self.content(key)
        i = self.backend.token_to_id(token)
        if i is None:
            raise InputError(f"{self.paths[key]}: {key} {one_line(self.values[key])} is not a token of the vocabulary")
        return token, i

    def named(self) -> list[tokenizers.AddedToken]:
        """Every token that the files name, under keys of its own or in a list."""
        values = [value for key, value in self.values.items() if key.endswith("_token")]
        more = self.values.get("extra_special_tokens")
        if isinstance(more, dict):  # by names of their own
            values += more.values()
            more = None
        more = more or self.values.get("additional_special_tokens")
        if isinstance(more, list):
            values += more
        tokens = map(added_token, values)
        return [token for token in tokens if token is not None]

    def listed(self) -> set[str]:
        """The tokens that are found in texts as a whole."""
        return {token.content for token in self.backend.get_added_tokens_decoder().values()}

    def check_decoder(self, decoder: dict[str, dict], rebuilt: bool) -> None:
        """Raise ``InputError`` if ``added_tokens_decoder`` lists tokens that ``tokenizer.json`` lacks.

        For a rebuilt tokenizer it is the last word, and must not lack one either.
        """
        listed, tokens = self.listed(), map(added_token, decoder.values())
        decoded = {token.content for token in tokens if token is not None}
        other = decoded - listed
        if rebuilt:
            other |= listed - decoded - {token.content for token in self.named()}
        if other:
            reason = f"added_tokens of tokenizer.json differ in {', '.join(sorted(other))}"
            raise unsupported(self.paths["added_tokens_decoder"], "added_tokens_decoder", decoder, reason)

    def add(self, rows: int) -> None:
        """Have named tokens found in texts as a whole, like those that ``tokenizer.json`` lists.

        A token that is not in the vocabulary gets the next id if the embedding table, of ``rows`` rows, has one for it.
        """
        listed = {token.content: token for token in self.backend.get_added_tokens_decoder().values()}
        for token in self.named():
            if token.content in listed:
                token = listed[token.content]
                token.special = True
                self.backend.add_special_tokens([token])
            elif self.backend.token_to_id(token.content) is not None or self.backend.get_vocab_size() < rows:
                self.backend.add_special_tokens([token])


def added_token(value: Any) -> tokenizers.AddedToken | None:
    """A token as the files state it: a string, or an object with the string as ``content``; None if it is neither."""
    if isinstance(value, str):
        return tokenizers.AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {name: value[name] for name in ("lstrip", "rstrip", "single_word") if isinstance(value.get(name), bool)}
    return tokenizers.AddedToken(value["content"], special=True, **flags)
