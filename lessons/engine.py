"""A search engine over a folder of yours, made of the functions that you wrote (lesson 22).

    python -m lessons.engine ~/notes              opens a page on this machine, for your browser
    python -m lessons.engine ~/notes --ask "where is the spare key?"
    python -m lessons.engine ~/notes --questions questions.tsv       nDCG, bytes, whose parts

Reads Markdown, text and code, cuts them into chunks, encodes these with all-MiniLM-L6-v2 and
searches by words and by vectors at once. Of its six functions those that you have written, and that
the grader passes, are yours; the package's do for the others, and are marked. A line of the
questions' file is a question, a tab, and a part of the right file's path. Vectors are kept in
lessons/mine/engine, so only what is new in a folder is encoded at the next start. Nothing leaves
this machine.
"""

import hashlib
import html
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import parse_qs, urlsplit
from zipfile import BadZipFile

import numpy as np
import torch

from lessons.grader import sandbox
from lessons.grader.pieces import MINE, PIECES, mine, pieces_of
from lessons.search.docstrings import terms
from lessons.search.graph import Graph
from lessons.search.measure import interval, ndcg_of_each
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search import quantized
from minisbert.system.console import bounded, check_usage, command_parser, run_command, say
from minisbert.system.files import atomic_file

MODEL = "all-MiniLM-L6-v2"
KINDS = {".md", ".markdown", ".rst", ".txt", ".org", ".tex", ".py", ".js", ".ts"}
KINDS |= {".c", ".h", ".cpp", ".java", ".go"}
KINDS |= {".rs", ".rb", ".sh", ".sql", ".html", ".htm", ".css", ".toml", ".yaml", ".yml", ".json"}
KINDS |= {".csv"}
# What a page of HTML holds beside its text: comments, programs, styles, tags.
TAGS = re.compile(
    r"<!--.*?-->|<(script|style)\b.*?</\1\s*>|<[a-z/!][^>]*>", re.DOTALL | re.IGNORECASE
)
LARGEST = 2**20  # bytes of a file: a longer one is data and not a text
WORDS = 80  # of a chunk, as in lesson 20
OVERLAP = 10  # words that it shares with the next
CANDIDATES = 50  # of each engine, before their ranks are added
PARTS = (
    "dense.top_k",
    "quantized.to_int8",
    "bm25.bm25_scores",
    "by_tokens.max_sim",
    "fusion.reciprocal_ranks",
    "graph.walk",
)


@dataclass(frozen=True)
class Chunk:
    path: str  # below the folder
    line: int  # 0 where there is none
    text: str


def files(folder: Path, skipped: Counter) -> Iterator[Path]:
    """The folder's texts, in order; what is left out is counted in ``skipped`` by its reason."""

    def unreadable(error: OSError) -> None:
        skipped["no permission to open the folder"] += 1

    for here, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if Path(name).suffix.lower() in KINDS:
                yield Path(here, name)
            else:
                skipped["another kind of file"] += 1


def read(path: Path, folder: Path, skipped: Counter) -> str:
    """A file's text; "" if it has none, with the reason in ``skipped``."""
    try:
        if not path.is_file():
            skipped["no regular file"] += 1
        elif not path.resolve().is_relative_to(folder.resolve()):
            skipped["a link that leads out of the folder"] += 1
        elif path.stat().st_size > LARGEST:
            skipped["longer than a megabyte"] += 1
        elif b"\0" in (data := path.read_bytes()):
            skipped["binary"] += 1
        elif text := text_of(data.decode("utf-8-sig"), path.suffix.lower()):
            return text
        else:
            skipped["empty"] += 1
    except UnicodeDecodeError:
        skipped["not UTF-8"] += 1
    except OSError as error:
        skipped[error.strerror or type(error).__name__] += 1
    return ""


def text_of(content: str, kind: str) -> str:
    """What there is to read in a file: of HTML the text, whose lines keep their numbers."""
    if kind in (".html", ".htm"):
        # Where a tag ran over several lines, the lines stay, so that a hit's line is the file's.
        content = TAGS.sub(lambda tag: "\n" * tag[0].count("\n") or " ", content)
        content = html.unescape(content)
    return content if content.strip() else ""


def chunks_of(path: str, text: str, words: int = WORDS, overlap: int = OVERLAP) -> Iterator[Chunk]:
    """Pieces of so many ``words``, each with its line; one begins with the last ``overlap``."""
    found = [(match[0], match.start()) for match in re.finditer(r"\S+", text)]
    for start in range(0, max(1, len(found) - overlap), words - overlap):
        part = found[start : start + words]
        begin = part[0][1]
        last, start_of_last = part[-1]
        end = start_of_last + len(last)
        yield Chunk(path, text.count("\n", 0, begin) + 1, text[begin:end])


def read_folder(
    folder: Path, most: int, words: int = WORDS, overlap: int = OVERLAP
) -> tuple[list[Chunk], Counter]:
    """All chunks of a folder, at most ``most``, and how many files were left out and why."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder")
    found: list[Chunk] = []
    skipped: Counter = Counter()
    for path in files(folder, skipped):
        if text := read(path, folder, skipped):
            found += chunks_of(path.relative_to(folder).as_posix(), text, words, overlap)
        if len(found) >= most:
            say(f"stopped at {most:,} chunks, in {path.relative_to(folder)}: --most reads more")
            return found[:most], skipped
    return found, skipped


def chunks_to_search(folder: Path, most: int) -> list[Chunk]:
    """The chunks of a folder, which must have some; says what was left out."""
    chunks, skipped = read_folder(folder, most)
    for reason, count in skipped.most_common():
        noun = "file" if count == 1 else "files"
        say(f"skipped {count:,} {noun}: {reason}")
    if not chunks:
        raise InputError(
            f"{folder} has no text to search; read are files such as .md, .txt and .py"
        )
    return chunks


def parts() -> tuple[dict[str, Callable], set[str]]:
    """The six functions by name, and which are the reader's own: those that the grader passes."""
    use = {master: PIECES[master].original for master in PARTS}
    own: set[str] = set()
    for lesson in sorted({PIECES[master].lesson for master in PARTS}):
        path = mine(lesson)
        if not path.is_file():
            continue
        passed = [result.master for result in sandbox.grade(lesson) if result.passed]
        passed = [master for master in passed if master in PARTS]
        if not passed:
            continue
        written = sandbox.read_file(path, pieces_of(lesson))
        for master in passed:
            use[master], _ = sandbox.find(written.namespace, PIECES[master], path)
        own.update(passed)
    return use, own


def encode_new(encoder: SentenceEncoder, texts: list[str], kept: Path | None) -> np.ndarray:
    """The vectors of texts (N, D); those that the file ``kept`` has are not computed again.

    A vector's key is the text and the model, which is known by what it makes of one sentence: the
    same folder may hold another model tomorrow.
    """
    model = encoder.encode(["What does this model make of me?"])[0].round(3).tobytes()
    keys = []
    for text in texts:
        limit = str(encoder.max_seq_length).encode()
        keys.append(hashlib.sha256(model + limit + text.encode("utf-8", "replace")).hexdigest())

    vectors: dict[str, np.ndarray] = {}
    if kept:
        vectors = read_vectors(kept)
    new: dict[str, str] = {}
    for key, text in zip(keys, texts, strict=True):
        if key not in vectors:
            new[key] = text
    if new:
        found = encoder.encode(list(new.values()), show_progress_bar=True, dtype="auto")
        vectors |= dict(zip(new, found, strict=True))

    rows = np.stack([vectors[key] for key in keys])
    if kept and (new or len(vectors) > len({*keys})):
        # Only what the folder holds now: what was deleted there is deleted here.
        kept.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(kept) as partial, open(partial, "wb") as file:
            np.savez(file, keys=np.array(keys), vectors=rows)
    return rows


def read_vectors(path: Path) -> dict[str, np.ndarray]:
    """The vectors that were kept, by their key; none if there is no such file, or a damaged one."""
    try:
        with np.load(path) as file:
            return dict(zip(file["keys"].tolist(), file["vectors"], strict=True))
    except (OSError, ValueError, KeyError, BadZipFile):
        return {}


def place_of_vectors(folder: Path) -> Path:
    """The file that keeps a folder's vectors, in ``lessons/mine``, which git ignores."""
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "replace")).hexdigest()[:12]
    return MINE / "engine" / f"{name}.npz"


class Engine:
    """Chunks with their words, their vectors in int8, and six functions that search them.

    ``kept`` is a file in which vectors are looked up, and to which new ones are written.
    """

    beside_vectors = "words"  # what ``by_words`` reads

    def __init__(self, chunks: list[Chunk], walking: bool = False, kept: Path | None = None):
        self.chunks = chunks
        self.walking = walking
        self.use, self.own = parts()
        self.encoder = SentenceEncoder.load(MODEL)
        texts = [chunk.text for chunk in chunks]
        self.words = [terms(text) for text in texts]
        vectors = encode_new(self.encoder, texts, kept)  # (N, D)
        widest = np.abs(vectors).max(axis=0)  # (D,), of one chunk too
        self.ranges = np.stack([-widest, widest])
        to_int8 = self.use["quantized.to_int8"]
        self.codes = to_int8(vectors, self.ranges)  # (N, D), a quarter of the bytes
        self.vectors = quantized.from_int8(self.codes, self.ranges)

    @cached_property
    def graph(self) -> Graph:
        say("building the graph")
        return Graph(self.vectors / np.linalg.norm(self.vectors, axis=1, keepdims=True))

    def by_vectors(self, query: str) -> np.ndarray:
        """The rows of the nearest chunks, best first."""
        vector = self.encoder.encode([query])
        rows = np.arange(len(self.chunks))
        if self.walking:
            found, _ = self.use["graph.walk"](
                self.graph.vectors, self.graph.levels[0], vector[0], self.graph.start, CANDIDATES
            )
            rows = np.array(sorted(found))
        _, best = self.use["dense.top_k"](vector, self.vectors[rows], min(CANDIDATES, len(rows)))
        return rows[best[0]]

    def by_words(self, query: str) -> np.ndarray:
        scores = self.use["bm25.bm25_scores"]([terms(query)], self.words)[0]  # (N,)
        best = np.argsort(-scores, kind="stable")[:CANDIDATES]
        return best[scores[best] > 0]

    def joined(self, *rankings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows and scores, best first: the sum over rankings of 1 / (60 + rank).

        A ranking adds nothing where a row is not ranked.
        """
        total = np.zeros(len(self.chunks))
        for ranking in rankings:
            if len(ranking):
                # The best has the highest score.
                places = -np.arange(len(ranking), dtype=np.float64)
                total[ranking] += self.use["fusion.reciprocal_ranks"](places[None])[0]
        best = np.argsort(-total, kind="stable")[: np.count_nonzero(total)]
        return best, total[best]

    def sentence(self, query: str, texts: list[str]) -> list[str]:
        """Of each text the sentence whose tokens fit the query's best."""
        sentences: list[list[str]] = []  # of each text
        everything = [query]
        for text in texts:
            parts = re.split(r"(?<=[.!?:])\s+|\n\n+", text)
            sentences.append([part for part in parts if part.strip()] or [text])
            everything += sentences[-1]

        # All are encoded at once, then compared with the query's tokens.
        tokens = []
        for states in self.token_states(everything):
            tokens.append(torch.nn.functional.normalize(torch.as_tensor(states), dim=1))
        max_sim = self.use["by_tokens.max_sim"]
        fits = [float(max_sim(tokens[0], states)) for states in tokens[1:]]

        best = []
        start = 0
        for parts in sentences:
            of_text = fits[start : start + len(parts)]
            start += len(parts)
            _, sentence = max(zip(of_text, parts, strict=True))
            best.append(sentence)
        return best

    def token_states(self, texts: list[str]) -> list[Any]:
        return self.encoder.encode(texts, output_value="token_embeddings")

    def search(self, query: str, top: int = 8) -> dict[str, Any]:
        """The best chunks of a query as a page shows them, with the milliseconds of each step."""
        times = {}
        start = perf_counter()

        def lap(name: str) -> None:
            nonlocal start
            times[name] = round(1000 * (perf_counter() - start), 1)
            start = perf_counter()

        near = self.by_vectors(query)
        lap("vectors")
        spoken = self.by_words(query)
        lap(self.beside_vectors)
        rows, scores = self.joined(near, spoken)
        shown = [self.chunks[row] for row in rows[:top]]
        lap("joining")
        marked = self.sentence(query, [chunk.text for chunk in shown])
        lap("sentence")
        hits = []
        for chunk, score, mark in zip(shown, scores[:top], marked, strict=True):
            hit = {"path": chunk.path, "line": chunk.line, "score": round(float(score), 4)}
            hits.append(hit | {"text": chunk.text, "mark": mark})
        return {"query": query, "ms": times, "hits": hits}

    def whose(self) -> str:
        """``top_k yours, to_int8 the package's (lesson 17), ...``."""
        owners = []
        for master in PARTS:
            owner = "yours"
            if master not in self.own:
                owner = f"the package's (lesson {PIECES[master].lesson})"
            owners.append(f"{master.split('.')[1]} {owner}")
        return ", ".join(owners)

    def scores(self, questions: list[tuple[str, str]]) -> dict[str, np.ndarray]:
        """nDCG@10 of each question (Q,) by words, by vectors and by both: right is the file."""
        paths = np.array([chunk.path for chunk in self.chunks])
        found: dict[str, list[list[str]]] = {"words": [], "vectors": [], "joined": []}
        for query, _ in questions:
            near = self.by_vectors(query)
            spoken = self.by_words(query)
            joined, _ = self.joined(near, spoken)
            for name, rows in (("words", spoken), ("vectors", near), ("joined", joined)):
                # Files in the order of their best chunks.
                best_files = list(dict.fromkeys(paths[rows].tolist()))
                found[name].append(best_files[:10])

        scores = {}
        for name, lists in found.items():
            ranked = np.zeros((len(questions), 10), dtype=np.int64)
            for row, files_, (_, part) in zip(ranked, lists, questions, strict=True):
                places = [i for i, path in enumerate(files_) if part in path]
                if places:
                    row[places[0]] = 1
            scores[name] = ndcg_of_each(ranked, np.ones(len(questions), dtype=np.int64))
        return scores

    def card(self, questions: list[tuple[str, str]]) -> str:
        """Whose parts these are, what a chunk costs, and how well each engine finds files."""
        files_ = {chunk.path for chunk in self.chunks}
        lines = [f"parts      {self.whose()}"]
        lines.append(f"chunks     {len(self.chunks):,} of {len(files_):,} files")
        size = self.codes.shape[1] * self.codes.itemsize
        words = sum(map(len, self.words)) / len(self.words)
        lines.append(f"a chunk    {size} bytes of vector, {words:.0f} terms")
        scores = self.scores(questions)
        for name, each in scores.items():
            low, high = interval(each)
            lines.append(f"{name:10} nDCG@10 {each.mean():.3f}   95 % {low:.3f} .. {high:.3f}")
        # Question by question: what both engines find hard is gone from the difference.
        for rival in ("vectors", "words"):
            gain = scores["joined"] - scores[rival]
            low, high = interval(gain)
            lines.append(f"joined - {rival:8} {gain.mean():+.3f}   95 % {low:+.3f} .. {high:+.3f}")
        lines.append(f"{len(questions)} questions; right is the file, by its best chunk")
        return "\n".join(lines)


def read_questions(path: Path) -> list[tuple[str, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line.strip()]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or not all(map(str.strip, row)):
            expected = "a question, a tab and a part of the right file's path"
            raise InputError(f"{path}, line {number}: expected {expected}")
    if not rows:
        raise InputError(f"{path} has no questions")
    return [(question.strip(), part.strip()) for question, part in rows]


PAGE = """<!doctype html><meta charset="utf-8"><title>your engine</title>
<meta name="viewport" content="width=device-width"><style>
:root { color-scheme: light dark } body { font: 16px/1.5 system-ui; max-width: 46rem; margin: auto; padding: 1rem }
input { font: inherit; width: 100%; padding: .5rem; box-sizing: border-box } small { opacity: .7 }
article { margin: 1.2rem 0; white-space: pre-wrap; overflow-wrap: anywhere } mark { padding: 0 .1em }
</style><h1>your engine</h1><input autofocus placeholder="ask, and press Enter" aria-label="query">
<p><small id="about"></small></p><main></main><script>
const about = document.querySelector('#about'), main = document.querySelector('main')
fetch('about').then(r => r.text()).then(t => about.textContent = t)
document.querySelector('input').onchange = async e => {
  const query = e.target.value.trim(); if (!query) return
  const found = await (await fetch('search?q=' + encodeURIComponent(query))).json()
  about.textContent = Object.entries(found.ms).map(([name, ms]) => name + ' ' + ms + ' ms').join(' \\u00b7 ')
  main.replaceChildren(...found.hits.map(hit => {
    const [one, head, mark] = ['article', 'small', 'mark'].map(name => document.createElement(name))
    head.textContent = hit.score + '  ' + hit.path + ':' + hit.line + '\\n'; mark.textContent = hit.mark
    const at = hit.text.indexOf(hit.mark)
    one.append(head, hit.text.slice(0, at), mark, hit.text.slice(at + hit.mark.length)); return one }))
}</script>"""


def serve(engine: Engine, server: ThreadingHTTPServer) -> None:
    """The page and its two answers, to this machine only, until Ctrl-C."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            own = (f"127.0.0.1:{server.server_port}", f"localhost:{server.server_port}")
            if self.headers.get("Host") not in own:
                self.send_error(403)  # a page of another site, whose name leads to this machine
                return
            query = parse_qs(url.query).get("q", [""])[0].strip()
            if url.path == "/":
                kind = "text/html"
                body = PAGE
            elif url.path == "/about":
                kind = "text/plain"
                body = f"{len(engine.chunks):,} chunks; {engine.whose()}"
            elif url.path == "/search" and query:
                kind = "application/json"
                body = json.dumps(engine.search(query))
            else:
                self.send_error(404)
                return
            data = body.encode("utf-8")
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *about: Any) -> None: ...

    server.RequestHandlerClass = Answers
    with server:
        print(f"http://127.0.0.1:{server.server_port}   (Ctrl-C ends)", flush=True)
        server.serve_forever()


def show(found: dict[str, Any]) -> None:
    print("   ".join(f"{name} {ms} ms" for name, ms in found["ms"].items()))
    for hit in found["hits"]:
        line = f":{hit['line']}" if hit["line"] else ""
        print(f"\n{hit['score']:.4f}  {printable(hit['path'])}{line}")
        print(f"        {printable(' '.join(hit['mark'].split()))}")


def printable(text: str) -> str:
    """Without the signs by which a file's name or text could steer a terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


parser = command_parser("engine", __doc__)
parser.prog = "python -m lessons.engine"
parser.add_argument("folder", type=Path, metavar="FOLDER", help="your notes, documents or code")
parser.add_argument("--ask", metavar="TEXT", help="answer one question in the terminal")
parser.add_argument(
    "--questions",
    type=Path,
    metavar="FILE",
    help="print the card, and keep it in lessons/mine/engine.txt",
)
parser.add_argument(
    "--walk", action="store_true", help="search the vectors by your walk over a graph (lesson 21)"
)
parser.add_argument(
    "--port", type=bounded(int, 0, 65536), default=8000, help="of the page (default: 8000)"
)
parser.add_argument(
    "--most",
    type=bounded(int, 1),
    default=20_000,
    help="read at most so many chunks (default: 20,000)",
)


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    questions = read_questions(options.questions) if options.questions else []
    chunks = chunks_to_search(options.folder, options.most)
    for question, part in questions:
        if not any(part in chunk.path for chunk in chunks):
            raise InputError(f"{question!r}: no file of the folder has {part!r} in its path")
    check_usage((options.ask is not None and not options.ask.strip(), "--ask needs a question"))
    server = None
    if not questions and not options.ask:
        try:  # before the minutes of encoding
            server = ThreadingHTTPServer(("127.0.0.1", options.port), BaseHTTPRequestHandler)
        except OSError as error:
            raise InputError(
                f"port {options.port} cannot be used ({error.strerror}): choose another by --port"
            ) from error
    engine = Engine(chunks, options.walk, place_of_vectors(options.folder))
    say(f"{len(chunks):,} chunks; {engine.whose()}")
    if questions:
        card = engine.card(questions)
        print(card)
        MINE.mkdir(parents=True, exist_ok=True)
        (MINE / "engine.txt").write_text(card + "\n", encoding="utf-8")
    elif server:
        serve(engine, server)
    else:
        show(engine.search(options.ask))


if __name__ == "__main__":
    run_command(main)
