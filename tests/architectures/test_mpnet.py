"""MPNet: buckets of distances, biases, token ids, the padding."""

import pytest
import torch

from minisbert.architectures.mpnet import biased_attention, relative_buckets
from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.architectures.tiny import batch, folder_of, random_model
from tests.parity import PIECE, assert_parity, golden
from tests.reference.texts import SENTENCES

FOLDER = folder_of("mpnet")


def test_worked_numbers_of_the_docstrings():
    before, after = torch.tensor([0, -1, -7, -8, -11, -12, -200]), torch.tensor([1, 7, 8, 200])
    assert relative_buckets(before).tolist() == [0, 1, 7, 8, 8, 9, 15]
    assert relative_buckets(after).tolist() == [17, 23, 24, 31]
    begins = torch.tensor([8, 12, 16, 23, 32, 46, 64, 91])
    assert relative_buckets(-begins).tolist() == [8, 9, 10, 11, 12, 13, 14, 15]
    assert relative_buckets(1 - begins).tolist() == [7, 8, 9, 10, 11, 12, 13, 14]


def test_a_bias_of_zero_changes_nothing_and_a_large_one_decides(written_out):
    query, key, value = torch.randn(3, 2, 3, 5, 4, dtype=torch.float64)
    plain = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    assert_parity(
        "no bias", biased_attention(query, key, value, torch.zeros(5, 5))[0], plain, PIECE
    )
    context, probabilities = biased_attention(query, key, value, 1e4 * torch.eye(5))
    assert torch.equal(probabilities, torch.eye(5).double().expand(2, 3, 5, 5))
    assert torch.equal(context, value)


def test_the_order_of_the_words_counts_also_without_absolute_positions():
    model, (ids, _) = random_model("mpnet"), batch(torch.tensor([11]))
    swapped = ids[:, [0, *range(10, 0, -1)]]
    model.embeddings.position.weight.data.zero_()
    assert not torch.allclose(model(ids)[0, 0], model(swapped)[0, 0])
    model.relative.weight.data.zero_()
    assert_parity("a bag of words", model(ids)[0, 0], model(swapped)[0, 0], PIECE)


def test_token_ids_are_the_references():
    reference, tokenizer = golden("architectures/tiny-mpnet"), read_tokenizer(FOLDER)
    expected = [
        ids[mask].tolist() for ids, mask in zip(reference["ids"], reference["mask"], strict=True)
    ]
    assert tokenizer.encode(SENTENCES).ids == expected
    pairs = tokenizer.encode_pairs(SENTENCES, SENTENCES[::-1])
    assert pairs.ids == [reference[f"pair.{i}"].tolist() for i in range(len(SENTENCES))]
    assert not any(map(any, pairs.token_types))


def test_padding_in_a_text():
    with pytest.raises(InputError, match="the text 'a <pad> dog' contains <pad>"):
        SentenceEncoder.load(FOLDER).encode(["a <pad> dog"])
