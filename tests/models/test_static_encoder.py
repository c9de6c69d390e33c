"""Static tables: the reference's vectors, Model2Vec's files, saving, distillation, the commands,
bad input.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend

from minisbert.checkpoints.layout import read_folder
from minisbert.commands.convert import distill_static as main
from minisbert.commands.encode import main as encode
from minisbert.commands.search import main as search
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.static_encoder import (
    StaticEncoder,
    bag_mean,
    distill,
    principal_components,
    read_table,
    sif_weights,
    token_vectors,
)
from minisbert.training.options import Settings
from minisbert.training.starting_model import load_encoder
from tests.architectures.tiny import alter
from tests.parity import PIECE, ROOT, assert_parity
from tests.reference.texts import SENTENCES, TEXTS

TINY = ROOT / "weights" / "tiny"
WORDS = [*SENTENCES, *TEXTS, "", "a", "the cat " * 400]


def table(rows: int = 131, width: int = 7) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(5))


def model2vec(folder: Path, normalize: bool = True, **tensors: torch.Tensor) -> Path:
    """A folder as Model2Vec writes it: float16, and of newer versions a mapping and weights."""
    folder.mkdir()
    shutil.copy(TINY / "tokenizer.json", folder)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "model2vec", "normalize": normalize})
    )
    kinds = (
        {"StaticEmbedding": ".", "Normalize": "1_Normalize"}
        if normalize
        else {"StaticEmbedding": "."}
    )
    modules = []
    for kind, path in kinds.items():
        modules.append({"name": kind, "path": path, "type": f"sentence_transformers.models.{kind}"})
    (folder / "modules.json").write_text(json.dumps(modules))
    save_file({"embeddings": table().half()} | tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def distilled(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("static") / "table"
    distill(SentenceEncoder.load(TINY), dim=9, coefficient=0.01).save(path)
    return path


# ------------------------------------------------------------------------------------- the numbers


def test_worked_numbers_of_the_docstrings():
    found = bag_mean(
        torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([0, 1, 2]), torch.tensor([0, 2, 3])
    )
    assert found.tolist() == [[2], [8], [0]]
    assert_parity("weights", sif_weights(2, 0.4), torch.tensor([0.4, 0.5]).double(), 1e-7)
    projected = principal_components(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), 1).abs()
    assert_parity("components", projected, torch.ones(2, 1), 2e-6)


def test_principal_components_keep_what_varies_most():
    """By hand, whatever the sign."""
    x = table(40, 6).double() * torch.tensor([5, 4, 3, 2, 1, 0.5])
    full, three = principal_components(x, 6), principal_components(x, 3)
    distances = [torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist") for y in (full, x)]
    assert_parity("distances", *distances, PIECE)
    assert_parity("shorter", three, full[:, :3], PIECE)
    assert (full.var(dim=0).diff() < 0).all()
    kept = np.linalg.svd((x - x.mean(dim=0)).numpy(), compute_uv=False)
    assert_parity("variances", full.square().sum(dim=0).sqrt(), torch.tensor(kept), PIECE)


@pytest.mark.reference
@pytest.mark.parametrize("normalize", [True, False])
def test_folders_open_here_and_there_also_after_saving(tmp_path, normalize):
    """sentence-transformers gives the same vectors from our folders."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    static = StaticEmbedding(
        Backend.from_file(str(TINY / "tokenizer.json")), embedding_weights=table()
    )
    theirs = SentenceTransformer(
        modules=[static, Normalize()][: 1 + normalize], device="cpu", prompts={"query": "the "}
    )
    theirs.save(str(tmp_path / "theirs"), create_model_card=False)
    encoder = StaticEncoder.load(tmp_path / "theirs")
    encoder.save(tmp_path / "ours")
    again = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    for options in ({}, {"prompt_name": "query"}):
        expected = theirs.double().encode(WORDS, convert_to_tensor=True, **options)
        assert_parity(
            "static",
            encoder.double().encode(WORDS, convert_to_tensor=True, **options),
            expected,
            PIECE,
        )
        assert_parity(
            "saved",
            again.double().encode(WORDS, convert_to_tensor=True, **options),
            expected,
            PIECE,
        )


# ------------------------------------------------------------------------------- Model2Vec's files


@pytest.mark.reference
@pytest.mark.parametrize("direction", ["left", "right"])
def test_truncation_in_the_tokenizers_file_is_obeyed_as_in_sentence_transformers(
    tmp_path, direction
):
    """Such a folder has its limit nowhere else."""
    from sentence_transformers import SentenceTransformer

    folder = model2vec(tmp_path / "m", normalize=False)
    backend = Backend.from_file(str(TINY / "tokenizer.json"))
    backend.enable_truncation(3, direction=direction)
    backend.save(str(folder / "tokenizer.json"))
    texts = ["", "the cat sits on the mat", "a cat and a dog", "moon"]
    encoder = StaticEncoder.load(folder)
    encoder.save(tmp_path / "saved")
    for path in (folder, tmp_path / "saved"):
        theirs = (
            SentenceTransformer(str(path), device="cpu")
            .double()
            .encode(texts, convert_to_tensor=True)
        )
        found = StaticEncoder.load(path).double().encode(texts, convert_to_tensor=True)
        assert_parity(direction, found, theirs, PIECE)
    encoder.encode(texts)
    assert encoder.truncated == 2
    (states,) = StaticEncoder.load(folder, max_seq_length=5).encode(
        texts[1:2], output_value="token_embeddings"
    )
    assert states.shape == (5, 7)


def test_a_model2vec_folder_has_a_mapping_and_weights(tmp_path):
    """Newer tables are stored in parts."""
    mapping, weights = torch.arange(131) % 40, torch.linspace(0.5, 2, 131)
    encoder = StaticEncoder.load(model2vec(tmp_path / "m", mapping=mapping, weights=weights))
    rows = table().half().float()[mapping] * weights[:, None]  # (V, D)
    backend = Backend.from_file(str(TINY / "tokenizer.json"))
    for text, vector in zip(
        SENTENCES, encoder.encode(SENTENCES, convert_to_tensor=True), strict=True
    ):
        ids = backend.encode(text, add_special_tokens=False).ids
        mean = rows[ids].mean(dim=0) if ids else torch.zeros(7)
        assert_parity("Model2Vec", vector, mean / mean.norm().clamp_min(1e-12), 1e-6)  # float32
    plain = StaticEncoder.load(model2vec(tmp_path / "n", normalize=False))
    assert np.linalg.norm(plain.encode(["a cat"])) != pytest.approx(1, abs=1e-3)
    (tmp_path / "n" / "modules.json").unlink()
    with pytest.raises(InputError, match=r"no modules\.json: save the model again with Model2Vec"):
        StaticEncoder.load(tmp_path / "n")


def test_a_sum_beyond_float32_is_named(tmp_path):
    """The mean of finite rows may overflow."""
    folder = model2vec(tmp_path / "m")
    save_file({"embeddings": torch.full((131, 7), 3e38)}, folder / "model.safetensors")
    with pytest.raises(InputError, match="the vector of 'a cat' holds NaN or infinity"):
        StaticEncoder.load(folder).encode(["cat", "a cat"])


# ---------------------------------------------------------------------------------------- encoding


def test_a_vector_does_not_depend_on_its_batch(distilled):
    encoder = StaticEncoder.load(distilled)
    together = encoder.encode(WORDS)
    # In float32, and in other batches.
    assert np.abs(together[::-1] - encoder.encode(WORDS[::-1])).max() <= 1e-6
    for text, vector in zip(WORDS, together, strict=True):
        assert np.abs(encoder.encode([text])[0] - vector).max() <= 1e-6
    encoder = encoder.double()
    tokens = encoder.encode(WORDS, output_value="token_embeddings")
    means = torch.stack([x.mean(dim=0) if len(x) else torch.zeros(9) for x in tokens])
    encoder.normalize = False
    assert_parity("tokens", means, encoder.encode(WORDS, convert_to_tensor=True), PIECE)
    assert encoder.encode([]).shape == (0, 9)


def test_gradients_reach_the_rows_that_were_used(distilled):
    """A table can be trained."""
    encoder = StaticEncoder.load(distilled).double()
    encoder(torch.tensor([7, 7, 9]), torch.tensor([0, 2])).sum().backward()
    expected = torch.zeros(131, 9, dtype=torch.float64).index_fill_(0, torch.tensor([7, 9]), 1)
    assert_parity("gradient", encoder.embedding.weight.grad, expected, PIECE)


# ------------------------------------------------------------------------------------ distillation


def test_a_distilled_table_is_what_its_parts_say(distilled):
    """Token vectors, their main directions, and weights by frequency."""
    encoder = SentenceEncoder.load(TINY)
    vectors = token_vectors(encoder)
    ids, mask = torch.tensor([[2, 40, 3]]), torch.ones(1, 3, dtype=torch.bool)
    # float32, and means of hidden states of up to 3, not vectors of length 1
    assert_parity("a token alone", vectors[40], encoder.unscaled(ids, mask)[0], 2e-5)
    rows = principal_components(vectors.double(), 9) * sif_weights(131, 0.01)[:, None]
    found = load_file(distilled / "model.safetensors")["embedding.weight"]
    assert_parity("the table", found.abs(), rows.float().abs(), 2e-5)
    assert np.allclose(np.linalg.norm(StaticEncoder.load(distilled).encode(["a cat"]), axis=1), 1)


def test_an_encoder_that_cuts_the_start_of_texts_has_the_same_table(tmp_path):
    """[CLS] token [SEP] is never cut, so that the side on which a model cuts changes nothing."""
    folder = shutil.copytree(TINY, tmp_path / "left")
    alter(folder, "tokenizer_config.json", truncation_side="left")
    encoder = SentenceEncoder.load(folder)
    # Both compute in float32.
    assert_parity("table", token_vectors(encoder), token_vectors(SentenceEncoder.load(TINY)), 2e-6)
    words = encoder.tokenizer.backend.encode("the cat " * 9, add_special_tokens=False).ids
    assert encoder.tokenizer.frame(words) == [2, *words[-14:], 3], (
        "of 16 tokens the last 14, [CLS] and [SEP]"
    )
    assert encoder.tokenizer.frame(words[:2]) == [2, *words[:2], 3]
    assert SentenceEncoder.load(TINY).tokenizer.frame(words) == [2, *words[:14], 3]


def test_the_commands_take_it(tmp_path, capsys, distilled):
    """Where a transformer is not needed."""
    main(["--model", str(TINY), "--dim", "4", "--out", str(tmp_path / "t"), "--device", "cpu"])
    assert "wrote 131 vectors of width 4" in capsys.readouterr().err
    (tmp_path / "corpus.txt").write_text("a cat sits\na red house\n")
    encode(
        [
            "--model",
            str(tmp_path / "t"),
            "--file",
            str(tmp_path / "corpus.txt"),
            "--out",
            str(tmp_path / "v.npy"),
        ]
    )
    assert np.load(tmp_path / "v.npy").shape == (2, 4)
    query = [
        str(tmp_path / "corpus.txt"),
        "--model",
        str(tmp_path / "t"),
        "--query",
        "a red house",
        "--top",
        "1",
    ]
    file = ["--model", str(tmp_path / "t"), "--file", str(tmp_path / "corpus.txt"), "--out"]
    encode([*file, str(tmp_path / "codes.safetensors"), "--quantize", "int8"])
    # twice by an index: it is made, then read
    for index in (None, "index.safetensors", "index.safetensors", "codes.safetensors"):
        search([*query, *(["--index", str(tmp_path / index)] if index else [])])
        score, text = capsys.readouterr().out.splitlines()[-1].split(maxsplit=1)
        assert (float(score), text) == (pytest.approx(1, abs=0.01), "a red house")  # of int8 codes


# --------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"weight": table()}, "no key 'embeddings'"),
        (
            {"embedding.weight": table(), "bias": table()},
            "floating point numbers is needed (embedding.weight)",
        ),
        ({"embeddings": table().to(torch.int8)}, "not {'embeddings': 'torch.int8'}"),
        ({"embeddings": table()[0]}, "table must be (V, D), not (7,)"),
        ({"embeddings": table(), "mapping": torch.full((131,), 131)}, "mapping"),
        ({"embeddings": table(), "mapping": torch.full((131,), -1)}, "mapping"),
        ({"embeddings": table(), "weights": torch.ones(130)}, "weights"),
        ({"embeddings": table() * torch.inf}, "table must be finite"),
        (
            {"embeddings": table(rows=130)},
            "the embedding table has 130 rows, and the tokenizer has",
        ),
    ],
)
def test_tables_that_do_not_fit(tmp_path, tensors, message):
    """Each would be read beyond its end, or give wrong vectors."""
    folder = model2vec(tmp_path / "m")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError) as error:
        StaticEncoder.load(folder)
    assert message in str(error.value)
    assert str(folder) in str(error.value)


def test_what_a_table_cannot_do(tmp_path, distilled):
    """One line that says what can."""
    table, mine = str(distilled), tmp_path / "mine"
    mine.mkdir()
    (mine / "mine.txt").write_text("mine")
    for refused, message in (
        (
            lambda: StaticEncoder.load(table, pooling="cls"),
            "static vectors: pooling must be mean, not 'cls'",
        ),
        (
            lambda: encode(["--model", table, "--compiled", "--device", "cpu", "a"]),
            "only a SentenceEncoder is comp",
        ),
        (
            lambda: StaticEncoder.load(table).encode(["a"], dtype="bfloat16"),
            "dtype must be float32",
        ),
        (
            lambda: StaticEncoder.load(table, max_seq_length=2.5),
            "max_seq_length must be an integer from 1, not 2.5",
        ),
        (
            lambda: distill(SentenceEncoder.load(TINY), dim=2.5),
            "dim must be an integer from 1, not 2.5",
        ),
        (
            lambda: distill(SentenceEncoder.load(TINY), 4, "a"),
            "coefficient must be above 0 and finite, not 'a'",
        ),
        (lambda: SentenceEncoder.load(table), r"StaticEncoder\.load opens it"),
        (
            lambda: main(["--model", table, "--out", str(tmp_path / "t")]),
            "only an encoder of dense vectors",
        ),
        (
            lambda: load_encoder(
                Settings(model=table), read_folder(Path(table)), torch.device("cpu")
            ),
            "is not trained here",
        ),
        (lambda: main(["--model", str(TINY), "--out", str(mine)]), r"mine\.txt would be lost"),
    ):
        with pytest.raises(InputError, match=message):
            refused()


def test_a_table_may_be_any_kind_of_float():
    """They are published in half precision."""
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        assert read_table(Path("x"), {"embeddings": table().to(kind)}).dtype == torch.float32
