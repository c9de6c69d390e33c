"""docs/examples/docstrings.py: pairs to train on, and a search in other modules, as the commands read them."""

import importlib.util
import json

import pytest

from minisbert.data.datasets import triplet_rows
from minisbert.evaluation.retrieval import load_retrieval_folder
from minisbert.training.run_options import parse
from minisbert.training.settings import sources_of
from tests.conftest import ROOT

SPEC = importlib.util.spec_from_file_location("docstrings", ROOT / "docs" / "examples" / "docstrings.py")
EXAMPLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXAMPLE)


@pytest.mark.slow
def test_the_files_are_read_and_no_text_is_in_two_splits(tmp_path):
    sizes = EXAMPLE.write(tmp_path)
    rows, _ = triplet_rows(sources_of(parse(["--objective", "mnr", "--data", str(tmp_path / "pairs.tsv")])))
    search = load_retrieval_folder(tmp_path)
    assert (len(rows), len(search["dev"].queries), len(search["test"].queries)) == tuple(sizes.values())
    assert min(sizes.values()) > 500
    corpus = [json.loads(line)["text"] for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    assert len(corpus) == sizes["dev"] + sizes["test"]
    assert not {document for _, document in rows} & {*corpus}
