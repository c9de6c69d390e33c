"""``MultiVectorEncoder``: texts to one vector per token, for ``late_interaction.py``.

    encoder = MultiVectorEncoder.load("path/to/colbert")
    queries, documents = encoder.encode(["a cat?"], query=True), encoder.encode(["A cat sits.", "Rain."])
    encoder.top_k(queries, documents, 1)  # scores and places, (1, 1) each

Each token's state goes through one layer without a bias and is scaled to length 1. A query may be filled up with [MASK]
tokens, which mostly weigh its own words (Giacalone and Zanibbi 2024); a document's punctuation is dropped. Folders
are those of sentence-transformers' class of the same name; ``multi_vector_files.py`` reads them and two older layouts.
"""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, reading
from minisbert.core.bert import Bert
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize as unit
from minisbert.core.tokenizer import pad_batch
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.settings import CONFIG, TEXT_FILES, WEIGHTS, parse_settings
from minisbert.folder.weights import save_bert, write_safetensors
from minisbert.models.batching import budgeted_batches
from minisbert.models.guards import check_ids
from minisbert.models.layout import dense_settings, write_modules, write_settings
from minisbert.models.multi_vector_settings import Expansion, LateSettings, add_markers, load_parts, read_late
from minisbert.models.pooling import Dense, Pooling, sentence_width
from minisbert.models.prompts import QUERY_PROMPTS, with_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.text_encoder import BATCH_TOKENS
from minisbert.models.tokenizer import KEPT, Tokenizer
from minisbert.search.late_interaction import Matrices, late_top_k
from minisbert.system.console import Progress
from minisbert.system.files import write_json

TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


class MultiVectorEncoder(SentenceEncoder):
    """``encode`` gives ``Matrices``: of each text one vector per token, of length 1."""

    searched: ClassVar[dict[str, Any]] = {"convert": "matrices"}
    top_k = staticmethod(late_top_k)
    to_tensors, from_tensors = staticmethod(Matrices.tensors), staticmethod(Matrices.from_tensors)

    def __init__(self, tokenizer: Tokenizer, bert: Bert, dense: Dense, settings: LateSettings, normalize: bool = True):
        super().__init__(tokenizer, bert, Pooling("mean"), normalize, [], settings)
        self.projection = dense
        self.width = sentence_width(self.pooling, [dense], bert)
        stated, token_id = settings.query_expansion, tokenizer.backend.token_to_id
        self.expansion = parse_settings(Expansion, (Path(TEXT_FILES[0]), stated)) if stated else None
        known = map(token_id, settings.skiplist_words)
        self.skipped_ids = torch.tensor([token for token in known if token is not None], dtype=torch.long)
        names = [self.expansion.token] if self.expansion and self.expansion.token else ["[MASK]", "<mask>"]
        self.filler = next((token for token in map(token_id, names) if token is not None), None)
        if self.expansion and self.filler is None:
            raise ValueError(f"query_expansion: the tokenizer has no token {' or '.join(names)}")

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> "MultiVectorEncoder":
        if pooling is not None:
            raise InputError(f"pooling {pooling}: {folder.path} is a MultiVectorEncoder, which pools nothing")
        settings, markers, normalize = read_late(folder)
        bert, dense = load_parts(folder)
        tokenizer = Tokenizer.load(folder.encoder, limit)
        add_markers(tokenizer, markers)
        tokenizer.kept |= {name: value for name in KEPT if (value := getattr(settings, name))}
        with reading(folder.path):
            return cls(tokenizer, bert, dense, settings, normalize).eval()

    @classmethod
    def around(cls, encoder: SentenceEncoder, width: int = 128) -> "MultiVectorEncoder":
        """An encoder to be trained: a new projection, as in sentence-transformers without fillers and skipped words."""
        dense = Dense(encoder.hidden_size, width, bias=False, activation="identity").to(encoder.device)
        return cls(encoder.tokenizer, encoder.bert, dense, LateSettings(prompts=encoder.settings.prompts))

    @property
    def pooling_mode(self) -> str:
        return "no"

    def rows_of(self, texts: Sequence[str], query: bool) -> tuple[list[list[int]], list[int], int]:
        """Ids of each text, a query's fillers included, how many are its own, and how many texts were cut."""
        tokenizer, more = copy.copy(self.tokenizer), self.expansion if query else None
        limit = self.settings.query_length if query else self.settings.document_length
        if more:
            limit = more.length if more.strategy == "fixed" else max(limit or tokenizer.limit, more.length)
        tokenizer.limit = min(limit or tokenizer.limit, self.bert.config.positions)
        encoded = tokenizer.encode(texts)
        filled = [ids + [self.filler] * (more.length - len(ids)) if more else ids for ids in encoded.ids]
        return filled, [*map(len, encoded.ids)], encoded.truncated

    def forward(self, rows: list[list[int]], own: list[int], query: bool) -> tuple[Tensor, Tensor]:
        """Vectors (B, T, K) and which of them are compared, (B, T), of texts as ``rows_of`` gives them."""
        ids, _ = pad_batch(rows, self.tokenizer.pad_id)  # (B, T)
        ids = ids.to(self.device)
        place = torch.arange(ids.shape[1], device=self.device)
        real = place < torch.tensor([*map(len, rows)], device=self.device)[:, None]  # (B, T), with fillers
        # subtle: a filler that nobody attends to still has a vector, for it looks at the query's own tokens itself
        seen = real if not self.expansion or self.expansion.attend else place < torch.tensor(own).to(ids)[:, None]
        check_ids(self.bert.config, ids, ids.shape[1])
        hidden = self.bert(ids, seen if query else real)  # (B, T, D)
        with torch.autocast(self.device.type, enabled=False):  # the projection, as pooling, is never in bfloat16
            vectors = self.projection(hidden.to(self.dtype))
        return unit(vectors) if self.normalize else vectors, self.compared(ids, real, query)

    def compared(self, ids: Tensor, real: Tensor, query: bool) -> Tensor:
        """Which of the real tokens of ids (B, T) are compared: in documents usually all but punctuation."""
        skips = ("query" if query else "document") in self.settings.skiplist_tasks
        return real & ~torch.isin(ids, self.skipped_ids.to(ids.device)) if skips else real

    def encode(
        self,
        texts: Sequence[str],
        batch_tokens: int = BATCH_TOKENS,
        progress: bool | Progress = False,
        *,
        query: bool | None = None,
        precision: str | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        convert: str = "matrices",
        **options: Any,
    ) -> Matrices:
        """Texts -> ``Matrices``. ``query`` says whether they are queries or documents; by default the prompt does.

        Raises ``InputError`` as ``SentenceEncoder.encode`` does, and for its options that need a vector per text.
        """
        wrong = [name for name, value in options.items() if value not in (None, "sentence")]
        if wrong or convert != "matrices":
            raise InputError(f"{', '.join(wrong or ['convert'])}: a MultiVectorEncoder has a vector per token, not one")
        prompts = {name: self.settings.prompts[name] for name in QUERY_PROMPTS if self.settings.prompts.get(name)}
        if query is None:
            query = prompt_name in QUERY_PROMPTS or prompt in prompts.values()
        if query and prompt is None and prompt_name is None:
            prompt_name = next(iter(prompts), None)
        texts, _ = with_prompt(check_texts(texts), self.settings, self.tokenizer, prompt, prompt_name)
        rows, own, self.truncated = self.rows_of(texts, query)
        found: dict[int, Tensor] = {}
        shown = nullcontext(progress) if isinstance(progress, Progress) else Progress(len(texts), progress)
        with self.computing(precision), shown as line:
            line.expect(len(texts), sum(map(len, rows)))
            for batch in budgeted_batches([*map(len, rows)], batch_tokens):
                parts = self([rows[i] for i in batch], [own[i] for i in batch], query)
                for text, vectors, counted in zip(batch, *parts, strict=True):
                    found[text] = vectors[counted].cpu()
                line.update(sum(len(rows[i]) for i in batch))
        matrices = Matrices.of([found[i].numpy() for i in range(len(texts))], self.width)
        if not np.isfinite(matrices.rows).all():
            raise InputError("a token's vector holds NaN or infinity: the model's weights are too large")
        return matrices

    def similarity(self, a: Matrices, b: Matrices) -> np.ndarray:
        """``max_sim`` of every text of a, as a query, with every one of b: (N, M)."""
        return np.stack([b.scores(a[i]) for i in range(len(a))]) if len(a) else np.empty((0, len(b)), np.float32)

    def write(self, folder: Path) -> None:
        """The model's files into an empty folder."""
        save_bert(self.bert, folder)
        self.tokenizer.save(folder)
        normalize = ["Normalize"] * self.normalize
        _, dense, *between, mask = write_modules(folder, ["Transformer", "Dense", *normalize, "MultiVectorMask"])
        write_json(folder / dense / CONFIG, dense_settings(self.projection) | TOKENS)
        write_safetensors(self.projection.state_dict(), folder / dense / WEIGHTS)
        for place in between:
            write_json(folder / place / CONFIG, TOKENS)
        keys = ("skiplist_words", "skiplist_tasks", "keep_only_token_ids")
        write_json(folder / mask / CONFIG, {key: getattr(self.settings, key) for key in keys})
        write_settings(self, folder, model_type="MultiVectorEncoder")
