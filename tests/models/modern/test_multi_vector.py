"""MultiVectorEncoder: the reference's vectors and scores, fillers and skipped tokens, folders, commands, bad input."""

import json
import shutil
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.certify import main as certify
from minisbert.core import InputError
from minisbert.distill_static import main as distill
from minisbert.encode import main as encode
from minisbert.evaluate import main as evaluate
from minisbert.models.modern.late_interaction import max_sim
from minisbert.models.modern.multi_vector import MultiVectorEncoder
from minisbert.models.modern.multi_vector_files import PYLATE_KEYS
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search import main as search
from tests.parity import GRADIENT, PIECE, REFERENCE, ROOT, assert_parity, golden
from tests.reference.texts import SENTENCES, TEXTS

COLBERT = REFERENCE / "modern" / "tiny-colbert"
ALL = [*SENTENCES, *TEXTS]
TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
EXPANSIONS = {
    "none": None,
    "fixed": {"strategy": "fixed", "length": 9, "attend": False},
    "attended": {"strategy": "fixed", "length": 9, "attend": True, "token": "dog"},
    "at least": {"strategy": "min", "length": 11},
}
WORDS = [",", ".", "the", "no-such-word"]


def write(folder: Path, expansion: dict | None = None, normalize: bool = True) -> Path:
    """The layout of sentence-transformers around the committed checkpoint: width 24 to 7."""
    SentenceEncoder.load(ROOT / "weights" / "tiny").save(folder)
    shutil.rmtree(folder / "1_Pooling")
    shutil.rmtree(folder / "2_Normalize")
    kinds = ["Transformer", "Dense"] + ["Normalize"] * normalize + ["MultiVectorMask"]
    homes = {"Transformer": "base.modules.transformer", "Dense": "base.modules.dense"}
    homes |= {
        "Normalize": "base.modules.normalize",
        "MultiVectorMask": "multi_vector_encoder.modules.multi_vector_mask",
    }
    places = [f"{i}_{kind}" if i else "" for i, kind in enumerate(kinds)]
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.{homes[kind]}.{kind}"}
        for i, (place, kind) in enumerate(zip(places, kinds, strict=True))
    ]
    files = {"modules.json": modules, "sentence_bert_config.json": {"document_length": 14, "max_seq_length": 16}}
    files["sentence_bert_config.json"] |= {"query_expansion": expansion} if expansion else {"query_length": 12}
    about = {"model_type": "MultiVectorEncoder", "prompts": {"query": "[MASK] ", "document": "dog "}}
    files["config_sentence_transformers.json"] = about | {"similarity_fn_name": "maxsim", "default_prompt_name": None}
    dense = {"in_features": 24, "out_features": 7, "bias": False}
    files["1_Dense/config.json"] = dense | {"activation_function": "torch.nn.modules.linear.Identity"} | TOKENS
    if normalize:
        files["2_Normalize/config.json"] = TOKENS
    files[f"{places[-1]}/config.json"] = {"skiplist_words": WORDS, "skiplist_tasks": ["document"]}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    weight = torch.randn(7, 24, generator=torch.Generator().manual_seed(3))
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", EXPANSIONS["fixed"])


def alter(folder: Path, name: str, **changes) -> Path:
    content = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return folder


# ------------------------------------------------------------------------------------- the reference


@pytest.mark.reference
@pytest.mark.parametrize("normalize", [True, False], ids=["unit", "unscaled"])
@pytest.mark.parametrize("name", EXPANSIONS)
def test_vectors_and_scores_equal_the_references_also_after_saving(tmp_path, name, normalize):
    from sentence_transformers import MultiVectorEncoder as Reference

    encoder = MultiVectorEncoder.load(write(tmp_path / "model", EXPANSIONS[name], normalize))
    encoder.save(tmp_path / "saved")
    for folder in (tmp_path / "model", tmp_path / "saved"):
        ours, theirs = MultiVectorEncoder.load(folder).double(), Reference(str(folder), device="cpu").double()
        found = {}
        sides = {"query": theirs.encode_query(ALL), "document": theirs.encode_document(ALL)}
        for side, expected in sides.items():
            found[side] = ours.encode(ALL, prompt_name=side)
            assert len(found[side]) == len(ALL)
            for i, matrix in enumerate(expected):
                assert_parity(f"{name} {side}", torch.from_numpy(found[side][i]), matrix, PIECE)
        scores = theirs.similarity(sides["query"], sides["document"]).double()
        ours_scores = torch.from_numpy(ours.similarity(found["query"], found["document"]))
        largest = scores.abs().max()  # the reference rounds them to float32
        assert_parity(f"{name} scores", ours_scores / largest, scores / largest, 2e-6)


def check_golden(encoder: MultiVectorEncoder) -> None:
    expected = golden("modern/tiny-colbert")
    for side, prompt in (("queries", "query"), ("documents", "document")):
        found = encoder.encode(SENTENCES, prompt_name=prompt)
        assert np.diff(found.starts).tolist() == expected[f"{side}.lengths"].tolist()
        assert_parity(side, torch.from_numpy(found.rows), expected[side], PIECE)
    rows, own, _ = encoder.rows_of([encoder.settings.prompts["document"] + text for text in SENTENCES], query=False)
    vectors, counted = encoder(rows, own, query=False)
    (vectors[counted] * expected["pull"]).sum().backward()
    for name, parameter in (("projection", encoder.projection.linear), ("words", encoder.bert.embeddings.word)):
        assert_parity(name, parameter.weight.grad, expected[f"gradients.{name}"], GRADIENT)


def test_golden_values_also_after_saving(tmp_path):
    encoder = MultiVectorEncoder.load(COLBERT)
    encoder.save(tmp_path / "saved")
    check_golden(encoder.double())
    check_golden(MultiVectorEncoder.load(tmp_path / "saved").double())


def test_golden_values_as_written_out(written_out):
    check_golden(MultiVectorEncoder.load(COLBERT).double())


OLD_LAYOUTS = [
    "PyLate",
    "PyLate without fillers",
    "PyLate, class of an older release",
    "Stanford",
    "Stanford, defaults",
]


def write_old(folder: Path, layout: str) -> Path:
    """The two layouts before sentence-transformers': of PyLate, and of the Stanford group."""
    if layout.startswith("Stanford"):
        SentenceEncoder.load(ROOT / "weights" / "tiny").save(folder)
        for name in ("1_Pooling", "2_Normalize"):
            shutil.rmtree(folder / name)
        for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
            (folder / name).unlink()
        weight = torch.randn(7, 24, generator=torch.Generator().manual_seed(3))
        bert = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(bert | {"linear.weight": weight}, folder / "model.safetensors")
        alter(folder, "config.json", architectures=["HF_ColBERT"])
        about = {"query_maxlen": 11, "doc_maxlen": 14, "attend_to_mask_tokens": True, "mask_punctuation": False}
        (folder / "artifact.metadata").write_text(json.dumps(about if layout == "Stanford" else {"dim": 7}))
        return folder
    write(folder)
    shutil.rmtree(folder / "3_MultiVectorMask")
    shutil.rmtree(folder / "2_Normalize")
    modules = json.loads((folder / "modules.json").read_text())[:2]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    alter(folder, "1_Dense/config.json", module_input_name=..., module_output_name=...)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16, "do_lower_case": False}))
    about = {"model_type": "ColBERT", "similarity_fn_name": "MaxSim", "prompts": {}, "query_length": 10}
    about |= {"query_prefix": "[Q] ", "document_prefix": "[D] ", "document_length": 13, "skiplist_words": WORDS}
    about |= {"attend_to_expansion_tokens": False, "do_query_expansion": "without" not in layout}
    if "older" in layout:
        about |= {"model_type": ..., "similarity_fn_name": "cosine", "skiplist_words": None}
    alter(folder, "config_sentence_transformers.json", **about)
    spec = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(spec.replace('"[unused0]"', '"[Q] "').replace('"[unused1]"', '"[D] "'))
    return folder


@pytest.mark.reference
@pytest.mark.parametrize("layout", OLD_LAYOUTS)
def test_older_layouts_give_the_references_vectors_and_are_saved_in_the_new_one(tmp_path, layout):
    from sentence_transformers import MultiVectorEncoder as Reference

    source = write_old(tmp_path / "old", layout)
    MultiVectorEncoder.load(source).save(tmp_path / "saved")
    texts = [*ALL, "[unused0] [Q] a cat [D]"]
    theirs = Reference(str(source), device="cpu").double()
    sides = {"query": theirs.encode_query(texts), "document": theirs.encode_document(texts)}
    for folder in (source, tmp_path / "saved"):
        again = Reference(str(folder), device="cpu").double()
        for side, expected in sides.items():
            found = MultiVectorEncoder.load(folder).double().encode(texts, prompt_name=side)
            moved = again.encode_query(texts) if side == "query" else again.encode_document(texts)
            for i, matrix in enumerate(expected):
                assert_parity(f"{layout} {side} {i}", torch.from_numpy(found[i]), matrix, PIECE)
                assert_parity(f"{layout} {side} {i}, back", moved[i], matrix, PIECE)


@pytest.mark.reference
def test_gradients_equal_the_references(folder):
    from sentence_transformers import MultiVectorEncoder as Reference

    ours, theirs = MultiVectorEncoder.load(folder).double(), Reference(str(folder), device="cpu").double().eval()
    texts = ["dog " + text for text in SENTENCES]
    rows, own, _ = ours.rows_of(texts, query=False)
    vectors, counted = ours(rows, own, query=False)
    features = theirs(theirs.preprocess(texts, task="document"), task="document")
    expected, mask = features["token_embeddings"], features["attention_mask"].bool()
    assert torch.equal(counted, mask)
    pull = torch.randn(vectors[counted].shape, dtype=torch.float64)
    (vectors[counted] * pull).sum().backward()
    (expected[mask] * pull).sum().backward()
    gradients = dict(theirs.named_parameters())
    assert_parity("projection", ours.projection.linear.weight.grad, gradients["1.linear.weight"].grad, GRADIENT)
    word = ours.bert.embeddings.word.weight.grad
    assert_parity("words", word, gradients["0.model.embeddings.word_embeddings.weight"].grad, GRADIENT)


# ------------------------------------------------------------------------------- queries and documents


def test_fillers_are_compared_and_change_nothing_unless_they_are_attended_to(tmp_path):
    plain = MultiVectorEncoder.load(write(tmp_path / "plain")).double()
    filled = MultiVectorEncoder.load(write(tmp_path / "filled", EXPANSIONS["fixed"])).double()
    seen = MultiVectorEncoder.load(write(tmp_path / "seen", EXPANSIONS["attended"])).double()
    short = ["a cat"]
    own, more, attended = (torch.from_numpy(each.encode(short, query=True)[0]) for each in (plain, filled, seen))
    assert (len(own), len(more), len(attended)) == (5, 9, 9)  # [CLS] [MASK] a cat [SEP], and four fillers
    assert_parity("own tokens", more[:5], own, PIECE)
    assert (attended[:5] - own).abs().max() > 1e-3


def test_skipped_words_have_no_vector_in_documents_only(folder):
    encoder = MultiVectorEncoder.load(folder)
    documents = encoder.encode(["the cat , the dog ."], query=False)
    assert len(documents[0]) == len("[CLS] dog cat dog [SEP]".split()) - 1  # no prompt here: [CLS] cat dog [SEP]
    assert len(encoder.encode(["the cat ."], query=True)[0]) == 9


def test_vectors_have_length_1_only_if_the_folder_says_so(tmp_path):
    for normalize in (True, False):
        encoder = MultiVectorEncoder.load(write(tmp_path / str(normalize), None, normalize))
        lengths = np.linalg.norm(encoder.encode(["a cat"], query=False)[0], axis=1)
        assert np.allclose(lengths, 1, atol=1e-6) == normalize


def test_a_text_has_the_same_vectors_in_any_batch(folder):
    encoder = MultiVectorEncoder.load(folder).double()
    for query in (True, False):
        together = encoder.encode(ALL, query=query, batch_tokens=40)
        for i, text in enumerate(ALL):
            alone = encoder.encode([text], query=query)
            assert_parity("alone", torch.from_numpy(together[i]), torch.from_numpy(alone[0]), PIECE)
    assert encoder.encode([], query=False).shape == (0, 7)


def test_in_bfloat16_the_vectors_are_nearly_the_same_and_in_float32(folder):
    encoder = MultiVectorEncoder.load(folder)
    with torch.autocast("cpu", torch.bfloat16):  # as ``precision="bfloat16"`` has it, on any CPU
        low, _ = encoder([[2, 40, 3]], [3], query=False)
    high, _ = encoder([[2, 40, 3]], [3], query=False)
    assert low.dtype == torch.float32
    assert 0 < (low - high).abs().max() < 0.05  # 8 bits in two layers of the encoder, vectors of length 1


def test_weights_that_are_too_large_are_named(folder):
    encoder = MultiVectorEncoder.load(folder)
    with torch.no_grad():
        encoder.projection.linear.weight.mul_(1e38).mul_(10)
    with pytest.raises(InputError, match="a token's vector holds NaN or infinity"):
        encoder.encode(["a cat"], query=False)


def test_long_texts_are_cut_and_counted(folder):
    encoder = MultiVectorEncoder.load(folder)
    encoder.encode(["cat " * 40, "a cat"], query=False)
    assert encoder.truncated == 1
    assert len(encoder.encode(["cat " * 40], query=False)[0]) == 14
    assert len(encoder.encode(["cat " * 40], query=True)[0]) == 9


# ----------------------------------------------------------------------------------------- the commands


def test_search_evaluate_and_encode_take_it(folder, tmp_path, capsys):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{text}\n" for text in SENTENCES if text.strip()))
    texts = corpus.read_text().splitlines()
    arguments = [str(corpus), "--model", str(folder), "--query", "a cat sits", "--top", "2"]
    search(arguments)
    first = capsys.readouterr().out
    encoder = MultiVectorEncoder.load(folder)
    query, documents = encoder.encode(["a cat sits"], query=True), encoder.encode(texts, prompt_name="document")
    scores = [float(max_sim(torch.from_numpy(query[0]), torch.from_numpy(documents[i]))) for i in range(len(texts))]
    best = int(np.argmax(scores))
    assert first.splitlines()[1].split(maxsplit=1) == [f"{scores[best]:.4f}", texts[best]]
    index = ["--index", str(tmp_path / "index.safetensors")]
    for _ in range(2):  # made, then read
        search([*arguments, *index])
        assert capsys.readouterr().out == first
    files = {"queries.jsonl": [{"_id": "q", "text": "a cat"}], "corpus.jsonl": [{"_id": t, "text": t} for t in texts]}
    for name, rows in files.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.tsv").write_text(f"q\t{texts[0]}\t1\n")
    data = ["--queries", "queries.jsonl", "--corpus", "corpus.jsonl", "--qrels", "test.tsv"]
    evaluate([part if part.startswith("--") else str(tmp_path / part) for part in data] + ["--model", str(folder)])
    assert "ndcg" in capsys.readouterr().out
    encode(["--model", str(folder), "--file", str(corpus), "--out", str(tmp_path / "out.safetensors")])
    assert load_file(tmp_path / "out.safetensors").keys() == {"rows", "starts"}


def test_what_needs_one_vector_per_text_says_so(folder, tmp_path):
    (tmp_path / "corpus.txt").write_text("a cat\na dog\n")
    common = ["--model", str(folder), "--file", str(tmp_path / "corpus.txt")]
    with pytest.raises(InputError, match="no single array"):
        encode([*common, "--out", str(tmp_path / "out.npy")])
    with pytest.raises(InputError, match="only an encoder of dense vectors"):
        distill(["--model", str(folder), "--out", str(tmp_path / "table"), "--device", "cpu"])
    with pytest.raises(InputError, match="truncate_dim: a MultiVectorEncoder has a vector per token"):
        encode([*common, "--out", str(tmp_path / "out.safetensors"), "--truncate-dim", "3"])
    with pytest.raises(InputError, match="has a vector per token: only search data"):
        evaluate(["--model", str(folder), "--split", "dev"])
    np.save(tmp_path / "vectors.npy", np.ones((2, 7), np.float32))
    with pytest.raises(InputError, match="has a vector per token: certify compares one vector of each text"):
        certify([str(tmp_path / "vectors.npy"), "--texts", str(tmp_path / "corpus.txt"), "--model", str(folder)])
    with pytest.raises(InputError, match=r"MultiVectorEncoder\.load opens it"):
        SentenceEncoder.load(folder)


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}, "module_input_name"),
        ("1_Dense/config.json", {"out_features": 8}, "misshapen linear.weight"),
        ("1_Dense/config.json", {"activation_function": "custom.Wave"}, "activation_function 'custom.Wave'"),
        ("sentence_bert_config.json", {"query_expansion": {"length": 0}}, "length must be an integer from 1, not 0"),
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "fixed"}}, "length"),
        (
            "sentence_bert_config.json",
            {"query_expansion": {"length": 9, "strategy": "max"}},
            "strategy must be fixed|min",
        ),
        ("sentence_bert_config.json", {"query_expansion": {"length": 9, "token": "[Q]"}}, "has no token [Q]"),
        ("3_MultiVectorMask/config.json", {"keep_only_token_ids": [3]}, "keep_only_token_ids"),
        (
            "config_sentence_transformers.json",
            {"similarity_fn_name": "meanmaxsim"},
            "similarity_fn_name must be maxsim",
        ),
        ("config_sentence_transformers.json", {"similarity_fn_name": "cosine"}, "similarity_fn_name must be maxsim"),
    ],
)
def test_settings_that_are_not_computed(folder, name, changes, message):
    with pytest.raises(InputError) as error:
        MultiVectorEncoder.load(alter(folder, name, **changes))
    assert message in str(error.value)
    assert str(folder) in str(error.value) or "sentence_bert_config.json" in str(error.value)


def test_a_folder_without_its_projection(folder):
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[0], *modules[2:]]))
    with pytest.raises(InputError, match="only Transformer, Dense, Normalize"):
        MultiVectorEncoder.load(folder)
    with pytest.raises(InputError, match="which pools nothing"):
        MultiVectorEncoder.load(folder, "cls")


SETTINGS = {  # of each older layout: tokens of a query, do they see each other all, tokens of a document, skipped words
    "PyLate": (10, False, 13, WORDS),
    "PyLate without fillers": (None, False, 13, WORDS),
    "PyLate, class of an older release": (10, False, 13, [*string.punctuation]),
    "Stanford": (11, True, 14, []),
    "Stanford, defaults": (32, False, None, [*string.punctuation]),
}


@pytest.mark.parametrize("layout", SETTINGS)
def test_settings_of_older_layouts(tmp_path, layout):
    """A marker is one token, also where a tokenizer would take it apart; queries are filled up with [MASK]."""
    encoder = MultiVectorEncoder.load(write_old(tmp_path / "old", layout))
    filled, attend, length, skipped = SETTINGS[layout]
    assert encoder.settings.skiplist_words == skipped
    assert encoder.settings.document_length == length
    marks = ("[Q] ", "[D] ") if layout.startswith("PyLate") else ("[unused0] ", "[unused1] ")
    assert encoder.settings.prompts == dict(zip(("query", "document"), marks, strict=True))
    first = encoder.tokenizer.backend.token_to_id("[Q] " if layout.startswith("PyLate") else "[unused0]")
    cls, a, cat, sep, mask = map(encoder.tokenizer.backend.token_to_id, ["[CLS]", "a", "cat", "[SEP]", "[MASK]"])
    own = [cls, first, a, cat, sep]
    assert encoder.rows_of([marks[0] + "a cat"], query=True)[0] == [own + [mask] * ((filled or 5) - 5)]
    assert (encoder.expansion.attend if filled else encoder.expansion) == (attend if filled else None)
    assert encoder.settings.query_length == (None if filled else 10)
    words = encoder.rows_of([marks[1] + "cat " * 40], query=False)[0][0]
    assert len(words) == min(length or 99, encoder.tokenizer.limit)
    assert encoder.normalize
    matrix = encoder.encode(["a cat ."], prompt_name="document")[0]
    assert len(matrix) == 6 - ("." in skipped)
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-6)


def test_older_layouts_that_are_not_computed(tmp_path):
    stanford, pylate = write_old(tmp_path / "stanford", "Stanford"), write_old(tmp_path / "pylate", "PyLate")
    assert MultiVectorEncoder.load(stanford).expansion.length == 11
    with pytest.raises(InputError, match=r"artifact\.metadata: similarity must be cosine, not 'l2'"):
        MultiVectorEncoder.load(alter(stanford, "artifact.metadata", similarity="l2"))
    alter(stanford, "artifact.metadata", similarity="cosine")
    tensors = load_file(stanford / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if "linear" not in name}, stanford / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors: no key 'linear\.weight'"):
        MultiVectorEncoder.load(stanford)
    with pytest.raises(InputError, match="query_length must be an integer from 1, not 0"):
        MultiVectorEncoder.load(alter(pylate, "config_sentence_transformers.json", query_length=0))
    words = dict.fromkeys(PYLATE_KEYS, ...)
    with pytest.raises(InputError, match=r"modules\.json has no MultiVectorMask"):
        MultiVectorEncoder.load(alter(pylate, "config_sentence_transformers.json", **words))
