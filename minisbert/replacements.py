"""What to use here in place of sentence-transformers' names: one table, read by every error.

A name that sentence-transformers 6.2 has and this package does not is an error that says what does
the same here; a name that is close to one of ours is an error that says which was meant. Package,
``util``, models, the keywords of functions and the page docs/from-sentence-transformers.md read the
same table. Nothing is imported from the package, because the package imports this file first.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# How alike two names are, from 0 to 1, if one may be the other misspelt.
MISSPELT = 0.75

# What a sampler without duplicates is for.
SHARED_TEXTS = "nothing: with `ranking` and `simcse`, rows that share a text are never in one batch"

# ``from sentence_transformers import NAME``.
PACKAGE = {
    "SentenceTransformer": '`SentenceEncoder.load("name")`',
    "SentenceTransformerTrainer": "`minisbert.train.train`, or the command `minisbert train`",
    "SentenceTransformerTrainingArguments": "the arguments of `minisbert.train.train`",
    "SentenceTransformerModelCardData": "`save`, which writes the card",
    "CrossEncoderTrainer": "`minisbert train --head cross-encoder`",
    "CrossEncoderTrainingArguments": "the options of `minisbert train --head cross-encoder`",
    "SparseEncoderTrainer": "sentence-transformers, whose folder opens here",
    "MultiVectorEncoderTrainer": "sentence-transformers, whose folder opens here",
    "InputExample": "a tuple of the texts and their score, or a file with a header",
    "SentencesDataset": "a list of tuples, or a file with a header",
    "ParallelSentencesDataset": "sentence-transformers, whose folder opens here",
    "SimilarityFunction": 'its name: `"cosine"`, `"dot"`, `"euclidean"` or `"manhattan"`',
    "LoggingHandler": "the handlers of `logging`",
    "quantize_embeddings": (
        '`encode(texts, precision="int8")`, or `minisbert.search.quantized.quantize`'
    ),
    "mine_hard_negatives": "`util.mine_hard_negatives(pairs, encoder, corpus)`",
    "resolve_ids": "texts in place of ids",
    "export_optimized_onnx_model": "the command `minisbert export-onnx`",
    "export_dynamic_quantized_onnx_model": "the command `minisbert export-onnx`",
    "export_static_quantized_openvino_model": "the command `minisbert compile`",
    "DefaultBatchSampler": SHARED_TEXTS,
    "losses": "`minisbert.core.losses`, or the option `--loss` of `minisbert train`",
    "datasets": "the rows of a .tsv, .csv or .jsonl file with a header",
    "readers": "the rows of a .tsv, .csv or .jsonl file with a header",
    "sampler": SHARED_TEXTS,
    "trainer": "`minisbert.train.train`",
    "training_args": "the arguments of `minisbert.train.train`",
    "quantization": "`minisbert.search.quantized`",
    "similarity_functions": "`util`",
    "cross_encoder": "`from minisbert import CrossEncoder`",
    "sparse_encoder": "`from minisbert import SparseEncoder`",
}
# ``from sentence_transformers.models import NAME``.
MODULES = {
    "Transformer": '`SentenceEncoder.load("name", pooling="mean")`',
    "Pooling": '`SentenceEncoder.load("name", pooling="mean")`, or `minisbert.models.pooling`',
    "Normalize": "`encode(texts, normalize_embeddings=True)`, or `encoder.normalize = True`",
    "Dense": "`minisbert.models.pooling.Dense`",
    "StaticEmbedding": '`StaticEncoder.load("name")`',
    "SpladePooling": '`SparseEncoder.load("name")`',
    "Router": "sentence-transformers: a model with a Router does not open here",
}
# ``from sentence_transformers.evaluation import NAME``.
EVALUATION = {
    "EmbeddingSimilarityEvaluator": "`minisbert.evaluation.evaluators`",
    "BinaryClassificationEvaluator": "`minisbert.evaluation.evaluators`",
    "TripletEvaluator": "`minisbert.evaluation.evaluators`",
    "InformationRetrievalEvaluator": "`minisbert.evaluation.retrieval.retrieval_scores`",
    "NanoBEIREvaluator": "`minisbert evaluate --queries --corpus --qrels`",
    "SimilarityFunction": 'its name: `"cosine"`, `"dot"`, `"euclidean"` or `"manhattan"`',
    "SequentialEvaluator": "a loop over the evaluators",
    "LabelAccuracyEvaluator": "`model.predict(pairs).argmax(1)` beside the labels",
    "ParaphraseMiningEvaluator": "that evaluator on `as_sentence_transformer(encoder)`",
    "RerankingEvaluator": "that evaluator on `as_sentence_transformer(encoder)`",
    "TranslationEvaluator": "that evaluator on `as_sentence_transformer(encoder)`",
    "MSEEvaluator": "that evaluator on `as_sentence_transformer(encoder)`",
}
# Keywords of an evaluator's constructor.
EVALUATOR = {
    "name": "nothing: no name stands before the keys of the results",
    "batch_size": "nothing: texts are encoded in batches of the default size",
    "write_csv": "nothing: no file is written, and the results are returned",
    "main_similarity": "`encoder.similarity_fn_name`",
    "main_similarity_function": "`encoder.similarity_fn_name`",
    "main_distance_function": "`encoder.similarity_fn_name`",
    "similarity_fn_names": '`evaluator.compute_metrics(encoder, ["cosine", "dot"])`',
    "truncate_dim": "`encoder.truncate_dim = 64`",
    "precision": "sentence-transformers' evaluator on `as_sentence_transformer(encoder)`",
    "margin": "nothing: the positive must be closer than the negative, by any margin",
}
# ``util.NAME``.
UTIL = {
    "pytorch_cos_sim": "`util.cos_sim`",
    "euclidean_sim": '`similarity` with `encoder.similarity_fn_name = "euclidean"`',
    "manhattan_sim": '`similarity` with `encoder.similarity_fn_name = "manhattan"`',
    "pairwise_cos_sim": "`encoder.similarity_pairwise`",
    "pairwise_dot_score": (
        '`encoder.similarity_pairwise` with `encoder.similarity_fn_name = "dot"`'
    ),
    "pairwise_euclidean_sim": (
        '`encoder.similarity_pairwise` with `encoder.similarity_fn_name = "euclidean"`'
    ),
    "pairwise_manhattan_sim": (
        '`encoder.similarity_pairwise` with `encoder.similarity_fn_name = "manhattan"`'
    ),
    "pairwise_angle_sim": "sentence-transformers: no loss here needs it",
    "maxsim": "`MultiVectorEncoder.similarity`",
    "maxsim_pairwise": "`MultiVectorEncoder.similarity_pairwise`",
    "mean_maxsim": "sentence-transformers: `maxsim` is the only one here",
    "mean_maxsim_pairwise": "sentence-transformers: `maxsim` is the only one here",
    "paraphrase_mining_embeddings": "`minisbert.search.dense.closest_pairs(vectors, k)`",
    "information_retrieval": "`util.semantic_search`",
    "semantic_search_faiss": "`util.semantic_search`, or faiss on the array that `encode` returns",
    "semantic_search_usearch": (
        "`util.semantic_search`, or usearch on the array that `encode` returns"
    ),
    "quantize_embeddings": (
        '`encode(texts, precision="int8")`, or `minisbert.search.quantized.quantize`'
    ),
    "normalize_embeddings": (
        "`encode(texts, normalize_embeddings=True)`, or `minisbert.core.encoder.normalize`"
    ),
    "truncate_embeddings": "`encode(texts, truncate_dim=64)`, or `vectors[:, :64]`",
    "SimilarityFunction": 'its name: `"cosine"`, `"dot"`, `"euclidean"` or `"manhattan"`',
    "batch_to_device": "`tensor.to(device)`",
    "to_scipy_coo": "`scipy.sparse.csr_array(encoder.encode(texts))`",
    "select_max_active_dims": "`SparseEncoder.encode(texts, max_active_dims=64)`",
    "http_get": "the command `minisbert assets`, or `urllib.request.urlretrieve`",
    "LoggingHandler": "the handlers of `logging`",
    "is_sentence_transformer_model": "`minisbert.load`, whose error says what a folder lacks",
    "load_dir_path": "`huggingface_hub.snapshot_download`",
    "load_file_path": "`huggingface_hub.hf_hub_download`",
    "get_device_name": "`encoder.device`",
    "resolve_ids": "texts in place of ids",
}
# ``model.NAME``, a method or an attribute.
MODEL = {
    "fit": "`minisbert.train.train(encoder, rows)`, or the command `minisbert train`",
    "old_fit": "`minisbert.train.train(encoder, rows)`, or the command `minisbert train`",
    "evaluate": "`evaluator(encoder)`",
    "encode": "`predict` of a `CrossEncoder`, for pairs; vectors of texts come from an encoder",
    "push_to_hub": "`save`, then `hf upload`",
    "save_to_hub": "`save`, then `hf upload`",
    "model_card_data": "`save`, which writes the card",
    "encode_multi_process": "`minisbert.integrations.engines.EncodeBatch`",
    "start_multi_process_pool": "`minisbert.integrations.engines.EncodeBatch`",
    "stop_multi_process_pool": "`minisbert.integrations.engines.EncodeBatch`",
    "encode_queries": "`encode_query`",
    "encode_corpus": "`encode_document`",
    "preprocess": "`tokenize`",
    "processor": "`tokenizer`",
    "get_max_seq_length": "`max_seq_length`",
    "truncate_embeddings": "`encode(texts, truncate_dim=64)`, or `encoder.truncate_dim = 64`",
    "truncate_sentence_embeddings": (
        "`encode(texts, truncate_dim=64)`, or `encoder.truncate_dim = 64`"
    ),
    "set_pooling_include_prompt": "`include_prompt` in the folder's 1_Pooling/config.json",
    "get_sentence_features": "`tokenize`",
    "auto_model": "`encoder.bert`",
    "transformers_model": "`encoder.bert`",
    "model": "`model.encoder.bert` of a `CrossEncoder`",
    "config": "`encoder.bert.config`, or `model.encoder.bert.config` of a `CrossEncoder`",
    "_first_module": "`encoder.bert` and `encoder.tokenizer`",
    "_last_module": "`encoder.pooling`, or `encoder.dense`",
    "_target_device": "`encoder.device`",
    "gradient_checkpointing_enable": "`minisbert.train.train(encoder, rows, micro_tokens=4096)`",
    "add_adapter": "modules of your own in `encoder.bert`",
    "load_adapter": "a folder into which the adapter has been merged",
    "get_backend": "torch, which is the only one",
    "get_model_kwargs": "the signature of `encode`",
    "modalities": "texts, which are the only one",
    "supports": "texts, which are the only modality",
    "num_labels": "`len(model.labels)` of a `CrossEncoder`; a score without labels is one number",
    "default_activation_function": "`model.activation_fn`",
    "get_default_activation_fn": "`model.activation_fn`",
    "sparsity": "`(vectors != 0).sum(1)`",
    "intersection": "`one * other`, of two vectors",
    "splade_pooling_chunk_size": "nothing: texts are pooled one by one",
    "batch_size": "`encode(texts, batch_size=8)`",
    "show_progress_bar": "`encode(texts, show_progress_bar=True)`",
    "normalize_embeddings": "`encode(texts, normalize_embeddings=True)`, or `encoder.normalize`",
}
# Keywords of a model's constructor there, of ``load`` here.
LOAD = {
    "model_name_or_path": "the name as the first argument",
    "modules": (
        '`SentenceEncoder.load("name", pooling="mean")`, or the constructor with a `ModelPooling`'
    ),
    "revision": '`load("owner/name@main")`',
    "token": "the environment variable `HF_TOKEN`",
    "use_auth_token": "the environment variable `HF_TOKEN`",
    "cache_folder": (
        "the environment variable `HF_HOME` for models of the Hub, `MINISBERT_HOME` for the "
        "project's own"
    ),
    "local_files_only": "the environment variable `HF_HUB_OFFLINE=1`",
    "trust_remote_code": "nothing: the code of a folder never runs",
    "backend": "`minisbert.load(name, compiled=True)`, or the command `minisbert export-onnx`",
    "model_kwargs": (
        '`encode(texts, dtype="bfloat16")`, or `minisbert.load(name, compiled=True, dtype="int8")`'
    ),
    "torch_dtype": '`encode(texts, dtype="bfloat16")`',
    "automodel_args": '`encode(texts, dtype="bfloat16")`',
    "processor_kwargs": "`load(name, max_seq_length=256)`",
    "tokenizer_kwargs": "`load(name, max_seq_length=256)`",
    "tokenizer_args": "`load(name, max_seq_length=256)`",
    "config_kwargs": "the settings in the folder's config.json",
    "config_args": "the settings in the folder's config.json",
    "model_card_data": "`save`, which writes the card",
    "num_labels": "the command `minisbert train --head cross-encoder`",
    "automodel_kwargs": '`encode(texts, dtype="bfloat16")`',
    "default_activation_function": "`activation_fn`",
    "max_active_dims": "`SparseEncoder.load(name, max_active_dims=64)`",
    "activation_fn": "`CrossEncoder.load(name, activation_fn=torch.nn.Identity())`",
    "normalize_embeddings": "`encode(texts, normalize_embeddings=True)`",
    "batch_size": "`encode(texts, batch_size=8)`",
}
# Keywords of ``save``.
SAVE = {
    "model_name": "nothing: the card names the model that was loaded",
    "create_model_card": "nothing: the card is written unless the folder has one of yours",
    "train_datasets": "nothing: `minisbert train` writes the data into the card",
    "safe_serialization": "nothing: weights are always written as safetensors",
}
# Keywords of ``encode``, ``predict`` and ``rank``.
ENCODE = {
    "inputs": "the texts, or the pairs, as the first argument",
    "sentences": "the texts, or the pairs, as the first argument",
    "sentence_pairs": "the pairs as the first argument",
    "device": "the device of `load`, or `encoder.to(device)`",
    "target_devices": "`minisbert.integrations.engines.EncodeBatch`",
    "pool": "`minisbert.integrations.engines.EncodeBatch`",
    "chunk_size": "`encode_stream(texts)`, which yields a part after the other",
    "task": "`encode_query` or `encode_document`, or `prompt_name`",
    "processing_kwargs": "`encoder.max_seq_length = 256`",
    "save_to_cpu": "nothing: results are on the CPU",
    "is_pretokenized": "texts: tokens are made by the model's own tokenizer",
    "num_workers": "nothing: the tokenizer has threads of its own",
    "convert_to_sparse_tensor": "a `SparseEncoder`, which has it",
    "max_active_dims": "a `SparseEncoder`, which has it",
    "token_pooling": "nothing: every token that is compared keeps its vector",
    "query_prompt": "the prompt in front of the text",
    "prompt": "the prompt in front of the texts: a cross-encoder has none",
    "prompt_name": "the prompt in front of the texts: a cross-encoder has none",
    "activation_fct": "`activation_fn`",
    "docs": "`documents`",
    "max_length": "`load(name, max_seq_length=256)`, or `encoder.max_seq_length = 256`",
    "max_seq_length": "`load(name, max_seq_length=256)`, or `encoder.max_seq_length = 256`",
}
# Keywords of ``util.semantic_search``.
SEMANTIC_SEARCH = {
    "query_chunk_size": "nothing: the size of a block is chosen so that it is fast",
    "corpus_chunk_size": "nothing: the size of a block is chosen so that it is fast",
}
# Keywords of ``util.paraphrase_mining``.
PARAPHRASE_MINING = {
    "query_chunk_size": "nothing: the size of a block is chosen so that it is fast",
    "corpus_chunk_size": "nothing: the size of a block is chosen so that it is fast",
    "top_k": "`max_pairs`: all pairs are compared",
    "score_function": "`encoder.similarity_fn_name`",
}
# Keywords of ``util.community_detection``.
COMMUNITY_DETECTION = {
    "batch_size": "nothing: the size of a block is chosen so that it is fast",
    "show_progress_bar": "nothing: there is no bar",
}
# Keywords of ``util.mine_hard_negatives``.
MINE_HARD_NEGATIVES = {
    "dataset": "pairs as the first argument: `[(anchor, positive), ...]`",
    "anchor_column_name": "pairs as the first argument: `[(anchor, positive), ...]`",
    "positive_column_name": "pairs as the first argument: `[(anchor, positive), ...]`",
    "cross_encoder": "`CrossEncoder.predict` of the anchors and negatives",
    "sampling_strategy": "nothing: the negatives closest to the anchor are taken",
    "output_format": "triplets, which are what it returns",
    "as_triplets": "triplets, which are what it returns",
    "include_positives": "triplets, which have the positive",
    "output_scores": "`encoder.similarity_pairwise` of the anchors and negatives",
    "use_faiss": "nothing: the search is exact, and needs no faiss",
    "faiss_batch_size": "nothing: the search is exact, and needs no faiss",
    "batch_size": "nothing: texts are encoded in batches of the default size",
    "use_multi_process": "nothing: one process searches",
    "margin": "`absolute_margin`",
    "verbose": "`show_progress_bar=True`",
    "query_prompt": "the model's prompts: `encoder.prompts`",
    "query_prompt_name": "the model's prompts: `encoder.prompts`",
    "corpus_prompt": "the model's prompts: `encoder.prompts`",
    "corpus_prompt_name": "the model's prompts: `encoder.prompts`",
}
# Keywords of ``train``: those of sentence-transformers' trainer and of its training arguments.
TRAIN = {
    "args": "the settings by name: `train(encoder, rows, epochs=3, lr=5e-5)`",
    "train_dataset": "the rows as the second argument",
    "train_objectives": "the rows as the second argument, and `loss`",
    "eval_dataset": "`dev`",
    "evaluator": "`dev`, the rows to score",
    "callbacks": "`callback`, a function of the step and the dev scores",
    "learning_rate": "`lr`",
    "num_train_epochs": "`epochs`",
    "per_device_train_batch_size": "`batch_size`",
    "gradient_accumulation_steps": "`micro_tokens`, which divides the batch",
    "warmup_steps": "`warmup`, a number of steps or a part of them",
    "warmup_ratio": "`warmup`, a number of steps or a part of them",
    "lr_scheduler_type": "`schedule`",
    "scheduler": "`schedule`",
    "max_grad_norm": "`clip`",
    "bf16": '`dtype="bfloat16"`',
    "fp16": '`dtype="bfloat16"`',
    "use_amp": '`dtype="bfloat16"`',
    "eval_steps": "`eval_every`",
    "evaluation_steps": "`eval_every`",
    "save_steps": "`save_every`",
    "checkpoint_save_steps": "`save_every`",
    "logging_steps": "`log_every`",
    "output_dir": "`out`",
    "output_path": "`out`",
    "resume_from_checkpoint": "`resume=True`, with `out`",
    "load_best_model_at_end": "nothing: the weights that are best on `dev` are returned",
    "save_best_model": "nothing: the weights that are best on `dev` are returned",
    "batch_sampler": SHARED_TEXTS,
    "prompts": "the prompt in front of the texts",
}


# ``model.NAME = value``, where NAME is no setting of a model.
ASSIGNMENTS = {
    "device": "`encoder.to(device)`",
    "dtype": '`encoder.double()`, or `encode(texts, dtype="bfloat16")`',
    "batch_size": "`encode(texts, batch_size=8)`",
    "show_progress_bar": "`encode(texts, show_progress_bar=True)`",
    "precision": '`encode(texts, precision="int8")`',
    "output_value": '`encode(texts, output_value="token_embeddings")`',
    "convert_to_tensor": "`encode(texts, convert_to_tensor=True)`",
    "convert_to_numpy": "`encode(texts, convert_to_numpy=False)`",
    "normalize_embeddings": "`encode(texts, normalize_embeddings=True)`",
    "prompt": '`encode(texts, prompt="query: ")`, or `encoder.prompts` and `default_prompt_name`',
    "prompt_name": "`encoder.default_prompt_name`",
}


def advice(table: Mapping[str, str], name: str, known: Iterable[str] = ()) -> str | None:
    """Say what to write in place of a name; None if nothing here is like it.

    ``known`` are the names that may have been meant.
    """
    if name in table:
        replacement = table[name].replace("`", "")
        if replacement.startswith("nothing: "):
            return "leave it out: " + replacement.removeprefix("nothing: ")
        return f"use {replacement}"
    alike = get_close_matches(name, list(known), n=1, cutoff=MISSPELT)
    if alike:
        return f"did you mean {alike[0]}?"
    return None


def missing_from_module(
    module: str, table: Mapping[str, str], name: str, known: Iterable[str] = ()
) -> Exception:
    """Make the error for a name that a module does not have; ``known`` are those that it has."""
    instead = advice(table, name, known)
    if name in table:
        # An ImportError: ``from module import name`` would not show an AttributeError's message.
        return ImportError(f"{module} has no {name}: {instead}; docs/from-sentence-transformers.md")
    message = f"module {module!r} has no attribute {name!r}"
    if instead is not None:
        message += f": {instead}"
    return AttributeError(message)


def check_keywords(
    function: str, keywords: Iterable[str], known: Collection[str], table: Mapping[str, str]
) -> None:
    """Raise ``TypeError`` for a keyword that is not one of those that a function has, ``known``."""
    for name in keywords:
        if name not in known:
            instead = advice(table, name, known)
            if instead is None:
                instead = f"it has {', '.join(known)}"
            raise TypeError(f"{function} has no argument {name}: {instead}")


def keywords_of(function: Callable[..., Any]) -> list[str]:
    """List the arguments of a function that may be named, without ``self`` and ``cls``."""
    names = []
    for parameter in inspect.signature(function).parameters.values():
        may_be_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if may_be_named and parameter.name not in ("self", "cls"):
            names.append(parameter.name)
    return names


def explained(
    table: Mapping[str, str], inner: Callable[..., Any] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, so that a keyword that it does not have is explained by a table.

    ``inner`` is the function to which it hands its other keywords, if there is one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = keywords_of(function)
        if inner is not None:
            known += keywords_of(inner)

        @wraps(function)
        def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
            check_keywords(function.__name__, keywords, known, table)
            return function(*arguments, **keywords)

        return checked

    return decorate


def takes_parts(constructor: Callable[P, None]) -> Callable[P, None]:
    """Decorate a model's constructor: called with a model's name, its error says ``load``.

    sentence-transformers' classes are called with a name; here they are called with their parts.
    """
    known = keywords_of(constructor)

    @wraps(constructor)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> None:
        model, *parts = arguments
        name = keywords.get("model_name_or_path")
        if parts:
            name = parts[0]
        if isinstance(name, str | Path):
            raise TypeError(f"use {type(model).__name__}.load({str(name)!r})")
        check_keywords(type(model).__name__, keywords, known, LOAD)
        constructor(*arguments, **keywords)

    return checked
