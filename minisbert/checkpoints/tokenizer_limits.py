"""What a tokenizer may cost: limits for a tokenizer.json that anybody may have written.

The file is a small program that every text goes through. A line of it can replace each letter by a
million others, thirty lines can double a text thirty times, and the library does as it is told
until the memory is full. Published tokenizers stay far below these limits.

Imports ``core`` and ``system``.
"""

import base64
import json
import math
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from minisbert.core import InputError
from minisbert.system.reading import reading

MOST_ADDED_CHARACTERS = 2**20  # of all added tokens; the library takes some 70 bytes for each
MOST_STAGES = 100  # published tokenizers have at most about ten
MOST_GROWTH = 1000  # so many characters or tokens may be made of one


def check_added_tokens(content: bytes, path: Path) -> None:
    """Raise ``InputError`` for added tokens that are too long, all together.

    ``content`` is tokenizer.json, before the library reads it: reading would take the memory.
    """
    if len(content) <= MOST_ADDED_CHARACTERS:
        return  # the tokens are not longer than the file, which need not be read twice
    with reading(path):
        tokenizer = json.loads(content)
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("added_tokens"), list):
        return  # the library refuses what it cannot read

    characters = 0
    for token in tokenizer["added_tokens"]:
        if isinstance(token, dict):
            characters += len(str(token.get("content")))
    if characters > MOST_ADDED_CHARACTERS:
        raise InputError(
            f"{path}: added_tokens have {characters:,} characters together; at most "
            f"{MOST_ADDED_CHARACTERS:,} are supported"
        )


def check_stages(backend: Backend, path: Path) -> None:
    """Raise ``InputError`` for too many stages, and for stages that make a text far too long.

    The text goes through the normalizers, then the pre-tokenizers; the post-processors put special
    tokens around it. Nothing is run here: a text would be too long at once.
    """
    stages = stages_of(backend.normalizer) + stages_of(backend.pre_tokenizer)
    templates = stages_of(backend.post_processor)
    count = len(stages) + len(templates)
    if count > MOST_STAGES:
        raise InputError(
            f"{path}: normalizer, pre_tokenizer and post_processor have {count:,} stages; at most "
            f"{MOST_STAGES} are supported"
        )

    characters = [character_growth(stage) for stage in stages]
    check_growth(path, "normalizer and pre_tokenizer", "characters", characters)
    tokens = [template_length(stage) for stage in templates]
    check_growth(path, "post_processor", "tokens", tokens)


def check_growth(path: Path, part: str, units: str, growths: list[int]) -> None:
    """Raise ``InputError`` if the stages of a part make too much of one character or token.

    Each stage works on what the one before it has made, so their ``growths`` multiply. ``units``
    are what they make, for the message.
    """
    growth = math.prod(growths)
    if growth > MOST_GROWTH:
        raise InputError(
            f"{path}: {part} may make {growth:,} {units} of one; at most {MOST_GROWTH:,} are "
            f"supported"
        )


def stages_of(stage: Any) -> list[dict[str, Any]]:
    """List what a part of the library's tokenizer does, in order, each as tokenizer.json has it."""
    if stage is None:
        return []
    return flattened(json.loads(stage.__getstate__()))


def flattened(stage: dict[str, Any]) -> list[dict[str, Any]]:
    """List the stages of a sequence, in which there may be other sequences."""
    if stage["type"] != "Sequence":
        return [stage]
    stages = []
    for key in ("normalizers", "pretokenizers", "processors"):  # each kind has its own
        for part in stage.get(key, []):
            stages += flattened(part)
    return stages


def character_growth(stage: dict[str, Any]) -> int:
    """How many characters a stage makes of one, at most.

    Lower case and Unicode's normal forms count as one: what they have made they leave alone when
    they come again.
    """
    if stage["type"] == "Replace":
        content = len(stage["content"])
        if "String" in stage["pattern"]:
            pattern = max(1, len(stage["pattern"]["String"]))
            return max(1, math.ceil(content / pattern))
        return 1 + content  # a regular expression may match between two characters
    if stage["type"] == "ByteLevel":
        return 4  # each byte becomes a character
    if stage["type"] == "Precompiled":
        # SentencePiece's table: the length of a search tree, the tree, and the replacements, each
        # with a zero at its end.
        table = base64.b64decode(stage["precompiled_charsmap"])
        tree_bytes = int.from_bytes(table[:4], "little")
        replacements = table[4 + tree_bytes :].split(b"\0")
        longest = max(len(replacement) for replacement in replacements)
        return max(1, longest)
    return 1


def template_length(stage: dict[str, Any]) -> int:
    """How many tokens a post-processor makes of one text of one token, or of a pair of them."""
    if stage["type"] != "TemplateProcessing":
        return 1  # BERT's and RoBERTa's own have four special tokens at most
    longest = 1
    for name in ("single", "pair"):
        length = 0
        for slot in stage[name]:
            if "SpecialToken" in slot:
                token = slot["SpecialToken"]["id"]
                length += len(stage["special_tokens"][token]["ids"])
            else:
                length += 1
        longest = max(longest, length)
    return longest
