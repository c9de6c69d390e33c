"""Small inputs from public reports and first users that were read wrongly once, made up anew.

Each is read right, which its one line shows, or is refused in one sentence with what would do.
"""

import pytest

from minisbert.core import InputError
from minisbert.data.columns import Columns
from minisbert.data.rows import read_rows

TEXT = Columns(1)
PAIR = Columns(2, more_texts=True)
TRIPLET = Columns(3)
SCORED = Columns(2, "score")
BINARY = Columns(2, "binary")
CLASSES = Columns(2, "class")

DPR = """[
  {
    "dataset": "nq",
    "question": "old new green tree",
    "positive_ctxs": [{"title": "small sea", "text": "dog car cold cat", "score": 10.0}]
  }
]
"""
RECORDS = '[{"anchor": "red cat", "positive": "a cat"}, {"anchor": "old bus", "positive": "bus"}]'
SEMICOLONS = "score;sentence1;sentence2\n0,5;sea blue rain;sea rain\n4,5;sun cat;rain big\n"
GERMAN = "Nr;Satz A;Satz B;Ähnlichkeit\n1;Ja, aber spät;Nein;4,7\n2;Die zweite;Der dritte;0,9\n"
ODD_HEADER = (
    "\ufeffMatch (0-10),Customer wording,Our wording,agent,created\n"
    "0.3,my password is wrong,my size is faulty,agent 0,2025-03-01\n"
    '5.4,"size missing, what now?",my password is wrong,agent 1,2025-03-02\n'
    "10,what do I do about a wrong colour,the colour was lost,agent 2,2025-03-03\n"
)
STS_RAGGED = (
    "main-a\tsrc\t2012\t1\t5.000\tA boat leaves.\tThe boat departs.\n"
    'main-a\tsrc\t2012\t2\t3.000\t"The mill is old.\tThe mill is not new.\n'
    "main-b\tforum\t2014\t3\t1.200\tA mill.\tA boat.\thttp://a.example\thttp://b.example\n"
)
PANDAS = 'score\tsentence1\tsentence2\n4.5\t"She asked ""why"" twice."\tShe repeated it.\n'
SPLITS = (
    "split\tdataset\tsentence1\tsentence2\tlabel\n"
    "train\tX\tthe boat leaves\ta boat departs\tentailment\n"
    "train\tX\tthe boat leaves\ta train arrives\tcontradiction\n"
    "dev\tX\tthe boat leaves\tit may rain\tneutral\n"
)


@pytest.mark.parametrize(
    ("name", "content", "need", "names", "row", "line"),
    [
        ("a.json", RECORDS, PAIR, None, ("red cat", "a cat"), "2 rows; anchor, positive"),
        ("a.json", '["sea cat", "old bus"]', TEXT, None, ("sea cat",), "2 rows; text"),
        ("a.json", '[{"text": "sea cat"}]', TEXT, None, ("sea cat",), "1 rows; text"),
        (
            "a.csv",
            "premise,hypothesis,label\nblue tree,cat fast,0\nblue car,fast dog,1\n",
            BINARY,
            None,
            ("blue tree", "cat fast", 0),
            "2 rows; premise, hypothesis, label",
        ),
        (
            "a.csv",
            SEMICOLONS,
            SCORED,
            None,
            ("sea blue rain", "sea rain", 0.5),
            "2 rows; sentence1, sentence2, score; separated by semicolons",
        ),
        (
            "a.csv",
            GERMAN,
            SCORED,
            "Satz A,Satz B,Ähnlichkeit",
            ("Ja, aber spät", "Nein", 4.7),
            "2 rows; Satz A, Satz B, Ähnlichkeit; separated by semicolons; not read: Nr",
        ),
        (
            "a.csv",
            ODD_HEADER,
            SCORED,
            "Customer wording,Our wording,Match (0-10)",
            ("my password is wrong", "my size is faulty", 0.3),
            "3 rows; Customer wording, Our wording, Match (0-10); not read: agent, created",
        ),
        (
            "a.tsv",
            "question1\tquestion2\nWhen does it leave?\tAt what time?\n",
            Columns(2, ignores_label=True),
            None,
            ("When does it leave?", "At what time?"),
            "1 rows; question1, question2",
        ),
        (
            "a.tsv",
            PANDAS,
            SCORED,
            None,
            ('She asked "why" twice.', "She repeated it.", 4.5),
            "1 rows; sentence1, sentence2, score",
        ),
        (
            "a.jsonl",
            '{"id": "d0", "contents": "the invoice was lost"}\n',
            TEXT,
            None,
            ("the invoice was lost",),
            "1 rows; contents; not read: id",
        ),
        (
            "a.jsonl",
            '{"text": "a long text", "summary": "boats"}\n',
            TEXT,
            "text",
            ("a long text",),
            "1 rows; text; not read: summary",
        ),
        (
            "a.jsonl",
            '{"negative": "n", "anchor": "a", "positive": "p"}\n',
            PAIR,
            None,
            ("a", "p", "n"),
            "1 rows; anchor, positive, negative",
        ),
        (
            "a.jsonl",
            '{"source": "faq", "anchor": "a", "positive": "p"}\n',
            PAIR,
            None,
            ("a", "p"),
            "1 rows; anchor, positive; not read: source",
        ),
        (
            "a.csv",
            "id,sentence1,sentence2,is_duplicate\n0,a\tb,c,0\n4,d,e,\n5,f,g,1\n",
            BINARY,
            None,
            ("a\tb", "c", 0),
            "2 rows, 1 skipped (an empty text or no label); sentence1, sentence2, is_duplicate; "
            "not read: id",
        ),
    ],
)
def test_an_input_that_is_read(write, name, content, need, names, row, line):
    table = read_rows(write(name, content), need, names)
    assert table.rows[0] == row
    assert table.note().endswith(f"{name}: {line}")


def test_sts_by_its_own_numbers(write):
    """The STS Benchmark's own files: no header, marks that are text, rows of other lengths."""
    path = write("a.csv", STS_RAGGED)
    table = read_rows(path, SCORED, "6,7,5", quotes=False)
    assert [row[-1] for row in table.rows] == [5.0, 3.0, 1.2]
    assert table.rows[1][0] == '"The mill is old.'


def test_a_column_split_of_sentence_transformers(write):
    """AllNLI.tsv.gz has all splits in one file."""
    table = read_rows(write("a.tsv", SPLITS), CLASSES, split="train")
    assert [row[-1] for row in table.rows] == ["entailment", "contradiction"]
    assert table.note().endswith("split train, not the 1 rows of dev; not read: dataset")


@pytest.mark.parametrize(
    ("name", "content", "need", "message"),
    [
        ("a.json", DPR, PAIR, "its columns are dataset, question, positive_ctxs; needed: two"),
        ("a.csv", "slow dog cat,sports\nwarm old bus,news\n", PAIR, "a row, --columns 1,2"),
        ("a.tsv", "new dog red\t0\nnew cold sky\t1\n", PAIR, "needed: two texts or more"),
        ("a.csv", GERMAN, SCORED, "semicolons; .*--columns 'Satz A,Satz B,Ähnlichkeit'"),
        ("a.csv", ODD_HEADER, SCORED, r"'Customer wording,Our wording,Match \(0-10\)'"),
        ("a.csv", STS_RAGGED, SCORED, "its columns are main-a, src, 2012"),
        ("a.jsonl", '{"text": "a", "summary": "b"}', TEXT, "--columns text or --columns summary"),
        ("a.csv", "sentence1,sentence2,score\na,b,c\n", PAIR, "--columns sentence1,sentence2 "),
        ("a.csv", "sentence1,sentence2\na,b\n", TRIPLET, "three texts: a column is missing"),
    ],
)
def test_an_input_that_is_refused_with_what_would_do(write, name, content, need, message):
    with pytest.raises(InputError, match=rf"{name}: .*{message}"):
        read_rows(write(name, content), need)
