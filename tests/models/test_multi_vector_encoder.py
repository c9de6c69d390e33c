"""MultiVectorEncoder: the reference's vectors and scores, fillers and skipped tokens, folders,
commands, bad input.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from minisbert.commands import certify, convert, encode, evaluate, search
from minisbert.core import InputError
from minisbert.loading import load_encoder
from minisbert.models.index import model_hash
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.by_tokens import max_sim
from minisbert.system import devices
from tests.architectures.tiny import alter
from tests.colbert import COLBERT, MASK, SENTENCE, TEXT, write_colbert
from tests.parity import GRADIENT, PIECE, assert_parity, golden
from tests.reference.texts import SENTENCES, TEXTS

ALL = [*SENTENCES, *TEXTS]
EXPANSIONS = {
    "none": None,
    "fixed": {"strategy": "fixed", "length": 9, "attend": False},
    "attended": {"strategy": "fixed", "length": 9, "attend": True, "token": "dog"},
    "at least": {"strategy": "min", "length": 11},
    "beyond the limit of 16": {"strategy": "min", "length": 18},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_colbert(tmp_path / "model", EXPANSIONS["fixed"])


# ----------------------------------------------------------------------------------- the reference


def assert_rows(name: str, found, expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert_parity(name, torch.as_tensor(ours), theirs, PIECE)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "normalize"),
    [
        ("none", True),
        ("fixed", True),
        ("attended", True),
        ("at least", True),
        ("beyond the limit of 16", True),
        ("at least", False),
    ],
)
def test_vectors_and_scores_equal_the_references_also_after_saving(tmp_path, name, normalize):
    """With and without fillers, attended to or not, scaled or not."""
    from sentence_transformers import MultiVectorEncoder as Reference

    encoder = MultiVectorEncoder.load(
        write_colbert(tmp_path / "model", EXPANSIONS[name], normalize)
    )
    encoder.save(tmp_path / "saved")
    for folder in (tmp_path / "model", tmp_path / "saved"):
        ours = MultiVectorEncoder.load(folder).double()
        theirs = Reference(str(folder), device="cpu").double()
        queries = ours.encode(ALL, prompt_name="query")
        documents = ours.encode(ALL, prompt_name="document")
        their_queries = theirs.encode_query(ALL)
        their_documents = theirs.encode_document(ALL)
        assert_rows(f"{name} query", queries, their_queries)
        assert_rows(f"{name} document", documents, their_documents)
        scores = ours.similarity(queries, documents)
        expected = theirs.similarity(their_queries, their_documents).double()
        largest = expected.abs().max()  # the reference rounds them to float32
        assert_parity(f"{name} scores", scores / largest, expected / largest, 2e-6)


@pytest.mark.reference
@pytest.mark.parametrize(
    "names", [{}, {"module_input_name": "sentence_embedding"}, {"module_output_name": "other"}]
)
def test_a_normalize_that_does_not_scale_tokens_changes_nothing(folder, tmp_path, names):
    """By default that module scales the vector of a sentence."""
    from sentence_transformers import MultiVectorEncoder as Reference

    (folder / "3_Normalize" / "config.json").write_text(json.dumps(names))
    MultiVectorEncoder.load(folder).save(tmp_path / "saved")
    expected = Reference(str(folder), device="cpu").double().encode_document(ALL)
    for path in (folder, tmp_path / "saved"):
        assert_rows(
            "no Normalize",
            MultiVectorEncoder.load(path).double().encode(ALL, prompt_name="document"),
            expected,
        )


@pytest.mark.parametrize("saved", [False, True])
def test_golden_values_also_after_saving(tmp_path, formulas, saved):
    """Vectors and gradients of the committed model."""
    expected, encoder = golden("architectures/tiny-colbert"), MultiVectorEncoder.load(COLBERT)
    if saved:
        encoder.save(tmp_path / "saved")
        encoder = MultiVectorEncoder.load(tmp_path / "saved")
    encoder.double()
    for side, prompt in (("queries", "query"), ("documents", "document")):
        found = encoder.encode(SENTENCES, prompt_name=prompt)
        assert np.diff(found.starts).tolist() == expected[f"{side}.lengths"].tolist()
        assert_parity(side, torch.from_numpy(found.rows), expected[side], PIECE)
    rows = encoder.rows(
        [encoder.settings.prompts["document"] + text for text in SENTENCES], query=False
    )
    vectors, counted = encoder(rows.ids, rows.own, query=False)
    (vectors[counted] * expected["pull"]).sum().backward()
    for name, parameter in (
        ("projection", encoder.dense[0].linear),
        ("words", encoder.bert.embeddings.word),
    ):
        assert_parity(name, parameter.weight.grad, expected[f"gradients.{name}"], GRADIENT)


# --------------------------------------------------------------------------- queries and documents


def test_fillers_are_compared_and_change_nothing_unless_they_are_attended_to(tmp_path):
    """They have vectors of their own, and by default no other token sees them."""
    own, more, attended = (
        torch.from_numpy(
            MultiVectorEncoder.load(write_colbert(tmp_path / name, EXPANSIONS[name])).encode(
                ["a cat"], query=True
            )[0]
        )
        for name in ("none", "fixed", "attended")
    )
    # [CLS] [MASK] a cat [SEP], and four fillers.
    assert (len(own), len(more), len(attended)) == (
        5,
        9,
        9,
    )
    assert_parity("own tokens", more[:5], own, 2e-6)  # float32
    assert (attended[:5] - own).abs().max() > 1e-3


def test_skipped_words_have_no_vector_in_documents_only(folder):
    """A query's punctuation counts."""
    encoder = MultiVectorEncoder.load(folder)
    assert len(encoder.encode(["the cat , the dog ."], query=False)[0]) == len(
        ["[CLS]", "dog", "cat", "dog", "[SEP]"]
    )
    assert len(encoder.encode(["the cat ."], query=True)[0]) == 9


def test_a_text_has_the_same_vectors_in_any_batch(folder):
    """Pads and neighbours change nothing."""
    encoder = MultiVectorEncoder.load(folder).double()
    for query in (True, False):
        together = encoder.encode(ALL, query=query, batch_size=1)
        alone = [torch.from_numpy(encoder.encode([text], query=query)[0]) for text in ALL]
        assert_rows("alone", together, alone)
    assert encoder.encode([], query=False).shape == (0, 7)


def test_in_bfloat16_the_vectors_are_nearly_the_same_and_in_float32(folder, monkeypatch):
    """Only the transformer computes in it."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: {"avx2", "amx_bf16"})
    encoder = MultiVectorEncoder.load(folder)
    low, high = (
        encoder.encode(["a cat"], query=False, dtype=dtype).rows for dtype in ("bfloat16", None)
    )
    assert low.dtype == np.float32
    # 8 bits in two layers of the encoder, vectors of length 1.
    assert 0 < np.abs(low - high).max() < 0.05


def test_weights_that_are_too_large_are_named(folder):
    """NaN would rank anywhere."""
    encoder = MultiVectorEncoder.load(folder)
    with torch.no_grad():
        encoder.dense[0].linear.weight.mul_(1e38).mul_(10)
    with pytest.raises(InputError, match=r"the vector of .* holds NaN or infinity"):
        encoder.encode(["a cat"], query=False)


def test_arguments_of_other_types(folder):
    """One line each, not a traceback from deep inside."""
    encoder = MultiVectorEncoder.load(folder)
    for options, message in (
        ({"query": "yes"}, "query must be one of"),
        ({"batch_size": 2.5}, "batch_size must be"),
    ):
        with pytest.raises(InputError, match=message):
            encoder.encode(["a cat"], **options)
    with pytest.raises(InputError, match="vectors of tokens"):
        encoder.similarity(encoder.encode(["a cat"]), [np.ones(7)])


def test_long_texts_are_cut_and_counted(folder):
    """Queries and documents have limits of their own."""
    encoder = MultiVectorEncoder.load(folder)
    assert [*map(len, encoder.encode(["cat " * 40, "a cat"], query=False))] == [14, 5]
    assert encoder.truncated == 1
    assert len(encoder.encode(["cat " * 40], query=True)[0]) == 9


# ------------------------------------------------------------------------------------ the commands


def test_search_evaluate_and_encode_take_it(folder, tmp_path, capsys):
    """The commands ask the model how its vectors are searched and stored."""
    texts = [text for text in SENTENCES if text.strip()]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{text}\n" for text in texts))
    arguments = [str(corpus), "--model", str(folder), "--query", "a cat sits", "--top", "2"]
    search.main(arguments)
    first = capsys.readouterr().out
    encoder = MultiVectorEncoder.load(folder)
    query, documents = (
        encoder.encode(["a cat sits"], query=True),
        encoder.encode(texts, prompt_name="document"),
    )
    scores = [
        float(max_sim(torch.from_numpy(query[0]), torch.from_numpy(document)))
        for document in documents
    ]
    best = int(np.argmax(scores))
    assert first.splitlines()[1].split(maxsplit=1) == [f"{scores[best]:.4f}", texts[best]]
    for _ in range(2):  # the index is made, then read
        search.main([*arguments, "--index", str(tmp_path / "index.safetensors")])
        assert capsys.readouterr().out == first
    files = {
        "queries.jsonl": [{"_id": "q", "text": "a cat"}],
        "corpus.jsonl": [{"_id": t, "text": t} for t in texts],
    }
    for name, rows in files.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.tsv").write_text(f"q\t{texts[0]}\t1\n")
    data = ["--queries", "queries.jsonl", "--corpus", "corpus.jsonl", "--qrels", "test.tsv"]
    evaluate.main(
        [part if part.startswith("--") else str(tmp_path / part) for part in data]
        + ["--model", str(folder)]
    )
    assert "ndcg" in capsys.readouterr().out
    encode.main(
        ["--model", str(folder), "--file", str(corpus), "--out", str(tmp_path / "out.safetensors")]
    )
    assert load_file(tmp_path / "out.safetensors").keys() == {"rows", "starts"}


def test_an_index_belongs_to_lengths_and_skipped_words(folder):
    """Each changes the vectors that it holds."""
    hashes = {model_hash(MultiVectorEncoder.load(folder))}
    for name, changes in (
        (TEXT, {"document_length": 13}),
        (MASK, {"skiplist_words": [".", "\ud800"]}),
    ):
        hashes.add(model_hash(MultiVectorEncoder.load(alter(folder, name, **changes))))
    assert len(hashes) == 3


def test_what_needs_one_vector_per_text_says_so(folder, tmp_path):
    """Such a command would fail in the middle of its work."""
    texts, vectors, model = (
        tmp_path / "corpus.txt",
        tmp_path / "vectors.npy",
        ["--model", str(folder)],
    )
    texts.write_text("a cat\na dog\n")
    np.save(vectors, np.ones((2, 7), np.float32))
    out = ["--out", str(tmp_path / "out.safetensors")]
    for command, arguments, message in (
        (
            encode.main,
            ["--file", str(texts), "--out", str(tmp_path / "out.npy")],
            "FILE.safetensors",
        ),
        (encode.main, ["--file", str(texts), "--truncate-dim", "3", *out], "--truncate-dim"),
        (convert.distill_static, ["--device", "cpu", *out], "only an encoder of dense vectors"),
        (evaluate.main, ["--split", "dev"], "has a vector per token: only search data"),
        (
            certify.main,
            [str(vectors), "--texts", str(texts)],
            "certify compares one vector of each text",
        ),
    ):
        with pytest.raises(InputError, match=message):
            command([*arguments, *model])
    with pytest.raises(InputError, match=r"MultiVectorEncoder\.load opens it"):
        SentenceEncoder.load(folder)


# --------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}, "module_input_name"),
        ("1_Dense/config.json", {"out_features": 8}, "misshapen linear.weight"),
        (
            "1_Dense/config.json",
            {"activation_function": "custom.Wave"},
            "activation_function 'custom.Wave'",
        ),
        (TEXT, {"query_expansion": {"length": 0}}, "length must be an integer from 1, not 0"),
        (
            TEXT,
            {"query_length": 5},
            "query_length 5 is not supported: query_expansion adds tokens up to 9",
        ),
        (
            TEXT,
            {"query_expansion": {"length": 9, "strategy": "max"}},
            "strategy must be fixed or min",
        ),
        (TEXT, {"query_expansion": {"length": 9, "token": "[Q]"}}, "has no token [Q]"),
        (MASK, {"keep_only_token_ids": [3]}, "keep_only_token_ids"),
        (SENTENCE, {"similarity_fn_name": "meanmaxsim"}, "similarity_fn_name must be maxsim"),
        (SENTENCE, {"similarity_fn_name": "cosine"}, "similarity_fn_name must be maxsim"),
    ],
)
def test_settings_that_are_not_computed(folder, name, changes, message):
    """Another model would be computed in silence."""
    with pytest.raises(InputError) as error:
        MultiVectorEncoder.load(alter(folder, name, **changes))
    assert message in str(error.value)
    assert str(folder) in str(error.value) or TEXT in str(error.value)


def test_a_folder_without_its_projection(folder):
    """Hidden states are not what was trained."""
    with pytest.raises(InputError, match="which pools nothing"):
        MultiVectorEncoder.load(folder, pooling="cls")
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[0], *modules[2:]]))
    with pytest.raises(InputError, match="only Transformer, Dense, Normalize"):
        MultiVectorEncoder.load(folder)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (SENTENCE, {"model_type": "ColBERT", "query_prefix": "[Q] "}),
        (SENTENCE, {"query_length": 9}),
        ("config.json", {"architectures": ["HF_ColBERT"]}),
    ],
)
def test_other_layouts_are_refused_in_one_line(folder, name, changes):
    """Of PyLate, and of the Stanford group, whose folders have no modules.json."""
    alter(folder, name, **changes)
    if name != SENTENCE:
        for file in ("modules.json", SENTENCE):
            (folder / file).unlink()
    with pytest.raises(InputError, match="PyLate"):
        load_encoder(str(folder))
