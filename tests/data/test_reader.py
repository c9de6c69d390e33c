"""Every format of training data: the rows of good files, the reason for each row that is refused, the recognition."""

import json
import re

import pytest

from minisbert.core import InputError
from minisbert.data.datasets import load_scored_pairs
from minisbert.data.formats import LABELLED, MULTILABEL, NLI, PAIRS, SCORED, SENTENCES, Format, Row
from minisbert.data.reader import read_file, recognise

CONTRADICTION, ENTAILMENT, NEUTRAL = "contradiction", "entailment", "neutral"


def nli_line(label: str, premise: str, hypothesis: str, **more: object) -> str:
    return json.dumps({"gold_label": label, "sentence1": premise, "sentence2": hypothesis, **more}) + "\n"


# ------------------------------------------------------------------------------------- scored pairs

SCORED_ROWS = [Row(("A cat sits.", "A kitten is sitting."), 4.2), Row(('He said "sit', "The dog, it sat"), 0.0)]
TABS = 'Score\tSentence1\tSentence2\n4.2 \tA cat sits.\t A kitten is sitting.\n-0\tHe said "sit\tThe dog, it sat \n'
COMMAS = 'score,sentence1,sentence2\n4.2,A cat sits.,A kitten is sitting.\n0e0,"He said ""sit","The dog, it sat"\n'
SCORED_FILES = {
    "tabs": TABS,
    "commas": COMMAS,
    "other columns": 'sentence2,id,sentence1,score\nA kitten is sitting.,7,A cat sits.,4.2\n"The dog, it sat",8,'
    '"He said ""sit",0\n',
}


@pytest.mark.parametrize("content", SCORED_FILES.values(), ids=SCORED_FILES)
def test_scored_pairs_in_every_layout(write, content):
    assert load_scored_pairs(write("pairs.csv", content)) == SCORED_ROWS
    variant = "\ufeff" + content.replace("\n", "\r\n\r\n") + " \n"  # byte order mark, CRLF, blank lines
    assert load_scored_pairs(write("pairs.csv", variant)) == SCORED_ROWS
    assert load_scored_pairs(write("pairs.csv", content.removesuffix("\n"))) == SCORED_ROWS


def test_quotation_marks_and_other_marks_inside_a_cell(write):
    """In tab-separated files quotation marks are text; the first line decides; a quoted line end stays."""
    header = "score,sentence1,sentence2\n"
    (pair,) = load_scored_pairs(write("a.tsv", header.replace(",", "\t") + '3\t"all quoted"\t"a, b" and "c\n'))
    assert (pair.sentence1, pair.sentence2) == ('"all quoted"', '"a, b" and "c')
    assert load_scored_pairs(write("a.csv", header + "3,a\tb,c\td\n")) == [Row(("a\tb", "c\td"), 3.0)]
    pairs = load_scored_pairs(write("a.csv", header + '3,"a cat\nsat","b"\r\n2,"c\r\nd",e\n1,f,g\n'))
    assert pairs == [Row(("a cat\nsat", "b"), 3.0), Row(("c\nd", "e"), 2.0), Row(("f", "g"), 1.0)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("3\ta", "2 columns"),
        ("3\ta\tb\tc", "4 columns"),
        ("high\ta\tb", "'high'"),
        ("\ta\tb", "''"),
        ("nan\ta\tb", "'nan'"),
        ("-1\ta\tb", "score -1"),
        ("5.1\ta\tb", "score 5.1"),
        ("3\ta\t  ", "empty"),
    ],
)
def test_an_unusable_scored_pair_names_file_line_and_reason(write, row, message):
    for content, mark in ((TABS, "\t"), (COMMAS, ",")):
        path = write("pairs.csv", content + row.replace("\t", mark))
        with pytest.raises(InputError, match=rf"{re.escape(str(path))}, line 4: .*{message}"):
            load_scored_pairs(path)


@pytest.mark.parametrize(("scale", "expected"), [(-1.0, [-2.5, 5.0]), (None, [-0.5, 1.0])])
def test_scores_below_0(write, scale, expected):
    """A scale of -1 is that of -1 to 1; without a scale the scores stay as they are."""
    path = write("a.tsv", "score\tsentence1\tsentence2\n-0.5\ta\tb\n1\tc\td\n")
    assert [row.score for row in load_scored_pairs(path, scale=scale)] == expected
    with pytest.raises(InputError, match=r"line 2: .* 0 to 1"):
        load_scored_pairs(path, scale=1.0)


# ------------------------------------------------------------------------------------- other formats

# the other keys are also in SNLI
NLI_LINES = (
    nli_line("neutral", "A man sleeps.", "A man dreams.", annotator_labels=["neutral"], pairID="1r1n")
    + nli_line("-", "A man sleeps.", "He is home.", annotator_labels=["neutral", "entailment"])
    + nli_line("contradiction", "A man sleeps.", "A man runs.")
    + nli_line("entailment", " A man sleeps. ", "A person rests. ")
)
NLI_ROWS = [
    Row(("A man sleeps.", "A man dreams."), NEUTRAL),
    Row(("A man sleeps.", "A man runs."), CONTRADICTION),
    Row(("A man sleeps.", "A person rests."), ENTAILMENT),
]
QUORA_ROWS = [
    Row(("What is SQL?", "What does SQL mean?"), 1),
    Row(('What is "it"?', "Who wrote\nthis?"), 0),
    Row(("How, why\tand when?", 'Is it 5" long?'), 0),
]
QUORA = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "0\t1\t2\tWhat is SQL?\t What does SQL mean? \t1\n"
    '1\t3\t4\t"What is ""it""?"\t"Who wrote\nthis?"\t0\n'
    "2\t5\t6\t\tWhat is this?\t0\n"
    '3\t7\t8\t"How, why\tand when?"\tIs it 5" long?\t0\n'
)
PLAIN = [Row(("A cat.", 'The "cat'), 1), Row(("A, b", '"c"'), 0)]
TRIPLETS = [Row(("a cat", "A cat", 'A "dog" runs.')), Row(("One, two", "1, 2", "three"))]
TWO = [Row(("a cat", "A cat")), Row(("One, two", "1, 2"))]
NEGATIVES = [Row(("a", "p", "n", "m")), Row(("b", "q", "o", "k"))]
TRIPLETS_CSV = 'sent0,sent1,hard_neg\na cat,A cat,"A ""dog"" runs."\nx,y,\n"One, two","1, 2",three\n'
TRIPLET_LINES = (
    '{"anchor": "a cat", "positive": "A cat", "negative": "A \\"dog\\" runs."}\n["x", "y", ""]\n'
    '{"negative": "three", "anchor": "One, two", "positive": "1, 2", "id": 5}\n'
)
TWO_OBJECTS = '{"query": "a cat", "positive": "A cat"}\n\n{"positive": "1, 2", "query": "One, two"}\n'
TWO_ITEMS = '[{"query": "a cat", "positive": "A cat"},\n {"positive": "1, 2", "query": "One, two"}]'
NEGATIVES_TSV = "negative_2\tanchor\tscore\tpositive\tnegative_1\nn\ta\t3\tp\tm\no\tb\t4\tq\tk\n"
NEGATIVE_LISTS = '{"anchor": "a", "positive": "p", "negative": ["n", "m"]}\n["b", "q", "o", "k"]\n'
QUOTED = '"label","sentence1","sentence2"\n"1",A cat.,"The ""cat"\n0,"A, b","""c"""'
GOOD = [  # format, ending of the file's name, rows, how many are skipped, content
    (NLI, ".jsonl.gz", NLI_ROWS, 1, NLI_LINES),
    (NLI, ".txt", NLI_ROWS, 2, NLI_LINES + nli_line("neutral", "A man.", " \t")),
    (LABELLED, ".tsv", QUORA_ROWS, 1, QUORA),
    (LABELLED, ".tsv", PLAIN, 0, 'sentence1\tid\tsentence2\tLabel\nA cat.\t7\tThe "cat\t1\nA, b\t8\t"c"\t0'),
    (LABELLED, ".csv.gz", PLAIN, 0, QUOTED),
    (PAIRS, ".csv", TRIPLETS, 1, TRIPLETS_CSV),
    (PAIRS, ".jsonl", TRIPLETS, 1, TRIPLET_LINES),
    (PAIRS, ".tsv.gz", TWO, 1, "positive\tid\tAnchor\n A cat\t7\ta cat \n\t8\tx\n1, 2\t9\tOne, two"),
    (PAIRS, ".csv", TWO, 1, 'query,answer\r\na cat,A cat\r\nx, \r\n"One, two","1, 2"\r\n'),
    (PAIRS, ".jsonl", TWO, 0, TWO_OBJECTS),
    (PAIRS, ".json", TWO, 0, TWO_ITEMS),
    (PAIRS, ".json.gz", TWO, 0, "\ufeff \n" + json.dumps(json.loads(TWO_ITEMS), indent=2)),
    (PAIRS, ".tsv", NEGATIVES, 0, NEGATIVES_TSV),
    (PAIRS, ".csv", NEGATIVES, 0, "question,answer,hard_neg,hard_neg2\na,p,n,m\nb,q,o,k\n"),
    (PAIRS, ".jsonl", NEGATIVES, 0, NEGATIVE_LISTS),
]


@pytest.mark.parametrize(("form", "ending", "rows", "skipped", "content"), GOOD)
def test_the_rows_of_a_good_file(write, form, ending, rows, skipped, content):
    path = write(f"a{ending}", content)
    assert read_file(path, form)[:2] == (rows, skipped)
    found, passed, _ = read_file(path, form, limit=2)
    assert (len(found) + passed, found) == (min(2, len(rows) + skipped), rows[: len(found)])


LABELS = "label\tsentence1\tsentence2\n"
ONE_PAIR = '{"anchor": "a", "positive": "p"}'
BAD = [  # format, ending of the file's name, content, the place and a word of the message
    (NLI, ".jsonl", NLI_LINES + '{"gold_label": "neutral"', "line 5: not valid JSON"),
    (NLI, ".jsonl", NLI_LINES + "[" * 100_000, "line 5: not valid JSON"),
    (NLI, ".jsonl", NLI_LINES + "7", "line 5: .*not 7"),
    (NLI, ".jsonl", '["neutral", "a", "b"]', "line 1: .*gold_label"),
    (NLI, ".jsonl", NLI_LINES + '{"gold_label": "neutral", "sentence1": "a"}', "line 5: the keys are"),
    (NLI, ".jsonl", '{"gold_label": "neutral", "sentence1": null, "sentence2": "b"}', "line 1: two texts"),
    (NLI, ".jsonl", '{"gold_label": "neutral", "sentence1": ["a"], "sentence2": "b"}', "line 1: two texts"),
    (NLI, ".jsonl", NLI_LINES + nli_line("neutral", "a \ud800 b", "c"), "line 5: .*surrogate"),
    (NLI, ".csv", "premise,hypothesis,label\na,b,7\n", "line 2: the label '7'"),
    (NLI, ".jsonl", '{"sentence1": "a", "sentence2": "b", "label": [0, 1]}', "line 1: .*one class"),
    (NLI, ".jsonl", '{"sentence1": "a", "sentence2": "b", "label": {"x": []}}', "line 1: .*one class"),
    (MULTILABEL, ".jsonl", '{"labels": [0, 2], "text1": "a", "text2": "b"}', "line 1: the labels"),
    (MULTILABEL, ".jsonl", '{"label": {"x": 1}, "text1": "a", "text2": "b"}', "line 1: the labels"),
    (LABELLED, ".tsv", LABELS + "1\ta\tb\n\n2\ta\tb\n", "line 4: the label '2'"),
    (LABELLED, ".tsv", LABELS + "-\ta\tb\n", "line 2: the label '-'"),
    (LABELLED, ".tsv", QUORA + '4\t9\t10\t"a\tb\t0\n', "line 7: 4 columns; 6"),
    (LABELLED, ".csv", 'label,sentence1,sentence2\n1,a,b\n1,"a,b\n', "line 3: not comma-separated"),
    (LABELLED, ".csv", 'label,sentence1,sentence2\n1,"a\n\nb",c\n1,"a"x,b\n', "line 5: not comma-separated"),
    (LABELLED, ".tsv", LABELS * 2, "line 2: the header again"),
    (PAIRS, ".tsv", "anchor\tpositive\tnegative\na\tb\n", "line 2: 2 columns; 3"),
    (PAIRS, ".jsonl", '["a", "b", "c"]\n["a", "b"]\n', "line 2: 2 texts"),
    (PAIRS, ".jsonl", '["a", "b", 3]', "line 1: a text .*3"),
    (PAIRS, ".jsonl", '["a"]', "line 1: 1 column"),
    (PAIRS, ".jsonl", '{"anchor": "a"}', "line 1: the keys are 'anchor'"),
    (PAIRS, ".jsonl", '{"anchor": ["a", "b"], "positive": "p"}', "line 1: one anchor"),
    (PAIRS, ".jsonl", '{"anchor": "a", "positive": "p", "negative": [["n"]]}', r"line 1: a text .*\['n'\]"),
    (PAIRS, ".json", f'[{ONE_PAIR}, {{"anchor": "b"}}]', "item 2: the keys are 'anchor'"),
    (PAIRS, ".json", f"[{ONE_PAIR},", "line 1: not valid JSON"),
    (PAIRS, ".json", '["a", "b"]\n["c", "d"]\n', r"line 2: .*\.jsonl"),
    (PAIRS, ".json", '[{"anchor": "a", "positive": "\\ud800"}]', "item 1: .*surrogate"),
]


@pytest.mark.parametrize(("form", "ending", "content", "message"), BAD)
def test_an_unusable_row_names_file_place_and_reason(write, form, ending, content, message):
    with pytest.raises(InputError, match=rf"a{ending}, {message}"):
        read_file(write(f"a{ending}", content), form)


@pytest.mark.parametrize(
    ("form", "content"),
    [
        (SCORED, "score,sentence1,sentence2\n"),
        (NLI, nli_line("-", "a", "b") * 2),
        (LABELLED, LABELS + "1\t\tb\n0\ta\t\n"),
        (PAIRS, "anchor,positive,negative\n,b,c\na,b,\n"),
    ],
)
def test_a_file_without_usable_rows(write, form, content):
    skipped = "" if form is SCORED else r" \(2 were skipped\)"
    with pytest.raises(InputError, match=f"a holds no usable rows{skipped}"):
        read_file(write("a", content), form)
    for empty in ("", "\ufeff"):
        with pytest.raises(InputError, match="a holds no usable rows"):
            read_file(write("a", empty), form)


# ---------------------------------------------------------------------------------- names of columns

SCORE, PAIR = Row(("a cat", "b, dog"), 4.0), Row(("a cat", "b, dog"))
PASSAGES = (
    '{"query_id": 1, "query": "a", "positive_passages": [{"docid": "3", "title": "t", "text": "p"}], '
    '"negative_passages": [{"docid": "4", "text": "n"}]}'
)
CONTEXTS = (
    '[{"question": "a", "answers": ["x"], "positive_ctxs": [{"title": "t", "text": "p"}], "negative_ctxs": [],\n'
    '"hard_negative_ctxs": [{"title": "", "text": "n", "score": 1.5}]}]'
)
UNEVEN = '{"query": "a", "pos": ["p", "q"], "neg": ["n", "m"]}\n{"query": "b", "pos": ["r"], "neg": ["k"]}'
NAMED = [  # format, ending, rows, columns that are named as not read, content
    (SCORED, ".csv", [SCORE], ["genre"], 'genre,text1,text2,score\nx,a cat,"b, dog",4\n'),
    (SCORED, ".csv", [SCORE], [], ',sentence_A,sentence_B,relatedness_score\n0,a cat,"b, dog",4\n'),
    (SCORED, ".jsonl", [SCORE], [], '{"sentence1": "a cat", "sentence2": "b, dog", "label": 4}'),
    (SCORED, ".tsv", [SCORE], [], "query\tanswer\tlabel\na cat\tb, dog\t4.0\n"),
    (LABELLED, ".csv", [Row(("a", "b"), 1), Row(("c", "d"), 0)], [], "sentence1,sentence2,label\na,b,1.0\nc,d,0.0\n"),
    (NLI, ".csv", [Row(("a", "b"), NEUTRAL)], [], "premise,hypothesis,label\na,b,1\n"),  # Hugging Face's order
    (NLI, ".jsonl", [Row(("a", "b"), ENTAILMENT)], [], '{"premise": "a", "hypothesis": "b", "label": 0}'),
    (NLI, ".csv", [Row(("a", "b"), "refund")], [], "sentence1,sentence2,label\na,b,refund\n"),
    (MULTILABEL, ".csv", [Row(("a", "b"), ("x", "y"))], [], 'text1,text2,labels\na,b,"x,y"\n'),
    (MULTILABEL, ".csv", [Row(("a", "b"), ("x",)), Row(("c", "d"), ())], [], "text1,text2,labels\na,b,x\nc,d,\n"),
    (MULTILABEL, ".jsonl", [Row(("a", "b"), ("0", "2"))], [], '{"label": [1, 0, 1.0], "text1": "a", "text2": "b"}'),
    (PAIRS, ".tsv", [PAIR], ["title"], "title\tquery\tpassage\nx\ta cat\tb, dog\n"),
    *[
        (PAIRS, ".csv", [Row(("a", "p", "n"))], [], f"{name},query,pos\nn,a,p\n")
        for name in "neg neg_1 hard_negative hard_negatives negative_passage hard_neg negative1".split()
    ],
    # FlagEmbedding's, Tevatron's and DPR's files: a row for each positive; as many negatives as the shortest list has
    (
        *(PAIRS, ".jsonl", [Row(("a", "p", "n")), Row(("a", "q", "n")), Row(("b", "r", "k"))]),
        *(["negatives beyond 1 of a row"], UNEVEN),
    ),
    (PAIRS, ".jsonl", [Row(("a", "t p", "n"))], [], PASSAGES),
    (PAIRS, ".json", [Row(("a", "t p", "n"))], ["answers"], CONTEXTS),
]


@pytest.mark.parametrize(("form", "ending", "rows", "unread", "content"), NAMED)
def test_names_that_the_libraries_of_the_field_write(write, form, ending, rows, unread, content):
    path = write(f"a{ending}", content)
    table = read_file(path, form)
    assert (table.rows, table.unread) == (rows, unread)


@pytest.mark.parametrize("form", [SCORED, LABELLED, NLI, PAIRS])
@pytest.mark.parametrize(
    "content",
    [
        "Frage,Antwort\na,b\n",
        "slow dog,sports\nwarm bus,news\n",  # a text and its class must not become anchor and positive
        "new dog red\t0\nsky tree\t2\n",
        "4,a cat,a dog\n3,c,d\n",
        "main\tfile\t2012\t1\t4.5\ta\tb\n",  # STS-B's own file is read by the name of the data set
    ],
)
def test_a_table_without_the_names_is_refused_with_those_that_would_do(write, form, content):
    path = write("a.csv", content)
    first = re.escape(repr(re.split("[,\t]", content)[0]))
    for read in (lambda: read_file(path, form), lambda: recognise(path)):
        with pytest.raises(InputError, match=rf"a\.csv: .*{first}.*(sentence1|anchor).*--columns"):
            read()


def test_semicolons_are_named(write):
    path = write("a.csv", "score;sentence1;sentence2\n0,5;a;b\n")
    for read in (lambda: read_file(path, SCORED), lambda: read_file(path, SENTENCES), lambda: recognise(path)):
        with pytest.raises(InputError, match=r"a\.csv: semicolons"):
            read()


def test_columns_by_name_and_by_number(write):
    named, numbered = write("a.csv", "Mark,left,right\n4,a,b\n"), write("b.csv", "a,4,b\n")
    lists = write("c.jsonl", '["b", "a", "4"]\n')
    expected = [Row(("a", "b"), 4.0)]
    assert read_file(named, SCORED, columns="mark, left, RIGHT").rows == expected
    assert read_file(numbered, SCORED, columns="2,1,3").rows == expected
    assert read_file(lists, SCORED, columns="3,2,1").rows == expected
    for path, columns, message in (
        (named, "mark,left,middle", "'middle'"),
        (named, "left,mark,right", "line 2: the score 'a'"),
        (named, "1,2,3", "line 1: the score 'Mark'"),
        (numbered, "2,1,4", "line 1: --columns 2,1,4, but there are 3"),
        (numbered, "0,1,2", "line 1: --columns 0,1,2"),
        (numbered, "1,2", "line 1: 2 columns; 3"),
        (lists, "1,2,4", "line 1: --columns 1,2,4"),
        (write("d.csv", COMMAS), "1,2,3", "header, .*--columns score,sentence1,sentence2"),
    ):
        with pytest.raises(InputError, match=message):
            read_file(path, SCORED, columns=columns)


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("a.csv", "sentence1,sentence2,label\na,b,1.0\nc,d,0\n", LABELLED),
        ("a.csv", "sentence1,sentence2,label\na,b,2\nc,d,0\n", SCORED),
        ("a.csv", "sentence1,sentence2,label\na,b,2\nc,d,0\ne,f,high\n", SCORED),
        ("a.csv", "sentence1,sentence2,label\na,b,refund\nc,d,bug\n", NLI),
        ("a.csv", "sentence1,sentence2,score\na,b,1\nc,d,0\n", SCORED),
        ("a.csv", "premise,hypothesis,label\na,b,1\nc,d,0\ne,f,2\n", NLI),
        ("a.csv", "premise,hypothesis,label\na,b,1\nc,d,0\n", LABELLED),  # similar or not: NLI has a third class
        ("a.csv", "premise,hypothesis,label\na,b,1\nc,d,-1\n", NLI),
        ("a.csv", "query,answer,label\na,b,1\nc,d,0\n", LABELLED),
        ("a.csv", "anchor,positive,negative,score\na,b,c,1\n", PAIRS),
        ("a.csv", "query,document\na,b\n", PAIRS),
        ("a.csv", "sentence1,sentence2,labels\na,b,1\n", MULTILABEL),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "label": ["x"]}', MULTILABEL),
        ("a.csv", "id,text\n1,a\n", SENTENCES),
        ("a.txt", "one, two\nthree\n", SENTENCES),
        ("a.txt", "anchor\tpositive\na\tb\n", PAIRS),
        ("a.jsonl", '["a", "b"]', PAIRS),
        ("a.json", '["a", "b"]', SENTENCES),
        ("a.json", '[{"text": "a"}]', SENTENCES),
        ("a.json", '[{"anchor": "a", "positive": "b"}]', PAIRS),
    ],
)
def test_the_format_of_a_file(write, name, content, form: Format):
    assert recognise(write(name, content)) is form


@pytest.mark.parametrize(
    "content", ["[1, 2]", '["a"]', "7", "[]", '{"id": 1}', '{"text": "a", "label": 1}', '[{"a": {}}]']
)
def test_json_that_training_does_not_read(write, content):
    with pytest.raises(InputError, match=r"a\.jsonl: .*anchor"):
        recognise(write("a.jsonl", content))


def test_a_cell_of_150_kb(write):
    long = "word " * 30_000
    for name, mark in (("a.tsv", "\t"), ("a.csv", ",")):
        assert len(read_file(write(name, f"anchor{mark}positive\nq{mark}{long}\n"), PAIRS).rows[0].texts[1]) == 149_999
