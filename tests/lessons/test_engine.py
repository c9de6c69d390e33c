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
import torch

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
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.md"
    secret.write_text("not in this folder")
    (notes / "secret.md").symlink_to(secret)
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
            "a link that leads out of the folder": 1,
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


def test_of_html_the_text_is_read_and_lines_keep_their_numbers(tmp_path):
    """Hits showed tags, and a word of a script found pages that do not have it."""
    page = "<!-- note\nover lines -->\n<p class='a'>Tom &amp; Ann</p>\n"
    page += "<script>\nfind()\n</script>\nend"
    (tmp_path / "page.html").write_text(page)
    (chunk,) = search.read_folder(tmp_path, 10)[0]
    assert chunk.text.split() == ["Tom", "&", "Ann", "end"]
    assert chunk.line == 3
    (tmp_path / "page.html").write_text("<p></p>")
    assert search.read_folder(tmp_path, 10)[1] == Counter({"empty": 1})


def test_vectors_are_kept_and_only_new_texts_are_encoded(engine, tmp_path, monkeypatch):
    """A large folder takes minutes, and changes little from one day to the next."""
    encoder = engine.encoder
    encoded = []
    encode = encoder.encode

    def noted(texts, **options):
        encoded.append(list(texts))
        return encode(texts, **options)

    monkeypatch.setattr(encoder, "encode", noted)
    kept = tmp_path / "vectors.npz"
    first = search.encode_new(encoder, ["one", "two", "one"], kept)
    np.testing.assert_array_equal(first[0], first[2])
    again = search.encode_new(encoder, ["two", "three"], kept)
    np.testing.assert_array_equal(again[0], first[1])
    assert [texts for texts in encoded if len(texts) != 1 or texts == ["three"]] == [
        ["one", "two"],
        ["three"],
    ]
    kept.write_bytes(b"damaged")
    np.testing.assert_allclose(search.encode_new(encoder, ["two"], kept)[0], first[1], atol=1e-6)


def test_vectors_of_another_model_are_not_used(engine, tmp_path):
    """The same folder may hold another model tomorrow, and nothing else would say so."""
    kept = tmp_path / "vectors.npz"
    before = search.encode_new(engine.encoder, ["one"], kept)
    with torch.no_grad():
        engine.encoder.bert.embeddings.word.weight.mul_(-1)
    assert np.abs(search.encode_new(engine.encoder, ["one"], kept) - before).max() > 0.01


def test_a_file_s_name_does_not_steer_the_terminal(capsys):
    """An escape sequence could hide what a hit says."""
    hit = {"score": 0.1, "path": "a\x1b[2Jb.md", "line": 1, "mark": "clear\x07 text"}
    search.show({"ms": {}, "hits": [hit]})
    printed = capsys.readouterr().out
    assert "a?[2Jb.md:1" in printed
    assert "\x1b" not in printed
    assert "\x07" not in printed


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
    assert "joined - words    +0.000   95 % +0.000 .. +0.000" in card, "question by question"
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
