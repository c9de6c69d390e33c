"""Advice for sentence-transformers' habits: what a call of theirs that fails here is called instead.

Three tables, of names in the package, of methods, and of options. Each error that is raised from them is the one that
Python would raise, with the way out in its message. Imports nothing, since the package asks before torch is imported.
"""

import sys
from collections.abc import Callable
from functools import wraps
from inspect import signature
from opcode import opname
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

TRAINING = "python -m minisbert.train, or the loop minisbert.core.loop.fit around your own code; docs/training.md"
PROCESSES = "docs/engines.md encodes in many processes with Ray, Spark or datasets"
CARDS = "model cards are not written; leave it out"
HUB = "encoder.save(folder), then in a shell: hf upload NAME FOLDER"
MODULES_ADVICE = "encoder.bert is the encoder, encoder.pooling and encoder.dense are what follows it"
EVALUATORS = "minisbert.evaluation.evaluators for lists in memory, minisbert evaluate for files"

NAMES = {
    "SentenceTransformer": 'use minisbert.SentenceEncoder.load("name")',
    "SentenceTransformerTrainer": f"use {TRAINING}",
    "SentenceTransformerTrainingArguments": f"use the options of {TRAINING}",
    "CrossEncoderTrainer": f"use {TRAINING}",
    "CrossEncoderTrainingArguments": f"use the options of {TRAINING}",
    "SparseEncoderTrainer": f"use {TRAINING}",
    "SparseEncoderTrainingArguments": f"use the options of {TRAINING}",
    "MultiVectorEncoderTrainer": f"use {TRAINING}",
    "MultiVectorEncoderTrainingArguments": f"use the options of {TRAINING}",
    "Trainer": f"use {TRAINING}",
    "InputExample": "write the rows into a .tsv, .csv or .jsonl file with a header; docs/training.md lists the columns",
    "SentencesDataset": "write the rows into a file; docs/training.md lists the columns",
    "ParallelSentencesDataset": "write the rows into a file and use the objective distillation; docs/training.md",
    "losses": "minisbert.core.losses has the formulas, --objective chooses one; docs/from-sentence-transformers.md",
    "readers": "minisbert inspect FILE reads a file of your own and names the command that trains on it",
    "datasets": "minisbert inspect FILE reads a file of your own and names the command that trains on it",
    "LoggingHandler": "encode(show_progress_bar=True) draws its own line; no handler is needed",
    "SimilarityFunction": 'use the name: "cosine", "dot", "euclidean" or "manhattan"',
    "SentenceTransformerModelCardData": CARDS,
    "quantize_embeddings": 'use encode(texts, precision="int8"), or minisbert.search.quantized.quantize',
    "export_optimized_onnx_model": "use the command minisbert export-onnx",
    "export_dynamic_quantized_onnx_model": "use the command minisbert export-onnx",
    # in util
    "pytorch_cos_sim": "use util.cos_sim",
    "paraphrase_mining_embeddings": "use minisbert.search.dense.closest_pairs",
    "truncate_embeddings": "use encode(texts, truncate_dim=N)",
    "batch_to_device": "encode moves its batches itself; for one of your own: x.to(encoder.device)",
    "pairwise_dot_score": 'use load(name, similarity_fn_name="dot") and its similarity_pairwise',
    "euclidean_sim": 'use load(name, similarity_fn_name="euclidean") and its similarity',
    "manhattan_sim": 'use load(name, similarity_fn_name="manhattan") and its similarity',
    "get_device_name": 'load(name, device="auto") chooses it',
    "http_get": "minisbert assets fetches models and data sets",
    # in models
    "Transformer": 'SentenceEncoder.load("name", pooling="mean") opens a plain encoder and puts the pooling on it',
    "Pooling": 'use SentenceEncoder.load("name", pooling="mean"), or minisbert.models.pooling.Pooling',
    "Normalize": "use encode(texts, normalize_embeddings=True), or encoder.normalize = True",
    "Dense": "use minisbert.models.pooling.Dense",
    "StaticEmbedding": 'use minisbert.StaticEncoder.load("name")',
    # in evaluation
    "EmbeddingSimilarityEvaluator": f"use {EVALUATORS}",
    "InformationRetrievalEvaluator": f"use {EVALUATORS}",
    "BinaryClassificationEvaluator": f"use {EVALUATORS}",
    "TripletEvaluator": f"use {EVALUATORS}",
    "RerankingEvaluator": f"use {EVALUATORS}",
    "LabelAccuracyEvaluator": f"use {EVALUATORS}",
}

METHODS = {
    "predict": "a CrossEncoder scores pairs: CrossEncoder.load(name).predict(pairs)",
    "rank": "a CrossEncoder ranks texts: CrossEncoder.load(name).rank(query, texts)",
    "max_length": "use max_seq_length",
    "from_pretrained": 'use load("name")',
    "fit": f"use {TRAINING}",
    "old_fit": f"use {TRAINING}",
    "smart_batching_collate": f"use {TRAINING}",
    "evaluate": "call the evaluator: evaluator(encoder)",
    "push_to_hub": HUB,
    "save_to_hub": HUB,
    "start_multi_process_pool": PROCESSES,
    "stop_multi_process_pool": PROCESSES,
    "encode_multi_process": PROCESSES,
    "auto_model": "use encoder.bert",
    "transformers_model": "use encoder.bert",
    "model": "use encoder.bert, of a CrossEncoder encoder.encoder.bert",
    "_first_module": MODULES_ADVICE,
    "_last_module": MODULES_ADVICE,
    "get_max_seq_length": "use the property max_seq_length",
    "get_sentence_features": "use encoder.tokenize(texts)",
    "preprocess": "use encoder.tokenize(texts)",
    "processor": "use encoder.tokenizer",
    "model_card_data": CARDS,
    "truncate_sentence_embeddings": "use encode(texts, truncate_dim=N), or set encoder.truncate_dim",
    "set_pooling_include_prompt": "include_prompt is a setting of the folder, in 1_Pooling/config.json",
    "gradient_checkpointing_enable": "train with --micro-tokens N, which takes less memory for the same gradients",
    "get_backend": "there is one, PyTorch; minisbert.load(name, compiled=True) opens a compiled model",
    "add_adapter": "put your own modules into encoder.bert: they are used",
    "load_adapter": "merge the adapter into its model with peft, then load the merged folder",
    "num_labels": "use len(model.labels), 0 for a single score",
    "config": "use encoder.bert.config",
    "default_activation_function": "use activation_fn",
    "decode": "a SparseEncoder has words(vectors), the heaviest words of each text",
    "sparsity": "count the zeros: (vectors == 0).mean()",
    "save": "a compiled model is a file already: copy its folder and its package",
}

OPTIONS = {
    "sentences": "pass the texts first: encode(texts), predict(pairs)",
    "inputs": "pass the texts first: encode(texts), predict(pairs)",
    "model_name_or_path": 'pass the name first: load("name")',
    "device": "load(name, device=...) chooses the device, model.to(device) another one",
    "pool": PROCESSES,
    "chunk_size": PROCESSES,
    "num_workers": "tokenizing uses all cores by itself; leave it out",
    "trust_remote_code": "a repository's own code never runs; docs/models.md lists the architectures that open",
    "revision": 'write it behind the name: load("owner/name@revision")',
    "cache_folder": "set the environment variable HF_HOME",
    "token": "set the environment variable HF_TOKEN, or run: hf auth login",
    "use_auth_token": "set the environment variable HF_TOKEN, or run: hf auth login",
    "local_files_only": "set the environment variable HF_HUB_OFFLINE=1",
    "backend": "leave it out; minisbert.load(name, compiled=True) is faster, minisbert export-onnx writes ONNX",
    "model_kwargs": 'weights stay in float32; encode(texts, dtype="bfloat16") computes in another dtype',
    "automodel_args": 'weights stay in float32; encode(texts, dtype="bfloat16") computes in another dtype',
    "tokenizer_kwargs": "max_seq_length sets the length; the rest is in the folder's tokenizer_config.json",
    "processor_kwargs": "max_seq_length sets the length; the rest is in the folder's tokenizer_config.json",
    "config_kwargs": "change the folder's config.json",
    "modules": 'SentenceEncoder.load("name", pooling="mean") opens a plain encoder and puts the pooling on it',
    "model_card_data": CARDS,
    "create_model_card": CARDS,
    "train_datasets": CARDS,
    "model_name": CARDS,
    "safe_serialization": "weights are always written as safetensors; leave it out",
    "max_length": "an encoder's limit is max_seq_length, a CrossEncoder's max_length",
    "max_seq_length": "an encoder's limit is max_seq_length, a CrossEncoder's max_length",
    "num_labels": "the head's files say how many; a new head is PairModel(encoder, head, task, labels)",
    "default_activation_function": "use activation_fn",
    "save_to_cpu": "the result is on the CPU; leave it out",
    "query_chunk_size": "the search runs in blocks by itself; leave it out",
    "use_faiss": "the search is exact and in blocks; leave it out",
    "cross_encoder": "not rescored here; score the triplets with CrossEncoder.predict and drop what scores too high",
    "output_format": "triplets are returned, (anchor, positive, negative)",
    "corpus_chunk_size": "the search runs in blocks by itself; leave it out",
}

Function = TypeVar("Function", bound=Callable[..., Any])


def missing_name(module: str, name: str) -> Exception:
    """Return the error for a name that ``module`` lacks, called by the module's ``__getattr__``."""
    if name not in NAMES:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    message = f"{module} has no {name}: {NAMES[name]}"
    # subtle: "from module import name" would put its own message in the place of an AttributeError's. Nobody else gets
    # an ImportError, so that hasattr(module, name) is False and does not raise. A package is asked by importlib, a
    # plain module by the instruction IMPORT_FROM.
    caller = sys._getframe(2)
    instruction = opname[caller.f_code.co_code[caller.f_lasti]]
    if caller.f_code.co_name == "_handle_fromlist" or instruction == "IMPORT_FROM":
        return ImportError(message, name=module)
    return AttributeError(message)


def advised(function: Function) -> Function:
    """Let a function answer options of sentence-transformers that it does not have with advice.

    None and False, which are their defaults, ask for nothing: libraries pass them along, so they are left out.
    """
    parameters = signature(function).parameters

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for name in OPTIONS.keys() & options.keys() - parameters.keys():
            if options[name] is not None and options[name] is not False:
                raise TypeError(f"{function.__name__}() has no option {name!r}: {OPTIONS[name]}")
            del options[name]
        return function(*args, **options)

    return call  # type: ignore[return-value]


class NotOnTheClass:
    """A name that a class has in sentence-transformers: reading it from the class raises ``AttributeError``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__} has no {self.name}: {METHODS[self.name]}")


class Advised:
    """A base of the models: what sentence-transformers' have and these lack ends in an error with advice."""

    @advised
    def save_pretrained(self, folder: str | Path) -> None:
        """Save the model, under the name by which other libraries call ``save``."""
        self.save(folder)  # type: ignore[attr-defined]

    if not TYPE_CHECKING:  # a type checker reports missing names itself, and would take these for any name and call
        from_pretrained = NotOnTheClass()

        def __new__(cls, *args, **options):
            if args and isinstance(args[0], str | Path):
                raise TypeError(f"use {cls.__name__}.load({str(args[0])!r})")
            for name in OPTIONS.keys() & options.keys():
                raise TypeError(f"{cls.__name__}() has no option {name!r}: {OPTIONS[name]}")
            return super().__new__(cls)

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)  # torch's, which knows a module's layers; other classes have none
            except AttributeError:
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in METHODS:
                message = f"{type(self).__name__} has no {name}: {METHODS[name]}"
            raise AttributeError(message, name=name, obj=self)

        def __getitem__(self, index):
            raise TypeError(f"a {type(self).__name__} is not a list of modules: {MODULES_ADVICE}")
