"""Masked words: by hand, in the proportions of the paper, and beside transformers' collator."""

import pytest
import torch

from minisbert.training.objectives.masked import draw_masks, mask_tokens

MASK = 4


def test_the_example_of_the_docstring():
    ids, other = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[50, 60, 70, 80]])
    chance = torch.tensor([[0.11, 0.13, 0.14, 0.5]])
    inputs, chosen = mask_tokens(ids, torch.ones(1, 4, dtype=torch.bool), MASK, chance, other)
    assert inputs.tolist() == [[MASK, 60, 7, 8]]
    assert chosen.tolist() == [[True, True, True, False]]


def test_special_tokens_and_pads_are_never_chosen():
    ids, words = torch.tensor([[2, 5, 3, 0]]), torch.tensor([[False, True, False, False]])
    inputs, chosen = mask_tokens(ids, words, MASK, torch.zeros(1, 4), ids)
    assert inputs.tolist() == [[2, MASK, 3, 0]]
    assert chosen.tolist() == words.tolist()


def shares(inputs: torch.Tensor, chosen: torch.Tensor, ids: torch.Tensor) -> list[float]:
    """Of all tokens the chosen; of these [MASK], another word, and the word itself."""
    guessed, real = inputs[chosen], ids[chosen]
    masked = guessed == MASK
    stayed = guessed == real
    return [float(share.double().mean()) for share in (chosen, masked, ~masked & ~stayed, stayed)]


PAPER = [0.15, 0.8, 0.1, 0.1]  # Devlin et al. 2019, section 3.1 and appendix A.1


def test_the_proportions_of_the_paper():
    """Of 200,000 tokens; .005 is some three standard errors of the rarest share."""
    ids = torch.full((1000, 200), 7)
    drawn = draw_masks(ids, torch.ones_like(ids), MASK, 30_000, torch.Generator().manual_seed(0))
    assert shares(*drawn, ids) == pytest.approx(PAPER, abs=0.006)


@pytest.mark.reference
def test_the_proportions_are_those_of_transformers(tiny):
    transformers = pytest.importorskip("transformers", reason="needs the reference extra")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    torch.manual_seed(0)
    ids = torch.full((500, 200), tokenizer.convert_tokens_to_ids("a"))
    batch = collate([{"input_ids": row} for row in ids.clone()])
    chosen = batch["labels"] != -100
    masked = batch["input_ids"][chosen] == tokenizer.mask_token_id
    assert [chosen.double().mean().item(), masked.double().mean().item()] == pytest.approx(PAPER[:2], abs=0.01)
    assert torch.equal(batch["labels"][chosen], ids[chosen])
