"""A tiny MultiVectorEncoder's folder with other settings than the one in git."""

import json
import shutil
from pathlib import Path

from tests.architectures.tiny import alter, folder_of

COLBERT = folder_of("colbert")
WORDS = [",", ".", "the", "no-such-word"]
SENTENCE = "config_sentence_transformers.json"
TEXT = "sentence_bert_config.json"
MASK = "2_MultiVectorMask/config.json"


def write_colbert(folder: Path, expansion: dict | None = None, normalize: bool = True) -> Path:
    """Copy the folder in git, with ``query_expansion`` and skipped words, maybe unscaled."""
    shutil.copytree(COLBERT, folder)
    alter(folder, TEXT, document_length=14, max_seq_length=16, query_expansion=expansion or ...)
    if not expansion:
        alter(folder, TEXT, query_length=12)
    alter(folder, SENTENCE, prompts={"query": "[MASK] ", "document": "dog "})
    alter(folder, MASK, skiplist_words=WORDS)
    if not normalize:
        # Transformer, Dense, MultiVectorMask, Normalize
        modules = json.loads((folder / "modules.json").read_text())
        shutil.rmtree(folder / modules[3]["path"])
        (folder / "modules.json").write_text(json.dumps(modules[:3]))
    return folder
