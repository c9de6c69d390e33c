"""Lesson 22's engine: what of a folder it reads, whose functions search it, and the card of its
questions.
"""

import json
import os
import socket
import threading
from collections import Counter
from http.client import HTTPConnection

import numpy as np
import pytest

from lessons import engine as search
from minisbert.core import InputError

KEYS = "The spare key lies below the third flower pot. Do not tell anybody."
SOUP = "Boil the leeks for twenty minutes. Then add cream."


@pytest.fixture
def notes(tmp_path_factory):
    notes = tmp_path_factory.mktemp("notes")
    (notes / "sub").mkdir()
    (notes / ".git").mkdir()
    (notes / ".git" / "hidden.md").write_text("never read")
    (notes / "home.md").write_text("# Home\n\n" + KEYS)
    (notes / "sub" / "soup.txt").write_text(SOUP)
    (notes / "picture.png").write_bytes(b"\x89PNG")
    (notes / "data.txt").write_bytes(b"a\0b")
    (notes / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (notes / "empty.md").write_text(" \n")
    (notes / "large.txt").write_text("word " * 300_000)
    (notes / "gone.md").symlink_to(notes / "nowhere.md")
    os.mkfifo(notes / "pipe.txt")
    return notes


@pytest.fixture
def engine(notes, folder, tiny, monkeypatch):
    """Over the notes, with the tiny model, and an empty folder for the learner's files."""
    monkeypatch.setattr(search, "MODEL", str(tiny))
    return search.Engine(search.read_folder(notes, 100)[0])


def test_every_file_that_is_left_out_is_counted_by_its_reason(notes):
    chunks, skipped = search.read_folder(notes, 100)
    assert [(chunk.path, chunk.line) for chunk in chunks] == [("home.md", 1), ("sub/soup.txt", 1)]
    assert skipped == Counter(
        {
            "another kind of file": 1, "binary": 1, "not UTF-8": 1, "empty": 1,
            "longer than a megabyte": 1, "no regular file": 2,
        }
    )  # fmt: skip


def test_a_folder_without_text_and_no_folder_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="folder"):
            search.main([str(path)])


def test_chunks_overlap_know_their_line_and_stop_at_the_most(notes, capsys):
    text = "\n".join(f"word{number}" for number in range(160))
    first, second, third = search.chunks_of("a.md", text)
    assert (first.line, second.line, third.line) == (1, 71, 141)
    assert first.text.split()[-10:] == second.text.split()[:10]
    assert third.text.split()[-1] == "word159"
    (notes / "home.md").write_text(text)
    assert len(search.read_folder(notes, 2)[0]) == 2
    assert "stopped at 2 chunks" in capsys.readouterr().err


def test_words_and_vectors_are_joined_and_the_sentence_is_marked(engine):
    found = engine.search("where is the spare key?")
    assert found["hits"][0]["path"] == "home.md"
    assert found["hits"][0]["mark"] in KEYS
    assert found["hits"][0]["score"] >= round(1 / 61 + 1 / 62, 4)
    rows, scores = engine.joined(np.array([1, 0]), np.array([1]))
    assert rows.tolist() == [1, 0]
    np.testing.assert_allclose(scores, [2 / 61, 1 / 62])


def test_a_piece_that_passes_is_used_and_one_that_fails_is_not(engine, folder):
    own = "order = np.argsort(-np.asarray(scores), axis=1, kind='stable')\n"
    own += "    ranks = np.argsort(order, axis=1) + 1\n"
    head = "import numpy as np\n\ndef reciprocal_ranks(scores, k=60):\n    "
    path = folder / "lesson_20.py"
    path.write_text(f"{head}{own}    return 1 / (k + ranks)\n")
    use, mine = search.parts()
    assert mine == {"fusion.reciprocal_ranks"}
    np.testing.assert_allclose(
        use["fusion.reciprocal_ranks"](np.array([[9.0, 5.0]])), [[1 / 61, 1 / 62]]
    )
    path.write_text(f"{head}{own}    return 1 / ranks\n")
    assert search.parts()[1] == set()


def test_the_card_ranks_files_and_names_a_question_without_one(engine, notes, tmp_path):
    card = engine.card([("spare key flower pot", "home"), ("boil leeks cream", "soup.txt")])
    assert "words      nDCG@10 1.000" in card
    assert "2 of 2 files" in card
    file = tmp_path / "questions.tsv"
    for text, says in (("spare key\tattic\n", "attic"), ("a question without a file\n", "line 1")):
        file.write_text(text)
        with pytest.raises(InputError, match=says):
            search.main([str(notes), "--questions", str(file)])


def test_one_chunk_is_a_folder_too_and_a_page_answers_this_machine_only(engine, tmp_path):
    one = search.Engine(engine.chunks[:1])
    assert one.search("spare key")["hits"][0]["path"] == "home.md"
    server = search.ThreadingHTTPServer(("127.0.0.1", 0), search.BaseHTTPRequestHandler)
    thread = threading.Thread(target=search.serve, args=(one, server))
    thread.start()
    try:
        for host, status in (("", 200), ("evil.example", 403)):
            connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            connection.request("GET", "/search?q=key", headers={"Host": host} if host else {})
            response = connection.getresponse()
            assert response.status == status
            assert host or json.loads(response.read())["hits"]
            connection.close()
    finally:
        server.shutdown()
        thread.join()
    (tmp_path / "a.md").write_text("a text")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(InputError, match="--port"):
            search.main([str(tmp_path), "--port", port])
