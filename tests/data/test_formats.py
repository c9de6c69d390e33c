"""Every format of training data: the rows of good files, and the reason for each row that is refused."""

import json
import re

import pytest

from minisbert.core import InputError
from minisbert.data.datasets import load_scored_pairs, read_file
from minisbert.data.formats import LABELLED, MULTILABEL, NLI, PAIRS, SCORED, SENTENCES, Format, Row
from minisbert.data.reader import recognise

CONTRADICTION, ENTAILMENT, NEUTRAL = "contradiction", "entailment", "neutral"


def nli_line(label: str, premise: str, hypothesis: str, **more: object) -> str:
    return json.dumps({"gold_label": label, "sentence1": premise, "sentence2": hypothesis, **more}) + "\n"


# ------------------------------------------------------------------------------------- scored pairs

SCORED_ROWS = [Row(("A cat sits.", "A kitten is sitting."), 4.2), Row(('He said "sit', "The dog, it sat"), 0.0)]
STSB = (
    "main-captions\tMSRvid\t2012test\t0024\t4.2\tA cat sits.\tA kitten is sitting.\n"
    'main-news\theadlines\t2013\t0025\t0.0\tHe said "sit\tThe dog, it sat\n'
)
STSB_9 = STSB.replace("sitting.\n", "sitting.\tlicence one\tlicence two\n")
STSB_HEADER = "genre\tfile\tyear\tid\tscore\tsentence1\tsentence2"
TABS = '4.2 \tA cat sits.\t A kitten is sitting.\n-0\tHe said "sit\tThe dog, it sat \n'
COMMAS = '4.2,A cat sits.,A kitten is sitting.\n0e0,"He said ""sit","The dog, it sat"\n'
SCORED_FILES = {
    "stsb": STSB,
    "stsb, some rows with sources": STSB_9,
    "stsb with a header": f"{STSB_HEADER}\n{STSB}",
    "stsb with a header and sources": f"{STSB_HEADER}\tsource1\tsource2\n{STSB_9}",
    "tabs": TABS,
    "tabs with a header": f"Score\tSentence1\tSentence2\n{TABS}",
    "commas": COMMAS,
    "commas with a header": f"score,sentence1,sentence2\n{COMMAS}",
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
    (pair,) = load_scored_pairs(write("a.tsv", '3\t"all quoted"\t"a, b" and "c\n'))
    assert (pair.sentence1, pair.sentence2) == ('"all quoted"', '"a, b" and "c')
    assert load_scored_pairs(write("a.csv", "5,e,f\n3,a\tb,c\td\n"))[1] == Row(("a\tb", "c\td"), 3.0)
    pairs = load_scored_pairs(write("a.csv", '3,"a cat\nsat","b"\r\n2,"c\r\nd",e\n1,f,g\n'))
    assert pairs == [Row(("a cat\nsat", "b"), 3.0), Row(("c\nd", "e"), 2.0), Row(("f", "g"), 1.0)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("3\ta", "2 columns; 3 are needed (score, sentence1, sentence2)"),
        ("3\ta\tb\tc", "4 columns; 3 are needed"),
        ("high\ta\tb", "the score 'high' is not a number"),
        ("\ta\tb", "the score '' is not a number"),
        ("nan\ta\tb", "the score 'nan' is not a number"),
        ("-1\ta\tb", "the score -1 is not on the scale of 0 to 5"),
        ("5.1\ta\tb", "the score 5.1 is not on the scale of 0 to 5"),
        ("3\ta\t  ", "an empty sentence"),
        ("score\tsentence1\tsentence2", "the score 'score' is not a number"),
    ],
)
def test_an_unusable_scored_pair_names_file_line_and_reason(write, row, message):
    for content, mark in ((TABS, "\t"), (COMMAS, ",")):
        path = write("pairs.csv", "\n".join((content, row.replace("\t", mark), content)))
        with pytest.raises(InputError, match=re.escape(f"{path}, line 4: {message}")):
            load_scored_pairs(path)


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
FORMS = {"nli": NLI, "duplicates": LABELLED, "triplets": PAIRS, "tuples": PAIRS, "scored": SCORED}
TRIPLETS_CSV = 'sent0,sent1,hard_neg\na cat,A cat,"A ""dog"" runs."\nx,y,\n"One, two","1, 2",three\n'
TWO_OBJECTS = '{"query": "a cat", "positive": "A cat"}\n\n{"positive": "1, 2", "query": "One, two"}\n'
NEGATIVES_TSV = "negative_2\tanchor\tscore\tpositive\tnegative_1\nn\ta\t3\tp\tm\no\tb\t4\tq\tk\n"
GOOD = [  # reader, ending of the file's name, rows, how many are skipped, content
    ("nli", ".jsonl.gz", NLI_ROWS, 1, NLI_LINES),
    ("nli", ".txt", NLI_ROWS, 2, NLI_LINES + nli_line("neutral", "A man.", " \t")),
    ("nli", ".jsonl", NLI_ROWS[:1], 0, '["neutral", "A man sleeps.", "A man dreams."]'),
    ("duplicates", ".tsv", QUORA_ROWS, 1, QUORA),
    ("duplicates", ".tsv", PLAIN, 0, '1\tA cat.\tThe "cat\n0\tA, b\t"c"\n'),
    ("duplicates", ".tsv", PLAIN, 0, 'sentence1\tid\tsentence2\tLabel\nA cat.\t7\tThe "cat\t1\nA, b\t8\t"c"\t0'),
    ("duplicates", ".csv", PLAIN, 0, '1,A cat.,"The ""cat"\n0,"A, b","""c"""\n'),
    ("duplicates", ".csv.gz", PLAIN, 0, '"label","sentence1","sentence2"\n"1",A cat.,"The ""cat"\n0,"A, b","""c"""'),
    ("triplets", ".tsv", TRIPLETS, 1, 'a cat\tA cat\tA "dog" runs.\n\tx\ty\nOne, two\t1, 2\tthree\n'),
    ("triplets", ".csv", TRIPLETS, 1, TRIPLETS_CSV),
    (
        *("triplets", ".jsonl", TRIPLETS, 1),
        '{"anchor": "a cat", "positive": "A cat", "negative": "A \\"dog\\" runs."}\n["x", "y", ""]\n'
        '{"negative": "three", "anchor": "One, two", "positive": "1, 2", "id": 5}\n',
    ),
    ("tuples", ".tsv", TWO, 1, "a cat\tA cat\n\tx\nOne, two\t1, 2\n"),
    ("tuples", ".tsv.gz", TWO, 1, "positive\tid\tAnchor\n A cat\t7\ta cat \n\t8\tx\n1, 2\t9\tOne, two"),
    ("tuples", ".csv", TWO, 1, 'query,answer\r\na cat,A cat\r\nx, \r\n"One, two","1, 2"\r\n'),
    ("tuples", ".jsonl", TWO, 0, TWO_OBJECTS),
    ("tuples", ".tsv", NEGATIVES, 0, NEGATIVES_TSV),
    ("tuples", ".csv", NEGATIVES, 0, "question,answer,hard_neg,hard_neg2\na,p,n,m\nb,q,o,k\n"),
    (
        "tuples",
        ".jsonl",
        NEGATIVES,
        0,
        '{"anchor": "a", "positive": "p", "negative": ["n", "m"]}\n["b", "q", "o", "k"]\n',
    ),
]


@pytest.mark.parametrize(("reader", "ending", "rows", "skipped", "content"), GOOD)
def test_the_rows_of_a_good_file(write, reader, ending, rows, skipped, content):
    path = write(f"a{ending}", content)
    assert read_file(path, FORMS[reader])[:2] == (rows, skipped)
    found, passed, _ = read_file(path, FORMS[reader], limit=2)
    assert (len(found) + passed, found) == (min(2, len(rows) + skipped), rows[: len(found)])


BAD_NLI = "line 5: expected classes, such as NLI's (gold_label, sentence1, sentence2), not "
KEYS, TEXTS = "line 5: the keys are 'gold_label', 'sentence1'; NLI need", "line 5: two texts are needed, not ["
NO_PAIR = "line 1: expected pairs or triplets (anchor, positive, negatives)"
BAD = [  # reader, ending of the file's name, content, message
    ("nli", ".jsonl", NLI_LINES + '{"gold_label": "neutral"', "line 5: not valid JSON: Expecting ',' delimiter"),
    ("nli", ".jsonl", NLI_LINES + "[" * 100_000, "line 5: not valid JSON: "),
    ("nli", ".jsonl", NLI_LINES + "7", BAD_NLI + "7"),
    ("nli", ".jsonl", NLI_LINES + '["a"]', "line 5: 1 columns; 3 are needed: classes"),
    (
        "nli",
        ".jsonl",
        NLI_LINES + '{"gold_label": "neutral", "sentence1": "a"}',
        KEYS,
    ),
    (
        "nli",
        ".jsonl",
        NLI_LINES + '{"gold_label": "neutral", "sentence1": null, "sentence2": "b"}',
        TEXTS,
    ),
    (
        "nli",
        ".jsonl",
        NLI_LINES + '{"gold_label": "neutral", "sentence1": ["a"], "sentence2": "b"}',
        TEXTS,
    ),
    (
        "nli",
        ".jsonl",
        NLI_LINES + nli_line("neutral", "a \ud800 b", "c"),
        "line 5: not valid Unicode: a lone surrogate",
    ),
    ("duplicates", ".tsv", "1\ta\tb\n\n2\ta\tb\n", "line 3: the label '2' is not 0 or 1"),
    ("duplicates", ".tsv", "1\ta\tb\n-\ta\tb\n", "line 2: the label '-' is not 0 or 1"),
    ("duplicates", ".tsv", "1\ta\n", "line 1: 2 columns; 3 are needed (0 or 1, sentence1, sentence2)"),
    ("duplicates", ".tsv", QUORA + '4\t9\t10\t"a\tb\t0\n', "line 7: 4 columns; 6 are needed (as in the first row)"),
    ("duplicates", ".csv", '1,a,b\n1,"a,b\n', "line 2: not comma-separated values: "),
    ("duplicates", ".csv", '1,"a\n\nb",c\n1,"a"x,b\n', "line 4: not comma-separated values: "),
    ("duplicates", ".tsv", "label\tsentence1\tsentence2\n" * 2, "line 2: the header again; delete the line"),
    ("triplets", ".tsv", "a\tb\tc\na\tb\n", "line 2: 2 columns; 3 are needed (as in the first row)"),
    ("triplets", ".jsonl", '["a", "b", "c"]\n["a", "b"]\n', "line 2: 2 texts; the first row has 3"),
    ("triplets", ".jsonl", '["a", "b", 3]', "line 1: a text is needed, not 3"),
    ("tuples", ".txt", "only one\ncolumn\n", "line 1: 1 column; anchor and positive are needed"),
    ("tuples", ".jsonl", '{"anchor": "a"}', "line 1: the keys are 'anchor'; pairs need anchor or query"),
    ("tuples", ".jsonl", '"a"', NO_PAIR),
    (
        "tuples",
        ".jsonl",
        '{"anchor": "a", "positive": "p", "negative": [["n"]]}',
        "line 1: a text is needed, not [['n']]",
    ),
]


@pytest.mark.parametrize(("reader", "ending", "content", "message"), BAD)
def test_an_unusable_row_names_file_line_and_reason(write, reader, ending, content, message):
    with pytest.raises(InputError, match=re.escape(f"a{ending}, {message}")):
        read_file(write(f"a{ending}", content), FORMS[reader])


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        ("scored", "score,sentence1,sentence2\n"),
        ("nli", nli_line("-", "a", "b") * 2),
        ("duplicates", "1\t\tb\n0\ta\t\n"),
        ("triplets", "anchor,positive,negative\n,b,c\na,b,\n"),
    ],
)
def test_a_file_without_usable_rows(write, reader, content):
    skipped = "" if reader == "scored" else r" \(2 were skipped\)"
    with pytest.raises(InputError, match=f"a holds no usable rows{skipped}"):
        read_file(write("a", content), FORMS[reader])
    for empty in ("", "\ufeff"):
        with pytest.raises(InputError, match="a holds no usable rows"):
            read_file(write("a", empty), FORMS[reader])


# ---------------------------------------------------------------------------------- names of columns

SCORE, PAIR = Row(("a cat", "b, dog"), 4.0), Row(("a cat", "b, dog"))
NAMED = [  # format, ending, rows, columns that are named as not read, content
    (SCORED, ".csv", [SCORE], ["genre"], 'genre,text1,text2,score\nx,a cat,"b, dog",4\n'),
    (SCORED, ".csv", [SCORE], [], ',sentence_A,sentence_B,relatedness_score\n0,a cat,"b, dog",4\n'),
    (SCORED, ".jsonl", [SCORE], [], '{"sentence1": "a cat", "sentence2": "b, dog", "label": 4}'),
    (SCORED, ".tsv", [SCORE], [], "query\tanswer\tlabel\na cat\tb, dog\t4.0\n"),
    (LABELLED, ".csv", [Row(("a", "b"), 1), Row(("c", "d"), 0)], [], "sentence1,sentence2,label\na,b,1.0\nc,d,0.0\n"),
    (NLI, ".csv", [Row(("a", "b"), NEUTRAL)], [], "premise,hypothesis,label\na,b,1\n"),  # Hugging Face's order
    (NLI, ".jsonl", [Row(("a", "b"), ENTAILMENT)], [], '{"premise": "a", "hypothesis": "b", "label": 0}'),
    (NLI, ".csv", [Row(("a", "b"), "refund")], [], "sentence1,sentence2,label\na,b,refund\n"),
    (
        MULTILABEL,
        ".csv",
        [Row(("a", "b"), ("x", "y")), Row(("c", "d"), ())],
        [],
        'text1,text2,labels\na,b,"x,y"\nc,d,\n',
    ),
    (MULTILABEL, ".jsonl", [Row(("a", "b"), ("0", "2"))], [], '{"label": [1, 0, 1.0], "text1": "a", "text2": "b"}'),
    (MULTILABEL, ".jsonl", [Row(("a", "b"), ("x",))], [], '[["x"], "a", "b"]'),
    (PAIRS, ".tsv", [PAIR], ["title"], "title\tquery\tpassage\nx\ta cat\tb, dog\n"),
    *[
        (PAIRS, ".csv", [Row(("a", "p", "n"))], [], f"{name},query,pos\nn,a,p\n")
        for name in "neg neg_1 hard_negative hard_negatives negative_passage hard_neg negative1".split()
    ],
    # FlagEmbedding's and Tevatron's files: a row for each positive; no more negatives than the shortest list has
    (
        PAIRS,
        ".jsonl",
        [Row(("a", "p", "n")), Row(("a", "q", "n")), Row(("b", "r", "k"))],
        ["negatives beyond 1 of a row"],
        '{"query": "a", "pos": ["p", "q"], "neg": ["n", "m"]}\n{"query": "b", "pos": ["r"], "neg": ["k"]}',
    ),
    (
        PAIRS,
        ".jsonl",
        [Row(("a", "t p", "n"))],
        [],
        '{"query_id": 1, "query": "a", "positive_passages": [{"docid": "3", "title": "t", "text": "p"}], '
        '"negative_passages": [{"docid": "4", "text": "n"}]}',
    ),
]


@pytest.mark.parametrize(("form", "ending", "rows", "unread", "content"), NAMED)
def test_names_that_the_libraries_of_the_field_write(write, form, ending, rows, unread, content):
    path = write(f"a{ending}", content)
    table = read_file(path, form)
    assert (table.rows, table.unread) == (rows, unread)


@pytest.mark.parametrize(
    "header", ["text,positive", "title,body", "input,output", "Frage,Antwort", "my query,best text"]
)
def test_an_unknown_header_is_never_a_row(write, header):
    """Refused with the names that would do, or read by --columns; a file of names alone has no header."""
    rows = "".join(f"what is the word number {i}?,it is this\n" for i in range(9))
    path = write("a.csv", f"{header}\n{rows}")
    for read in (lambda: read_file(path, PAIRS), lambda: recognise(path)):
        with pytest.raises(InputError, match=r"are not known.*anchor or query or question"):
            read()
    (first, *_), skipped, _ = read_file(path, PAIRS, columns=header)
    assert (first.texts, skipped) == (("what is the word number 0?", "it is this"), 0)
    assert len(read_file(write("b.csv", rows), PAIRS).rows) == 9
    assert read_file(write("c.csv", "cat,Katze\ndog,Hund\n"), PAIRS).rows[0].texts == ("cat", "Katze")


@pytest.mark.parametrize("cell", ["4,5", "80%", "0x3", "true", "", "nan"])
def test_scores_that_are_no_numbers_never_make_triplets(write, cell):
    table = "".join(f"{cell if i < 2 else 3}\tthe text number {i}\tanother text\n" for i in range(9))
    path = write("a.tsv", table)
    assert recognise(path) is SCORED
    with pytest.raises(InputError, match=r"line 1: the score '.*' is not a number"):
        read_file(path, SCORED)
    with pytest.raises(InputError, match="column 1 holds numbers"):
        read_file(path, PAIRS)


@pytest.mark.parametrize(
    ("form", "ending", "content", "message"),
    [
        (PAIRS, ".jsonl", '{"anchor": ["a", "b"], "positive": "p"}', "line 1: one anchor is needed, not 2"),
        (PAIRS, ".jsonl", '{"id": 1, "text": "a"}', "line 1: the keys are 'id', 'text'; pairs need anchor or query"),
        (SCORED, ".csv", "rating,left,right\n4,a,b\n3,c,d\n", "called 'rating', 'left', 'right' are not known"),
        (SCORED, ".tsv", "a cat\ta dog\t4\nb\tc\t3\n", "column 3 holds numbers: give --columns 3,1,2"),
        (NLI, ".csv", "premise,hypothesis,label\na,b,7\n", "line 2: the label '7' is not 0, 1 or 2"),
        (NLI, ".jsonl", '{"sentence1": "a", "sentence2": "b", "label": [0, 1]}', "line 1: .* is not one class"),
        (
            MULTILABEL,
            ".jsonl",
            '{"labels": [0, 2], "text1": "a", "text2": "b"}',
            "line 1: .* nor a 0 or 1",
        ),
        (MULTILABEL, ".jsonl", '{"label": {"x": 1}, "text1": "a", "text2": "b"}', "line 1: .* are neither names"),
        (PAIRS, ".csv", "a;b\nc;d\n", "1 column; anchor and positive are needed, separated by tabs or commas"),
    ],
)
def test_columns_that_cannot_be_read(write, form, ending, content, message):
    with pytest.raises(InputError, match=message):
        read_file(write(f"a{ending}", content), form)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [("mark,left,right", 4.0), ("1,3,2", None), ("left,mark,right", None), ("mark,left,middle", None)],
)
def test_columns_by_name_and_by_number(write, columns, expected):
    path = write("a.csv", "mark,left,right\n4,a,b\n")
    if expected:
        assert read_file(path, SCORED, columns=columns).rows == [Row(("a", "b"), expected)]
        return
    with pytest.raises(InputError, match=r"the score '(mark|a)' is not a number|no column 'middle'"):
        read_file(path, SCORED, columns=columns)
    assert read_file(write("b.csv", "a,4,b\n"), SCORED, columns="2,1,3").rows == [Row(("a", "b"), 4.0)]


@pytest.mark.parametrize(("scale", "expected"), [(-1.0, [-2.5, 5.0]), (None, [-0.5, 1.0])])
def test_scores_below_0(write, scale, expected):
    """A scale of -1 is that of -1 to 1; without a scale the scores stay as they are."""
    path = write("a.tsv", "-0.5\ta\tb\n1\tc\td\n")
    assert [row.score for row in load_scored_pairs(path, scale=scale)] == expected
    with pytest.raises(InputError, match=r"line 1: the score -0\.5 is not on the scale of 0 to 1"):
        load_scored_pairs(path, scale=1.0)


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("a.csv", "sentence1,sentence2,label\na,b,1.0\nc,d,0\n", LABELLED),
        ("a.csv", "sentence1,sentence2,label\na,b,2\nc,d,0\n", SCORED),
        ("a.csv", "sentence1,sentence2,score\na,b,1\nc,d,0\n", SCORED),
        ("a.csv", "premise,hypothesis,label\na,b,1\nc,d,0\n", NLI),
        ("a.csv", "query,answer,label\na,b,1\nc,d,0\n", LABELLED),
        ("a.csv", "anchor,positive,negative,score\na,b,c,1\n", PAIRS),
        ("a.csv", "id,text\n1,a\n", SENTENCES),
        ("a.txt", "one, two\nthree\n", SENTENCES),
        ("a.txt", "4,a cat,a dog\n3,c,d\n", SCORED),
        ("a.tsv", "1\ta\tb\n0\tc\td\n", LABELLED),
        ("a.jsonl", '["a", "b"]', PAIRS),
    ],
)
def test_the_format_of_a_file(write, name, content, form: Format):
    assert recognise(write(name, content)) is form


def test_a_cell_of_150_kb(write):
    long = "word " * 30_000
    for name, mark in (("a.tsv", "\t"), ("a.csv", ",")):
        assert len(read_file(write(name, f"anchor{mark}positive\nq{mark}{long}\n"), PAIRS).rows[0].texts[1]) == 149_999
