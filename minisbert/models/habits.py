"""Advice for sentence-transformers' habits: what a call of theirs that fails here is called instead.

Three tables, of names in the package, of methods, and of options. Each error that is raised from them is the one that
Python would raise, with the way out in its message. Imports nothing, since the package asks before torch is imported.
"""

import sys
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from opcode import opname
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

TRAINING = "minisbert train, or the loop minisbert.core.loop.fit around your own code; docs/training.md"
PROCESSES = "docs/engines.md encodes in many processes with Ray, Spark or datasets"
CARDS = "model cards are not written; leave it out"
HUB = "encoder.save(folder), then in a shell: hf upload NAME FOLDER"
MODULES_ADVICE = "encoder.bert is the encoder, encoder.pooling and encoder.dense are what follows it"
NO_PROMPTS = "a model of pairs has none: put it before the texts, predict([(prompt + query, text), ...])"
ADAPTER_METHODS = (
    *("load_adapter", "set_adapter", "enable_adapters", "disable_adapters", "active_adapters", "active_adapter"),
    *("delete_adapter", "get_adapter_state_dict"),
)
EVALUATORS = "minisbert.evaluation.evaluators for lists in memory, minisbert evaluate for files"

NAMES = {
    "SentenceTransformer": 'use minisbert.SentenceEncoder.load("name")',
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
}
for kind in ("SentenceTransformer", "CrossEncoder", "SparseEncoder", "MultiVectorEncoder"):
    NAMES[f"{kind}Trainer"] = f"use {TRAINING}"
    NAMES[f"{kind}TrainingArguments"] = f"use the options of {TRAINING}"
# in evaluation
for task in "EmbeddingSimilarity InformationRetrieval BinaryClassification Triplet Reranking LabelAccuracy".split():
    NAMES[f"{task}Evaluator"] = f"use {EVALUATORS}"

METHODS = {
    "encode": "a CrossEncoder scores pairs: predict(pairs); its encoder is model.encoder",
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
    "num_labels": "use len(model.labels), 0 for a single score",
    "config": "use encoder.bert.config",
    "default_activation_function": "use activation_fn, which is None for the task's own: model.task",
    "get_default_activation_fn": "use activation_fn, which is None for the task's own: model.task",
    "prompts": NO_PROMPTS,
    "default_prompt_name": NO_PROMPTS,
    "splade_pooling_chunk_size": "the pooling reads text by text; leave it out",
    "backend": "there is one, PyTorch; minisbert.load(name, compiled=True) opens a compiled model",
    "supports": "a model reads texts and nothing else; leave it out",
    "modalities": "a model reads texts and nothing else; leave it out",
    "is_singular_input": "a model reads texts: isinstance(texts, str)",
    "model_type": "use type(model).__name__",
    "get_model_kwargs": "encode and predict take the options in their signatures, no others",
    "SUPPORTED_SIMILARITY_FN_NAMES": 'they are "cosine", "dot", "euclidean" and "manhattan"',
    "merge": "average the tensors of two state_dict() yourself, and load_state_dict the result",
    **dict.fromkeys(ADAPTER_METHODS, "merge the adapter into its model with peft, then load the merged folder"),
    "decode": "a SparseEncoder has it, and a tokenizer is encoder.tokenizer.backend",
    "sparsity": "a SparseEncoder has it; of other vectors no number is 0",
    "intersection": "a SparseEncoder has it; columns of other vectors are no words",
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
    "compiled": "minisbert.load(name, compiled=True) opens a compiled encoder",
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

PASSED = {  # options that encode takes: advice for functions that pass nothing on
    "prompt": "encode takes it; for pairs put it before the texts, predict([(prompt + query, text), ...])",
    "prompt_name": "encode takes it; for pairs put a prompt before the texts, predict([(prompt + query, text), ...])",
    "convert_to_numpy": "encode and predict take it; numbers are plain here, so leave it out",
    "convert_to_tensor": "encode and predict take it; numbers are plain here, so leave it out",
    "apply_softmax": "predict takes it; of a single score the softmax is 1, so leave it out",
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
    kinds = [each.kind for each in parameters.values()]
    places = kinds.count(Parameter.POSITIONAL_OR_KEYWORD)
    advice = OPTIONS
    if Parameter.VAR_KEYWORD not in kinds:
        advice = OPTIONS | PASSED

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if len(args) > places:
            raise TypeError(f"{function.__name__}() takes its options by name, such as batch_size=32")
        for name in advice.keys() & options.keys() - parameters.keys():
            if options[name] is not None and options[name] is not False:
                raise TypeError(f"{function.__name__}() has no option {name!r}: {advice[name]}")
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
