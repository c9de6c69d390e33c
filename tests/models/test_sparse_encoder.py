"""SPLADE: the reference's numbers, sparse rows, exact search, folders both ways, commands, bad
input.
"""

import json
import math
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from minisbert import SentenceEncoder, SparseEncoder, train
from minisbert.commands import encode, pairs, search
from minisbert.core import InputError
from minisbert.evaluation.retrieval import Retrieval, retrieval_scores
from minisbert.loading import load
from minisbert.models.sparse_encoder import splade_pool
from minisbert.search.by_tokens import InvertedIndex, from_sparse_tensors, rank, sparse_rows
from minisbert.system.reading import reading
from tests.architectures.tiny import alter, change_tensors, folder_of, randomise
from tests.parity import GRADIENT, PIECE, REFERENCE, assert_parity, golden
from tests.reference.texts import SENTENCES

FOLDER = folder_of("splade")
TEXTS = [*SENTENCES, "a cat", "birds and dogs running in the rain", "a cat"]
POOLING, SENTENCE = "1_SpladePooling/config.json", "config_sentence_transformers.json"


@pytest.fixture
def folder(copy) -> Path:
    return copy("splade")


def multiples(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Rows of multiples of 1/8, of which most are 0: their products and sums are exact in float32,
    so ties are ties.
    """
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-6, 4, (rows, columns), generator=generator).clamp(min=0) / 8).float()


# ------------------------------------------------------------------------------------- the numbers


def test_worked_numbers_of_the_docstrings():
    logits = torch.tensor([[[math.e - 1, -3.0], [math.e**2 - 1, 0.0], [50.0, 50.0]]])
    mask = torch.tensor([[True, True, False]])
    assert splade_pool(logits, mask)[0].tolist() == pytest.approx([2, 0])
    assert splade_pool(logits, mask, "sum")[0].tolist() == pytest.approx([3, 0])


def test_golden_values(formulas):
    """Vectors and gradients of the committed model."""
    expected, encoder = golden("architectures/tiny-splade"), SparseEncoder.load(FOLDER).double()
    alone = torch.cat([encoder.encode([text], convert_to_tensor=True) for text in SENTENCES])
    assert_parity("SPLADE alone", alone, expected["vectors"], PIECE)
    assert_parity(
        "SPLADE vectors",
        encoder.encode(SENTENCES, convert_to_tensor=True),
        expected["vectors"],
        PIECE,
    )
    assert_parity(
        "sparse",
        encoder.encode(SENTENCES, convert_to_sparse_tensor=True).to_dense(),
        expected["vectors"],
        PIECE,
    )
    encoded = encoder.tokenizer.encode(SENTENCES)
    mask = (
        torch.arange(max(map(len, encoded.ids))) < torch.tensor([*map(len, encoded.ids)])[:, None]
    )
    ids = torch.zeros(mask.shape, dtype=torch.long).masked_scatter(
        mask, torch.tensor([*chain(*encoded.ids)])
    )
    vectors = encoder(ids, mask)
    assert_parity("SPLADE padded", vectors, expected["vectors"], PIECE)
    (vectors * expected["pull"]).sum().backward()
    parameters = dict(encoder.pooling.head.named_parameters())
    for name in ("bias", "dense.weight", "norm.bias", "words"):
        assert_parity(
            f"SPLADE gradient of {name}",
            parameters[name].grad,
            expected[f"gradients.{name}"],
            GRADIENT,
        )


def random_folder(folder: Path, family: str, tied: bool) -> None:
    """A random model with a masked-language head, saved by transformers beside the tiny model's
    tokenizer.
    """
    import transformers

    sizes = {
        "Bert": {
            "hidden_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 19,
        },
        "DistilBert": {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 19},
    }[family] | {"vocab_size": 131, "max_position_embeddings": 33, "tie_word_embeddings": tied}
    config = getattr(transformers, f"{family}Config")(**sizes)
    randomise(getattr(transformers, f"{family}ForMaskedLM")(config)).float().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, folder / name)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("family", "tied", "mode"),
    [
        ("Bert", True, "max"),
        ("Bert", False, "sum"),
        ("DistilBert", True, "sum"),
        ("DistilBert", False, "max"),
    ],
)
def test_random_models_equal_the_reference(tmp_path, family, tied, mode):
    """Vectors and gradients, and the same from what we save, which sentence-transformers opens."""
    import sentence_transformers
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    random_folder(tmp_path / "plain", family, tied)
    theirs = (
        sentence_transformers.SparseEncoder(str(tmp_path / "plain"), device="cpu").double().eval()
    )
    theirs[1] = SpladePooling(mode)
    theirs.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    expected = theirs(theirs.tokenize(TEXTS))["sentence_embedding"]
    ours = SparseEncoder.load(tmp_path / "model").double()
    assert_parity(
        f"SPLADE {family} {mode}",
        ours.encode(TEXTS, convert_to_tensor=True),
        expected.detach(),
        PIECE,
    )

    ids = torch.tensor(ours.tokenizer.encode(TEXTS[2:3]).ids)
    vectors = (
        ours(ids),
        theirs({"input_ids": ids, "attention_mask": torch.ones_like(ids)})["sentence_embedding"],
    )
    for vector in vectors:
        (vector * torch.linspace(-1, 1, 131, dtype=torch.float64)).sum().backward()
    model, head = theirs[0].model, ours.pooling.head
    decoder, table = model.get_output_embeddings(), model.get_input_embeddings().weight
    assert (decoder.weight is table) == tied
    dense = {
        "Bert": "cls.predictions.transform.dense.weight",
        "DistilBert": "vocab_transform.weight",
    }[family]
    for parameter, reference in (
        (head.words, decoder.weight),
        (head.bias, decoder.bias),
        (head.dense.weight, model.get_parameter(dense)),
        (ours.bert.embeddings.word.weight, table),
    ):
        assert_parity(f"SPLADE {family} gradient", parameter.grad, reference.grad, GRADIENT)

    ours.save(tmp_path / "saved")
    again = sentence_transformers.SparseEncoder(str(tmp_path / "saved"), device="cpu").double()
    back = again.encode(TEXTS, convert_to_sparse_tensor=False).cpu()
    assert_parity("sentence-transformers on our folder", back, expected.detach(), PIECE)
    assert again.similarity_fn_name == "dot"
    saved = SparseEncoder.load(tmp_path / "saved").double().encode(TEXTS, convert_to_tensor=True)
    assert_parity("ours again", saved, back, PIECE)


@pytest.mark.reference
@pytest.mark.parametrize("parts", [["weight"], ["bias"], ["weight", "bias"]])
def test_a_decoder_of_its_own_in_the_file_of_a_tied_model_wins(folder, tmp_path, parts):
    """As in transformers 5, which then ties nothing, whatever the config says."""
    from sentence_transformers import SparseEncoder as Reference

    torch.manual_seed(2)
    shapes = {"weight": (131, 24), "bias": (131,)}
    own = {f"cls.predictions.decoder.{part}": torch.randn(shapes[part]) for part in parts}
    change_tensors(folder, lambda tensors: tensors | own)
    theirs = (
        Reference(str(folder), device="cpu")
        .double()
        .encode(TEXTS, convert_to_sparse_tensor=False)
        .cpu()
    )
    ours = SparseEncoder.load(folder)
    ours.save(tmp_path / "saved")
    for model in (ours, SparseEncoder.load(tmp_path / "saved")):
        assert_parity(
            f"own {' and '.join(parts)}",
            model.double().encode(TEXTS, convert_to_tensor=True),
            theirs,
            PIECE,
        )


# -------------------------------------------------------------------------- sparse rows and search


def test_sparse_rows_keep_the_heaviest_words():
    """Ties go to the word that comes first."""
    rows = sparse_rows(torch.tensor([[1.0, 3, 3, 2], [0, 0, 0, 5], [0, 0, 0, 0]]), top=2)
    assert rows.to_dense().tolist() == [[0, 3, 3, 0], [0, 0, 0, 5], [0, 0, 0, 0]]
    assert rows.values().tolist() == [3, 3, 5]
    encoder = SparseEncoder.load(FOLDER)
    dense = encoder.encode(TEXTS)
    sparse = (
        encoder.encode(TEXTS, convert_to_sparse_tensor=True, max_active_dims=3).to_dense().numpy()
    )
    assert (np.sort(sparse, axis=1)[:, -3:] == np.sort(dense, axis=1)[:, -3:]).all()
    assert ((sparse > 0).sum(axis=1) == 3).all()


def test_sparse_tensors_are_compared_in_pairs():
    """What ``encode`` gives, ``similarity_pairwise`` takes, and the numbers are the dense ones'."""
    encoder = SparseEncoder.load(FOLDER)
    sparse = encoder.encode(TEXTS, convert_to_sparse_tensor=True)
    dense = encoder.encode(TEXTS, convert_to_tensor=True)
    expected = encoder.similarity_pairwise(dense, dense.flip(0))
    reversed_rows = dense.flip(0).to_sparse_csr()
    torch.testing.assert_close(encoder.similarity_pairwise(sparse, reversed_rows), expected)
    # By the formula: the dot product, by default.
    torch.testing.assert_close(expected, (dense * dense.flip(0)).sum(dim=1))


def test_many_texts_are_encoded_in_chunks():
    """The dense rows of a whole corpus would not fit in memory."""
    encoder = SparseEncoder.load(FOLDER).double()
    texts = ["a cat " * 30, "a dog", "the sun " * 30]
    whole = encoder.encode(texts, convert_to_sparse_tensor=True)
    one_by_one = encoder.sparse_vectors_of(encoder.tokens_of(texts), rows=1)
    assert torch.allclose(one_by_one.to_dense(), whole.to_dense(), atol=PIECE)


def test_sparse_vectors_of_no_texts_and_of_texts_that_were_cut():
    """As dense vectors: the right shape, and the count of the whole call."""
    encoder = SparseEncoder.load(FOLDER)
    assert encoder.encode([], convert_to_sparse_tensor=True).shape == (0, 131)
    encoder.encode(["a cat " * 30, "a dog", "the sun " * 30], convert_to_sparse_tensor=True)
    assert encoder.truncated == 2


def test_words_of_a_text():
    """What a model has read in a text can be looked at."""
    encoder = SparseEncoder.load(FOLDER)
    vectors = np.zeros((2, 131), np.float32)
    vectors[
        0, [encoder.tokenizer.backend.token_to_id(word) for word in ("cat", "kitten", "##z")]
    ] = 2, 1, 0.5
    words = [[("cat", 2.0), ("kitten", 1.0)], []]
    sparse = sparse_rows(torch.from_numpy(vectors))
    assert encoder.decode(vectors, top_k=2) == encoder.decode(sparse, top_k=2) == words
    assert encoder.decode(vectors[0]) == [*words[0], ("##z", 0.5)]


@pytest.mark.exact("multiples of 1/8, whose products and sums are exact in any order")
def test_the_inverted_index_equals_dense_search_exactly():
    """Scores, order and ties; some documents and queries have no word at all."""
    queries, corpus = multiples(23, 40, 1), multiples(301, 40, 2)
    queries[3], corpus[7], corpus[100:140] = 0, 0, corpus[:40]
    dense = queries @ corpus.T
    order = (-dense).argsort(dim=1, stable=True)
    index = InvertedIndex(sparse_rows(corpus))
    for k in (1, 10, 301):
        scores, places = index.top_k(sparse_rows(queries), k)
        assert (places == order[:, :k].numpy()).all()
        assert (scores == dense.gather(1, order[:, :k]).numpy()).all()
    assert len(dense[0].unique()) < 150  # so there were ties


def test_sparse_vectors_are_searched_by_the_models_similarity():
    """By default dot products; cosines against numpy, with a text that has no word."""
    encoder = SparseEncoder.load(FOLDER)
    assert encoder.similarity_fn_name == "dot"
    queries, corpus = multiples(5, 40, 1), multiples(60, 40, 2)
    queries[3], corpus[7] = 0, 0
    u, v = (
        rows.double() / rows.double().norm(dim=1, keepdim=True).clamp_min(1e-12)
        for rows in (queries, corpus)
    )
    for name, expected in (("dot", (queries @ corpus.T).double()), ("cosine", u @ v.T)):
        encoder.similarity_fn_name = name
        scores, places = encoder.top_k(sparse_rows(queries), sparse_rows(corpus), 9)
        best = expected.sort(dim=1, descending=True).values[:, :9]
        np.testing.assert_allclose(scores, best, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(
            expected.gather(1, torch.from_numpy(places)), best, rtol=1e-6, atol=1e-7
        )
    encoder.similarity_fn_name = "euclidean"
    with pytest.raises(InputError, match="euclidean"):
        encoder.top_k(sparse_rows(queries), sparse_rows(corpus), 9)


@pytest.mark.parametrize(
    ("width", "k", "message"), [(9, 1, "width 9"), (8, 0, "got 0"), (8, 6, "got 6")]
)
def test_search_of_a_width_or_number_that_does_not_fit(width, k, message):
    with pytest.raises(InputError, match=message):
        InvertedIndex(sparse_rows(multiples(5, 8, 1))).top_k(sparse_rows(multiples(2, width, 1)), k)


def test_scores_that_are_not_numbers_rank_last():
    """Otherwise NaN would win every comparison, or none."""
    row = np.array([0.5, np.nan, -np.inf, 0.5, np.nan, 2.0], np.float32)
    for k in range(1, 7):
        assert rank(lambda _: row, (1, 2), (6, 2), k, False)[1].tolist() == [[5, 0, 3, 2, 1, 4][:k]]


def test_importing_the_index_silences_no_warnings_of_others():
    """torch's warning is left out for our own call alone."""
    code = "import torch, warnings, minisbert.core.checks; kept = list(warnings.filters)"
    code += "; import minisbert.search.by_tokens; assert warnings.filters == kept"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_retrieval_ranks_by_dot_products():
    """Document 1 has the larger dot product with the query, document 0 the larger cosine."""

    class Planted(SparseEncoder):
        def encode(self, texts, **options):
            table = {"q": [1.0, 1, 0], "d0": [1, 1, 0], "d1": [3, 1, 4]}
            return sparse_rows(torch.tensor([table[text] for text in texts]))

    encoder = SparseEncoder.load(FOLDER)
    encoder.__class__ = Planted
    task = Retrieval(["q"], ["d0", "d1"], [{1: 1}], [None], 0)
    assert retrieval_scores(encoder, task, show_progress_bar=False)["accuracy@1"] == 1


# ---------------------------------------------------------------------------------------- commands


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS if text))
    return path


def test_encode_writes_sparse_rows_and_search_reads_an_index(folder, corpus, tmp_path, capsys):
    """The commands ask the model how its vectors are searched and stored."""
    out, model = tmp_path / "rows.safetensors", ["--model", str(folder), "--device", "cpu"]
    encode.main(["--file", str(corpus), "--out", str(out), *model])
    encoder, texts = SparseEncoder.load(folder), corpus.read_text().splitlines()
    expected = encoder.encode(texts)
    assert torch.equal(from_sparse_tensors(load_file(out)).to_dense(), torch.from_numpy(expected))
    query = encoder.encode(["a happy cat"])
    best = (-(query @ expected.T)[0]).argsort(kind="stable")[:3].tolist()
    for _ in range(2):  # the second time from the index
        capsys.readouterr()
        index = ["--index", str(tmp_path / "index.safetensors")]
        search.main([str(corpus), "--query", "a happy cat", "--top", "3", "--json", *index, *model])
        hits = json.loads(capsys.readouterr().out)["results"][0]["hits"]
        assert [hit["index"] for hit in hits] == best
        assert [hit["score"] for hit in hits] == pytest.approx(
            (query @ expected.T)[0][best].tolist(), rel=1e-6
        )
    encode.main(["a cat", "Dogs!", *model])
    shown = capsys.readouterr().out
    assert shown.startswith("dot")
    word, weight = encoder.decode(encoder.encode(["Dogs!"]))[0][0]
    assert f"{word} {weight:.2f}, " in shown.splitlines()[-1]


def test_commands_that_are_for_dense_vectors_say_so(folder, tiny, corpus, tmp_path):
    """In one line, before the texts are encoded."""
    model, run = ["--model", str(folder)], ["--data", str(corpus), "--out", str(tmp_path / "run")]
    codes = str(tmp_path / "codes.safetensors")
    encode.main(["--file", str(corpus), "--model", str(tiny), "--quantize", "int8", "--out", codes])
    for command, arguments, message in (
        (pairs, [str(corpus), *model], "SparseEncoder"),
        (
            search,
            [str(corpus), "--query", "a cat", "--index", codes, *model],
            "another|pooling|width",
        ),
        (
            train,
            [*model, "--loss", "simcse", *run, "--dev", "none", "--test", "none"],
            "a SparseEncoder is not trained here",
        ),
        (
            encode,
            [
                "--file",
                str(corpus),
                "--quantize",
                "int8",
                "--out",
                str(tmp_path / "c.safetensors"),
                *model,
            ],
            "--quantize is for arrays of vectors",
        ),
    ):
        with pytest.raises(InputError, match=message):
            command.main(arguments)
    with pytest.raises(InputError, match="only a SentenceEncoder is compiled"):
        load(folder, compiled=True)


# ------------------------------------------------------------------------------ folders, bad input


def test_a_save_keeps_every_number_and_setting(folder, tmp_path):
    """The head, the strategy and the similarity, too."""
    alter(folder, SENTENCE, prompts={"query": "a "}, similarity_fn_name="cosine", truncate_dim=7)
    encoder = SparseEncoder.load(folder)
    encoder.save(tmp_path / "saved")
    again = SparseEncoder.load(tmp_path / "saved")
    assert again.settings.prompts == {"query": "a ", "document": ""}
    assert (
        encoder.encode(TEXTS, convert_to_sparse_tensor=True).shape
        == encoder.encode(TEXTS).shape
        == (len(TEXTS), 131)
    )
    assert (again.similarity_fn_name, SparseEncoder.load(FOLDER).similarity_fn_name) == (
        "cosine",
        "dot",
    )
    assert again.pooling.head.words is again.bert.embeddings.word.weight
    assert (again.encode(TEXTS) == encoder.encode(TEXTS)).all()
    pooling = {"pooling_strategy": "max", "activation_function": "relu", "embedding_dimension": 131}
    assert json.loads((tmp_path / "saved" / POOLING).read_text()) == pooling


def write_modules(folder: Path, *kinds: str) -> Path:
    """As sentence-transformers 5 has them; each but the first in a subfolder."""
    modules = [
        {
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.sparse_encoder.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_names_of_older_versions(folder):
    """sentence-transformers 5 called the first module MLMTransformer; TensorFlow's files say gamma
    and beta.
    """
    (folder / POOLING).write_text("{}")  # the defaults
    write_modules(folder, "MLMTransformer", "SpladePooling")
    change_tensors(
        folder,
        lambda tensors: {key.replace("Norm.weight", "Norm.gamma"): x for key, x in tensors.items()},
    )
    assert (
        SparseEncoder.load(folder).encode(TEXTS) == SparseEncoder.load(FOLDER).encode(TEXTS)
    ).all()


def test_each_class_opens_its_own_folders(folder, tiny):
    """And names the class that opens another's."""
    with pytest.raises(
        InputError, match=r"model is not a SentenceEncoder's folder: SparseEncoder.load opens it"
    ):
        SentenceEncoder.load(folder)
    with pytest.raises(
        InputError, match=r"not a SparseEncoder's folder: SentenceEncoder.load opens it"
    ):
        SparseEncoder.load(tiny)
    with pytest.raises(InputError, match="pooling must be splade-max, not 'cls'"):
        SparseEncoder.load(folder, pooling="cls")


TASK, HEAD = "sentence_bert_config.json", "cls.predictions.transform.dense.weight"
REFUSED = {  # what is done to a folder -> the error
    "activation": (
        lambda x: alter(x, POOLING, activation_function="log1p_relu"),
        "activation_function must be relu",
    ),
    "strategy": (
        lambda x: alter(x, POOLING, pooling_strategy="mean"),
        "pooling_strategy must be max",
    ),
    "other task": (
        lambda x: alter(x, TASK, transformer_task="feature-extraction"),
        "transformer_task 'feature-",
    ),
    # sentence-transformers then pools hidden states: its vectors have 24 columns, not 131
    "no task": (lambda x: alter(x, TASK, transformer_task=...), "transformer_task fill-mask"),
    "untied": (
        lambda x: alter(x, "config.json", tie_word_embeddings=False),
        "has no cls.predictions.decoder.weight",
    ),
    "no head": (
        lambda x: change_tensors(x, lambda old: {k: old[k] for k in old if k != HEAD}),
        f"has no {HEAD}",
    ),
    "misshapen": (
        lambda x: change_tensors(x, lambda old: old | {HEAD: torch.ones(9)}),
        f"misshapen {HEAD}: (9,)",
    ),
    # inference-free SPLADE has a router, CSR an autoencoder
    "router": (lambda x: write_modules(x, "Router"), "modules Router are not supported"),
    "CSR": (
        lambda x: write_modules(x, "Transformer", "SparseAutoEncoder"),
        "modules Transformer, SparseAutoEncoder",
    ),
    "pooling alone": (
        lambda x: write_modules(x, "SpladePooling"),
        "modules SpladePooling are not supported",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_folders_that_are_refused_by_file_and_key(folder, case):
    """Another model would be computed in silence."""
    change, message = REFUSED[case]
    change(folder)
    with pytest.raises(InputError) as error:
        SparseEncoder.load(folder)
    assert message in str(error.value)
    assert str(folder) in str(error.value)


def test_a_family_without_a_head_here(tmp_path):
    """By the names of those that have one."""
    shutil.copytree(
        REFERENCE / "tiny-roberta",
        tmp_path / "model",
        ignore=shutil.ignore_patterns("modules.json"),
    )
    with pytest.raises(
        InputError,
        match=r"config.json: model_type 'roberta' is not supported: a masked-language head",
    ):
        SparseEncoder.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": torch.tensor([5, 1])}, "col_indices < ncols"),
        ({"indptr": torch.tensor([0, 2, 1])}, "crow_indices"),
        ({"values": torch.ones(3)}, "nnz"),
        ({"width": ...}, "no key 'width'"),
    ],
)
def test_damaged_sparse_rows(changes, message):
    """Also from ``search --index``, which reads the same four tensors."""
    right = {
        "indptr": torch.tensor([0, 1, 2]),
        "indices": torch.tensor([0, 1]),
        "values": torch.ones(2),
    }
    right["width"] = torch.tensor(2)
    assert from_sparse_tensors(right).to_dense().tolist() == [[1, 0], [0, 1]]
    with pytest.raises(InputError, match=message), reading("rows"):
        from_sparse_tensors({name: x for name, x in (right | changes).items() if x is not ...})


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["a"], {"truncate_dim": 5}, "max_active_dims keeps the heaviest"),
        (
            ["a"],
            {"max_active_dims": 0, "convert_to_sparse_tensor": True},
            "max_active_dims must be an integer from 1",
        ),
        (
            ["a"],
            {"convert_to_sparse_tensor": True, "output_value": "token_embeddings"},
            "not for those of tokens",
        ),
        (["a", 3], {"convert_to_sparse_tensor": True}, "text 1 is not a string"),
        (["a"], {"convert_to_sparse_tensor": True, "precision": "int8"}, "codes of arrays"),
    ],
)
def test_arguments_that_encode_cannot_honour(texts, options, message):
    """An option that is ignored is a wrong result."""
    with pytest.raises(InputError, match=message):
        SparseEncoder.load(FOLDER).encode(texts, **options)


@pytest.mark.parametrize("wrong", [None, 2.5, 1j, "a", ["a"], {}, np.zeros((1, 9))])
def test_arguments_of_other_types(wrong):
    """One line each, not a traceback from deep inside."""
    encoder = SparseEncoder.load(FOLDER)
    for call in (encoder.decode, lambda x: encoder.similarity(x, np.zeros((1, 131)))):
        with pytest.raises(InputError, match=r"vectors must be numbers|vectors of width"):
            call(wrong)
    if wrong is not None:
        with pytest.raises(InputError, match="top_k must be an integer from 1"):
            encoder.decode(np.zeros((1, 131)), wrong)


def test_the_weights_that_a_folder_keeps(folder, tmp_path):
    """sentence-transformers writes ``max_active_dims`` into its settings, and keeps so many of each
    text.
    """
    encoder = SparseEncoder.load(folder)
    encoder.save(tmp_path / "model")
    cut = SparseEncoder.load(alter(tmp_path / "model", SENTENCE, max_active_dims=3))
    whole = encoder.encode(TEXTS)
    # No two weights of a text are equal.
    expected = np.where(whole >= np.sort(whole, axis=1)[:, [-3]], whole, 0)
    np.testing.assert_array_equal(cut.encode(TEXTS), expected)
    # A text alone is in another batch, which changes the last bits.
    np.testing.assert_allclose(cut.encode(TEXTS[0]), expected[0], atol=2e-6, rtol=0)
    np.testing.assert_array_equal(
        cut.encode(TEXTS, convert_to_sparse_tensor=True).to_dense(), expected
    )
    assert (cut.encode(TEXTS, max_active_dims=2) > 0).sum(axis=1).tolist() == [2] * len(TEXTS)
    two = SparseEncoder.load(tmp_path / "model", max_active_dims=2)
    assert (two.encode(TEXTS) > 0).sum(axis=1).tolist() == [2] * len(TEXTS)
    cut.save(tmp_path / "again")
    assert SparseEncoder.load(tmp_path / "again").max_active_dims == 3
    with pytest.raises(InputError, match="max_active_dims must be an integer from 1"):
        SparseEncoder.load(alter(tmp_path / "model", SENTENCE, max_active_dims=0))
