"""What a user of sentence-transformers types: it works, or the error says what to type here.

Each habit is code and what comes of it: "works", or a noun of the message. A habit whose error is
Python's own stands in ``BARE``, at the end.
"""

import copy
import inspect
import pickle
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import minisbert
from minisbert import (
    CrossEncoder,
    MultiVectorEncoder,
    SentenceEncoder,
    SparseEncoder,
    StaticEncoder,
    replacements,
    util,
)
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.static_encoder import distill
from minisbert.train import train
from tests.conftest import ROOT

FOLDERS = ROOT / "tests" / "reference" / "architectures"
TEXTS = ["the cat sits on the mat", "a dog", "a woman eats bread", "moon"]

# Imports.
IMPORTS = [
    ("from minisbert import SentenceTransformer", "SentenceEncoder"),
    ("from minisbert import CrossEncoder, SparseEncoder, util", "works"),
    ("from minisbert import MultiVectorEncoder", "works"),
    ("from minisbert import InputExample", "tuple"),
    ("from minisbert import losses", "--loss"),
    ("from minisbert import evaluation", "works"),
    ("from minisbert import models", "works"),
    ("from minisbert import datasets", "header"),
    ("from minisbert import SentenceTransformerTrainer", "train"),
    ("from minisbert import SentenceTransformerTrainingArguments", "arguments"),
    ("from minisbert import SentenceTransformerModelCardData", "save"),
    ("from minisbert import CrossEncoderTrainer", "cross-encoder"),
    ("from minisbert import CrossEncoderTrainingArguments", "cross-encoder"),
    ("from minisbert import SparseEncoderTrainer", "sentence-transformers"),
    ("from minisbert import MultiVectorEncoderTrainer", "sentence-transformers"),
    ("from minisbert import SimilarityFunction", "cosine"),
    ("from minisbert import LoggingHandler", "logging"),
    ("from minisbert import quantize_embeddings", "precision"),
    ("from minisbert import mine_hard_negatives", "util"),
    ("from minisbert import export_optimized_onnx_model", "export-onnx"),
    ("from minisbert import export_static_quantized_openvino_model", "compile"),
    ("from minisbert import SentencesDataset", "tuples"),
    ("from minisbert import similarity_functions", "util"),
    ("from minisbert import training_args", "arguments"),
    ("from minisbert.util import cos_sim, semantic_search, community_detection", "works"),
    ("from minisbert.util import pairwise_cos_sim", "similarity_pairwise"),
    ("from minisbert.util import mine_hard_negatives, paraphrase_mining", "works"),
    ("from minisbert.util import SimilarityFunction", "cosine"),
    ("from minisbert.evaluation import EmbeddingSimilarityEvaluator", "evaluators"),
    ("from minisbert.evaluation import InformationRetrievalEvaluator", "retrieval_scores"),
    ("from minisbert.evaluation import TripletEvaluator", "evaluators"),
    ("from minisbert.evaluation import LabelAccuracyEvaluator", "argmax"),
    ("from minisbert.models import Transformer", "pooling"),
    ("from minisbert.models import Pooling, Normalize", "pooling"),
    ("minisbert.models.Dense(24, 12)", "Dense"),
    ("minisbert.SentenceEncodre", "SentenceEncoder"),
    ("minisbert.__version__", "works"),
]
# Loading.
LOADS = [
    ("SentenceEncoder(tiny)", "load"),
    ("SentenceEncoder(tiny, device='cpu')", "load"),
    ("SentenceEncoder(model_name_or_path=tiny)", "load"),
    ("SentenceEncoder(modules=[])", "pooling"),
    ("CrossEncoder(tiny)", "load"),
    ("CrossEncoder(tiny, num_labels=1)", "load"),
    ("SparseEncoder(tiny)", "load"),
    ("MultiVectorEncoder(tiny)", "load"),
    ("StaticEncoder(tiny)", "load"),
    ("minisbert.PairModel(tiny)", "load"),
    ("SentenceEncoder.load(tiny, device='cpu')", "works"),
    ("SentenceEncoder.load(tiny, device=None)", "works"),
    ("SentenceEncoder.load(tiny, truncate_dim=8, similarity_fn_name='dot')", "works"),
    ("SentenceEncoder.load(tiny, prompts={'query': 'a '}, default_prompt_name='query')", "works"),
    ("SentenceEncoder.load(tiny, revision='main')", "owner/name@main"),
    ("SentenceEncoder.load(tiny, token='x')", "HF_TOKEN"),
    ("SentenceEncoder.load(tiny, use_auth_token='x')", "HF_TOKEN"),
    ("SentenceEncoder.load(tiny, cache_folder='x')", "HF_HOME"),
    ("SentenceEncoder.load(tiny, local_files_only=True)", "HF_HUB_OFFLINE"),
    ("SentenceEncoder.load(tiny, trust_remote_code=True)", "code"),
    ("SentenceEncoder.load(tiny, backend='onnx')", "compiled"),
    ("SentenceEncoder.load(tiny, model_kwargs={'dtype': 'bfloat16'})", "dtype"),
    ("SentenceEncoder.load(tiny, tokenizer_kwargs={})", "max_seq_length"),
    ("SentenceEncoder.load(tiny, processor_kwargs={})", "max_seq_length"),
    ("SentenceEncoder.load(tiny, config_kwargs={})", "config.json"),
    ("SentenceEncoder.load(tiny, model_card_data=None)", "card"),
    ("SentenceEncoder.load(tiny, max_length=8)", "max_seq_length"),
    ("SentenceEncoder.load(tiny, devise='cpu')", "device"),
    ("minisbert.load(tiny, device=None)", "works"),
    ("minisbert.load(tiny, trust_remote_code=True)", "code"),
    ("minisbert.load(tiny, model_kwargs={})", "dtype"),
    ("CrossEncoder.load(cross, max_length=16, device='cpu')", "works"),
    ("CrossEncoder.load(cross, activation_fn=torch.nn.Identity())", "works"),
    ("CrossEncoder.load(cross, default_activation_function=None)", "activation_fn"),
    ("CrossEncoder.load(cross, automodel_args={})", "dtype"),
    ("CrossEncoder.load(cross, num_labels=3)", "train"),
    ("SparseEncoder.load(splade_folder, max_active_dims=8)", "works"),
    ("SparseEncoder.load(splade_folder, revision='main')", "owner/name@main"),
]
# ``encode``.
ENCODES = [
    ("model.encode('a dog')", "works"),
    ("model.encode(texts, batch_size=2, show_progress_bar=False)", "works"),
    ("model.encode(texts, convert_to_tensor=True)", "works"),
    ("model.encode(texts, normalize_embeddings=True, truncate_dim=8)", "works"),
    ("model.encode(texts, precision='ubinary')", "works"),
    ("model.encode(texts, output_value='token_embeddings')", "works"),
    ("model.encode(texts, output_value=None)", "token_embeddings"),
    ("model.encode(np.array(texts))", "works"),
    ("model.encode(tuple(texts))", "works"),
    ("model.encode(sentences=texts)", "first argument"),
    ("model.encode(inputs=texts)", "first argument"),
    ("model.encode(texts, device='cpu')", "load"),
    ("model.encode(texts, pool=None)", "EncodeBatch"),
    ("model.encode(texts, chunk_size=100)", "encode_stream"),
    ("model.encode(texts, task='query')", "encode_query"),
    ("model.encode(texts, num_workers=2)", "tokenizer"),
    ("model.encode(texts, is_pretokenized=True)", "tokens"),
    ("model.encode(texts, processing_kwargs={})", "max_seq_length"),
    ("model.encode(texts, batch_sise=2)", "batch_size"),
    ("model.encode(texts, max_length=8)", "max_seq_length"),
    ("model.encode_query('a dog', prompt='a ')", "works"),
    ("model.encode_query(inputs='a dog')", "first argument"),
    ("model.encode_document(texts, device='cpu')", "load"),
    ("model.encode_multi_process(texts, pool)", "EncodeBatch"),
    ("model.start_multi_process_pool()", "EncodeBatch"),
    ("model.stop_multi_process_pool(pool)", "EncodeBatch"),
    ("model.encode_queries(texts)", "encode_query"),
    ("model.encode_corpus(texts)", "encode_document"),
    ("model.encoed(texts)", "encode"),
    ("static.encode(texts)", "works"),
    ("static.encode(texts, device='cpu')", "load"),
]
# Attributes and methods of an encoder.
MODELS = [
    ("model.similarity(vectors, vectors)", "works"),
    ("model.similarity_pairwise(vectors, vectors)", "works"),
    ("model.get_embedding_dimension()", "works"),
    ("model.get_sentence_embedding_dimension()", "works"),
    ("model.max_seq_length", "works"),
    ("model.get_max_seq_length()", "max_seq_length"),
    ("model.device, model.dtype", "works"),
    ("model.to('cpu').eval()", "works"),
    ("model.prompts, model.default_prompt_name", "works"),
    ("model.similarity_fn_name, model.truncate_dim", "works"),
    ("model.tokenize(texts)", "works"),
    ("model.preprocess(texts)", "tokenize"),
    ("model.tokenizer", "works"),
    ("model.processor", "tokenizer"),
    ("model[0]", "encoder.bert"),
    ("model[0].auto_model", "encoder.bert"),
    ("model[1].pooling_mode", "encoder.pooling"),
    ("[module for module in model]", "encoder.pooling"),
    ("model._first_module()", "encoder.bert"),
    ("model._target_device", "device"),
    ("model.transformers_model", "encoder.bert"),
    ("model.config", "encoder.bert.config"),
    ("model(model.tokenize(texts))", "features"),
    ("model.save(out)", "works"),
    ("model.save_pretrained(out)", "works"),
    ("model.save_pretrained(out, safe_serialization=True)", "safetensors"),
    ("model.push_to_hub('owner/name')", "upload"),
    ("model.save_to_hub('owner/name')", "upload"),
    ("model.model_card_data", "card"),
    ("model.fit([])", "train"),
    ("model.evaluate(None)", "evaluator"),
    ("model.truncate_embeddings(8)", "truncate_dim"),
    ("model.truncate_sentence_embeddings(8)", "truncate_dim"),
    ("model.set_pooling_include_prompt(False)", "include_prompt"),
    ("model.get_sentence_features(texts)", "tokenize"),
    ("model.gradient_checkpointing_enable()", "micro_tokens"),
    ("model.add_adapter(None)", "modules"),
    ("model.get_backend()", "torch"),
    ("model.modalities", "texts"),
    ("model.half().float()", "works"),
    ("model.parameters()", "works"),
    ("model.state_dict()", "works"),
]
# Settings.
SETS = [
    ("model.max_seq_length = 16", "works"),
    ("model.truncate_dim = 8", "works"),
    ("model.prompts = {'query': 'a '}", "works"),
    ("model.similarity_fn_name = 'dot'", "works"),
    ("model.default_prompt_name = None", "works"),
    ("model.max_seq_lenght = 16", "max_seq_length"),
    ("model.max_length = 16", "max_seq_length"),
    ("model.truncate_dims = 8", "truncate_dim"),
    ("model.prompt = 'a '", "prompts"),
    ("model.batch_size = 3", "encode"),
    ("model.device = 'cpu'", "to"),
    ("model.normalize_embeddings = True", "encode"),
    ("model.similarity_fn = 'dot'", "similarity_fn_name"),
    ("reranker.max_length = 16", "works"),
    ("reranker.max_seq_length = 16", "works"),
    ("reranker.truncate_dim = 8", "setting"),
    ("splade.max_active_dims = 8", "works"),
]
# Cross-encoders.
RERANKS = [
    ("reranker.predict([('a', 'b'), ('c', 'd')])", "works"),
    ("reranker.predict([['a', 'b']], convert_to_tensor=True)", "works"),
    ("reranker.predict(('a', 'b'))", "works"),
    ("reranker.predict([('a', 'b')], activation_fn=torch.nn.Sigmoid(), num_workers=0)", "works"),
    ("reranker.predict([('a', 'b')], activation_fct=torch.nn.Sigmoid())", "activation_fn"),
    ("reranker.predict(sentences=[('a', 'b')])", "first argument"),
    ("reranker.predict(inputs=[('a', 'b')])", "first argument"),
    ("reranker.predict([('a', 'b')], device='cpu')", "load"),
    ("reranker.predict([('a', 'b')], prompt='a ')", "prompt"),
    ("reranker.predict([('a', 'b')], pool=None)", "EncodeBatch"),
    ("reranker.rank('a', texts, top_k=2, return_documents=True)", "works"),
    ("reranker.rank('a', docs=texts)", "documents"),
    ("reranker.rank('a', texts, device='cpu')", "load"),
    ("reranker.rank('a', texts, topk=2)", "top_k"),
    ("reranker.max_length", "works"),
    ("reranker.num_labels", "labels"),
    ("reranker.model", "encoder.bert"),
    ("reranker.config", "encoder.bert.config"),
    ("reranker.tokenizer", "works"),
    ("reranker.default_activation_function", "activation_fn"),
    ("reranker.fit([])", "train"),
    ("reranker.save_pretrained(other_out)", "works"),
    ("reranker.push_to_hub('owner/name')", "upload"),
    ("reranker[0]", "encoder.bert"),
    ("reranker.predit([('a', 'b')])", "predict"),
]
# Sparse vectors, and a vector for each token.
OTHERS = [
    ("splade.encode(texts, convert_to_sparse_tensor=True).coalesce().indices()", "works"),
    ("splade.similarity(rows, rows).topk(2)", "works"),
    ("splade.decode(rows, top_k=3)", "works"),
    ("splade.encode(texts, save_to_cpu=True)", "CPU"),
    ("splade.sparsity(rows)", "vectors"),
    ("splade.intersection(rows[0], rows[1])", "one"),
    ("splade.splade_pooling_chunk_size", "pooled"),
    ("model.encode(texts, convert_to_sparse_tensor=True)", "SparseEncoder"),
    ("colbert.similarity(queries, documents).topk(2)", "works"),
    ("colbert.similarity(queries[0], documents).argsort(descending=True)", "works"),
    ("colbert.encode_query('a dog').shape[1]", "works"),
    ("colbert.encode_query(texts, convert_to_numpy=True)[0].shape", "works"),
    ("colbert.similarity_pairwise(colbert.encode(texts), colbert.encode(texts))", "works"),
    ("colbert.encode(texts, token_pooling=None)", "token"),
    ("colbert.encode(texts, task='query')", "encode_query"),
    ("colbert.encode(texts, convert_to_tensor=True)", "vector per token"),
]
# ``util``.
UTILS = [
    ("util.cos_sim(vectors, vectors)", "works"),
    ("util.dot_score(vectors, vectors)", "works"),
    ("util.pytorch_cos_sim(vectors, vectors)", "cos_sim"),
    ("util.pairwise_cos_sim(vectors, vectors)", "similarity_pairwise"),
    ("util.pairwise_dot_score(vectors, vectors)", "similarity_pairwise"),
    ("util.euclidean_sim(vectors, vectors)", "similarity"),
    ("util.normalize_embeddings(vectors)", "normalize"),
    ("util.truncate_embeddings(vectors, 8)", "truncate_dim"),
    ("util.quantize_embeddings(vectors)", "precision"),
    ("util.semantic_search(vectors, vectors, top_k=2)", "works"),
    ("util.semantic_search(vectors, vectors, score_function=util.dot_score)", "works"),
    ("util.semantic_search(vectors, vectors, query_chunk_size=10)", "block"),
    ("util.semantic_search(vectors, vectors, corpus_chunk_size=10)", "block"),
    ("util.semantic_search(vectors, vectors, topk=2)", "top_k"),
    ("util.information_retrieval(vectors, vectors)", "semantic_search"),
    ("util.paraphrase_mining(model, texts)", "works"),
    ("util.paraphrase_mining(model, texts, batch_size=2, max_pairs=3)", "works"),
    ("util.paraphrase_mining(model, texts, corpus_chunk_size=10)", "block"),
    ("util.paraphrase_mining(model, texts, top_k=2)", "max_pairs"),
    ("util.paraphrase_mining_embeddings(vectors)", "closest_pairs"),
    ("util.community_detection(vectors, threshold=0.5, min_community_size=1)", "works"),
    ("util.community_detection(vectors, batch_size=10)", "block"),
    ("util.community_detection(vectors, show_progress_bar=True)", "bar"),
    ("util.mine_hard_negatives([('a', 'b')], model, texts)", "works"),
    ("util.mine_hard_negatives(dataset=[], model=model)", "pairs"),
    ("util.mine_hard_negatives([('a', 'b')], model, use_faiss=True)", "faiss"),
    ("util.mine_hard_negatives([('a', 'b')], model, batch_size=8)", "batches"),
    ("util.mine_hard_negatives([('a', 'b')], model, cross_encoder=None)", "CrossEncoder"),
    ("util.mine_hard_negatives([('a', 'b')], model, output_format='triplet')", "triplets"),
    ("util.semantic_search_faiss(vectors, vectors)", "faiss"),
    ("util.batch_to_device({}, 'cpu')", "to"),
    ("util.http_get('x', 'y')", "urlretrieve"),
    ("util.is_sentence_transformer_model(tiny)", "load"),
    ("util.maxsim([], [])", "MultiVectorEncoder"),
]
# Keywords of ``train``.
TRAINS = [
    ("train(model, [], learning_rate=0.1)", "lr"),
    ("train(model, [], num_train_epochs=3)", "epochs"),
    ("train(model=model, train_dataset=[])", "second argument"),
    ("train(model, [], epoch=3)", "epochs"),
    ("train(model, [], nothing_like_it=3)", "micro_tokens"),
]
HABITS = IMPORTS + LOADS + ENCODES + MODELS + RERANKS + OTHERS + UTILS + SETS + TRAINS
BARE = [
    ("SentenceEncoder.from_pretrained(tiny)", AttributeError),  # of the class, not of a model
    ("model.tokenizer(texts)", TypeError),
    ("len(model)", TypeError),
    ("from minisbert.losses import CosineSimilarityLoss", ImportError),  # a module, not a name
    ("model.encode(texts, None, None, 2, False, None, None, True, False, 'cpu')", TypeError),
]


@pytest.fixture(scope="module")
def models(tiny, tmp_path_factory):
    """A model of each kind, with vectors of the texts."""
    torch.manual_seed(0)
    cross = tmp_path_factory.mktemp("habits") / "cross"
    CrossEncoder(SentenceEncoder.load(tiny), ClassifierHead(24), "binary").save(cross)
    model = SentenceEncoder.load(tiny)
    splade = SparseEncoder.load(FOLDERS / "tiny-splade")
    colbert = MultiVectorEncoder.load(FOLDERS / "tiny-colbert")
    return {
        "cross": cross,
        "model": model,
        "reranker": CrossEncoder.load(cross),
        "splade": splade,
        "colbert": colbert,
        "static": distill(model, 8),
        "vectors": model.encode(TEXTS),
        "rows": splade.encode(TEXTS, convert_to_sparse_tensor=True),
        "queries": colbert.encode_query(TEXTS),
        "documents": colbert.encode_document(TEXTS),
    }


@pytest.fixture
def names(models, tiny, tmp_path):
    """What the code of a habit may name; the models are its own."""
    names = {name: copy.copy(value) for name, value in models.items()}
    names |= {"minisbert": minisbert, "util": util, "np": np, "torch": torch}
    names |= {"SentenceEncoder": SentenceEncoder, "CrossEncoder": CrossEncoder}
    names |= {"SparseEncoder": SparseEncoder, "MultiVectorEncoder": MultiVectorEncoder}
    names |= {"StaticEncoder": StaticEncoder, "splade_folder": FOLDERS / "tiny-splade"}
    names |= {"tiny": tiny, "texts": TEXTS, "pool": None}
    names |= {"out": tmp_path / "out", "other_out": tmp_path / "other", "train": train}
    return names


@pytest.mark.parametrize(("code", "outcome"), HABITS)
def test_a_habit_works_or_is_explained(code, outcome, names):
    """Whoever comes from sentence-transformers is told what to type, and not only that it fails."""
    if outcome == "works":
        exec(code, names)
        return
    with pytest.raises((TypeError, AttributeError, ImportError, ValueError), match=outcome):
        exec(code, names)


@pytest.mark.parametrize(("code", "error"), BARE)
def test_a_habit_with_an_error_of_python(code, error, names):
    """Nothing is silent: what is not explained still fails."""
    with pytest.raises(error):
        exec(code, names)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Importing from")
@pytest.mark.parametrize(
    ("table", "modules"),
    [
        (replacements.PACKAGE, [""]),
        (replacements.MODULES, [".sentence_transformer.modules", ".sparse_encoder.modules"]),
        (replacements.EVALUATION, [".sentence_transformer.evaluation"]),
        (replacements.UTIL, [".util", ".util.quantization"]),
    ],
)
def test_the_names_of_the_table_are_theirs(table, modules):
    """A misspelt name in the table would explain nothing."""
    theirs = set()
    for name in modules:
        module = import_module(f"sentence_transformers{name}")
        theirs |= {*dir(module)}
    theirs |= {name for name in table if is_module(f"sentence_transformers.{name}")}
    assert {*table} - theirs == set()


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Importing from")
def test_the_keywords_of_train_are_theirs():
    """A misspelt keyword in the table would explain nothing."""
    theirs = import_module("sentence_transformers")
    functions = [
        theirs.SentenceTransformerTrainer.__init__,
        theirs.SentenceTransformerTrainingArguments.__init__,
        theirs.SentenceTransformer.fit,
    ]
    keywords = set()
    for function in functions:
        keywords |= {*inspect.signature(function).parameters}
    assert {*replacements.TRAIN} - keywords == set()


def is_module(name):
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


# ---------------------------------------------------------------------- models are still nn.Modules


def test_parameters_and_modules_are_found_and_set(tiny):
    """``nn.Module`` finds them where the missing names are explained."""
    model = SentenceEncoder.load(tiny)
    model.register_buffer("scale", torch.ones(2))
    model.prompt_vectors = torch.nn.Parameter(torch.zeros(3))
    model.prompt = torch.nn.Linear(2, 2)  # no setting, but a module
    assert model.scale.tolist() == [1, 1]
    assert {"prompt_vectors", "prompt.weight"} <= model.state_dict().keys()
    del model.prompt
    assert not hasattr(model, "prompt")


def test_hasattr_copy_and_pickle_know_no_advice(tiny):
    """Libraries ask with ``hasattr`` what a model is; a name with advice is still not there."""
    model = SentenceEncoder.load(tiny)
    for name in ("fit", "model_card_data", "_first_module", "__len__", "__array__", "encoed"):
        assert not hasattr(model, name)
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not hasattr(other, "fit")
        np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))


def test_a_subclass_sets_what_it_likes(tiny):
    """A name that looks like a setting is a user's own in a class of theirs."""

    class Prompted(SentenceEncoder):
        def __init__(self, *parts, **options):
            super().__init__(*parts, **options)
            self.prompt = "a bird "
            self.batch_size = 3

    model = Prompted.load(tiny)
    assert (model.prompt, model.batch_size) == ("a bird ", 3)


def test_names_that_are_like_no_setting_may_be_set(tiny):
    """Applications keep things on a model, and libraries do so under private names."""
    model = SentenceEncoder.load(tiny)
    model.tag = "v1"
    model._hook = print
    model._max_seq_lengths = 3
    assert (model.tag, model._hook, model._max_seq_lengths) == ("v1", print, 3)


def test_an_attribute_error_within_a_property_is_not_explained_as_a_slip(tiny):
    """ "did you mean max_seq_length?" would be nonsense when that is what was typed."""
    model = SentenceEncoder.load(tiny)
    del model.tokenizer
    with pytest.raises(AttributeError) as error:
        _ = model.max_seq_length
    assert "mean" not in str(error.value)
