"""Every format of training data: the rows of good files, the reason for what is refused, the
recognition by names.
"""

import json
import os
import re
from decimal import Decimal
from unittest.mock import Mock

import pytest

from minisbert.core import InputError
from minisbert.data.datasets import (
    Sources,
    class_rows,
    duplicate_rows,
    load_scored_pairs,
    scored_rows,
    text_rows,
    triplet_rows,
)
from minisbert.data.formats import (
    LABELLED,
    NLI,
    PAIRS,
    SCORED,
    SENTENCES,
    Row,
    every_text,
    number,
    read_file,
    recognise,
)
from minisbert.data.lines import Rows
from minisbert.evaluation.evaluators import load_rows
from minisbert.system.files import open_bytes

CONTRADICTION, ENTAILMENT, NEUTRAL = "contradiction", "entailment", "neutral"


def nli_line(label: str, premise: str, hypothesis: str, **more: object) -> str:
    return (
        json.dumps({"gold_label": label, "sentence1": premise, "sentence2": hypothesis, **more})
        + "\n"
    )


# ------------------------------------------------------------------------------------- scored pairs

SCORED_ROWS = [
    Row(("A cat sits.", "A kitten is sitting."), 4.2),
    Row(('He said "sit', "The dog, it sat"), 0.0),
]
TABS = 'Score\tSentence1\tSentence2\n4.2 \tA cat sits.\t A kitten is sitting.\n-0\tHe said "sit\tThe dog, it sat \n'
COMMAS = 'score,sentence1,sentence2\n4.2,A cat sits.,A kitten is sitting.\n0e0,"He said ""sit","The dog, it sat"\n'
SCORED_FILES = {
    "tabs": TABS,
    "commas": COMMAS,
    "other columns": 'sentence2,id,sentence1,score\nA kitten is sitting.,7,A cat sits.,4.2\n"The '
    'dog, it sat",8,'
    '"He said ""sit",0\n',
}


@pytest.mark.parametrize("content", SCORED_FILES.values(), ids=SCORED_FILES)
def test_scored_pairs_in_every_layout(write, content):
    assert load_scored_pairs(write("pairs.csv", content)) == SCORED_ROWS
    variant = (
        "\ufeff" + content.replace("\n", "\r\n\r\n") + " \n"
    )  # byte order mark, CRLF, blank lines
    assert load_scored_pairs(write("pairs.csv", variant)) == SCORED_ROWS
    assert load_scored_pairs(write("pairs.csv", content.removesuffix("\n"))) == SCORED_ROWS


def test_quotation_marks_and_other_marks_inside_a_cell(write):
    """The first line decides between tabs and commas; a quoted line end stays; marks may be
    text.
    """
    header = "score,sentence1,sentence2\n"
    path = write("a.tsv", header.replace(",", "\t") + '3\t"all quoted"\t"a, b" and "c\n')
    (pair,) = load_scored_pairs(Rows(path, quotes=False))
    assert (pair.sentence1, pair.sentence2) == ('"all quoted"', '"a, b" and "c')
    with pytest.raises(InputError, match=r"line 2: .*--no-quotes"):
        load_scored_pairs(path)
    assert load_scored_pairs(write("a.csv", header + "3,a\tb,c\td\n")) == [
        Row(("a\tb", "c\td"), 3.0)
    ]
    pairs = load_scored_pairs(
        write("a.csv", header + '3,"a cat\nsat","b"\r\n2,"c\r\nd",e\n1,f,g\n')
    )
    assert pairs == [Row(("a cat\nsat", "b"), 3.0), Row(("c\nd", "e"), 2.0), Row(("f", "g"), 1.0)]


@pytest.mark.parametrize(("scale", "expected"), [(-1.0, [-2.5, 5.0]), (None, [-0.5, 1.0])])
def test_scores_below_0(write, scale, expected):
    """A scale of -1 is that of -1 to 1; without a scale the scores stay as they are."""
    path = write("a.tsv", "score\tsentence1\tsentence2\n-0.5\ta\tb\n1\tc\td\n")
    assert [row.score for row in load_scored_pairs(path, scale=scale)] == expected
    with pytest.raises(InputError, match=r"line 2: .* 0 to 1"):
        load_scored_pairs(path, scale=1.0)


# ------------------------------------------------------------------------------------- other
# formats

# the other keys are also in SNLI
NLI_LINES = (
    nli_line(
        "neutral", "A man sleeps.", "A man dreams.", annotator_labels=["neutral"], pairID="1r1n"
    )
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
TRIPLETS_CSV = (
    'sent0,sent1,hard_neg\na cat,A cat,"A ""dog"" runs."\nx,y,\n"One, two","1, 2",three\n'
)
TRIPLET_LINES = (
    '{"anchor": "a cat", "positive": "A cat", "negative": "A \\"dog\\" runs."}\n'
    '{"anchor": "x", "positive": "y", "negative": ""}\n'
    '{"negative": "three", "anchor": "One, two", "positive": "1, 2", "id": 5}\n'
)
TWO_OBJECTS = (
    '{"query": "a cat", "positive": "A cat"}\n\n{"positive": "1, 2", "query": "One, two"}\n'
)
TWO_ITEMS = '[{"query": "a cat", "positive": "A cat"},\n {"positive": "1, 2", "query": "One, two"}]'
NEGATIVES_TSV = "negative_2\tanchor\tscore\tpositive\tnegative_1\nn\ta\t3\tp\tm\no\tb\t4\tq\tk\n"
NEGATIVE_LISTS = '{"anchor": "a", "positive": "p", "negative": ["n", "m"]}\n'
NEGATIVE_LISTS += '{"anchor": "b", "positive": "q", "negative": ["o", "k"]}\n'
QUOTED = '"label","sentence1","sentence2"\n"1",A cat.,"The ""cat"\n0,"A, b","""c"""'
GOOD = [  # format, ending of the file's name, rows, how many are skipped, content
    (NLI, ".jsonl.gz", NLI_ROWS, 1, NLI_LINES),
    (NLI, ".txt", NLI_ROWS, 2, NLI_LINES + nli_line("neutral", "A man.", " \t")),
    (
        LABELLED,
        ".tsv",
        PLAIN,
        0,
        'sentence1\tid\tsentence2\tLabel\nA cat.\t7\tThe "cat\t1\nA, b\t8\t"""c"""\t0',
    ),
    (LABELLED, ".csv.gz", PLAIN, 0, QUOTED),
    (PAIRS, ".csv", TRIPLETS, 1, TRIPLETS_CSV),
    (PAIRS, ".jsonl", TRIPLETS, 1, TRIPLET_LINES),
    (
        PAIRS,
        ".tsv.gz",
        TWO,
        1,
        "positive\tid\tAnchor\n A cat\t7\ta cat \n\t8\tx\n1, 2\t9\tOne, two",
    ),
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
    assert recognise(path) is form
    found, passed, *_ = read_file(path, form, limit=2)
    assert (len(found) + passed, found) == (min(2, len(rows) + skipped), rows[: len(found)])


LABELS = "label\tsentence1\tsentence2\n"
ONE_PAIR = '{"anchor": "a", "positive": "p"}'
BAD_PAIRS = {
    "3\ta": "2 columns",
    "3\ta\tb\tc": "4 columns",
    "high\ta\tb": "'high'",
    "\ta\tb": "''",
    "nan\ta\tb": "'nan'",
}
BAD_PAIRS |= {"-1\ta\tb": "score -1", "5.1\ta\tb": "score 5.1", "3\ta\t  ": "empty"}
BAD = [  # format, ending of the file's name, content, the place and a word of the message
    *((SCORED, ".tsv", TABS + row, f"line 4: .*{message}") for row, message in BAD_PAIRS.items()),
    (NLI, ".jsonl", NLI_LINES + '{"gold_label": "neutral"', "line 5: not valid JSON"),
    (NLI, ".jsonl", NLI_LINES + "[" * 100_000, "line 5: not valid JSON"),
    (NLI, ".jsonl", NLI_LINES + "7", "line 5: 7 is no object"),
    (PAIRS, ".jsonl", '{"Anchor": "a", "anchor": "b", "positive": "p"}', "line 1: two keys"),
    (
        NLI,
        ".jsonl",
        NLI_LINES + '{"gold_label": "neutral", "sentence1": "a"}',
        "line 5: the keys are",
    ),
    (
        NLI,
        ".jsonl",
        '{"gold_label": "neutral", "sentence1": null, "sentence2": "b"}',
        "line 1: a text",
    ),
    (NLI, ".jsonl", NLI_LINES + nli_line("neutral", "a \ud800 b", "c"), "line 5: .*surrogate"),
    (NLI, ".csv", "premise,hypothesis,label\na,b,7\n", "line 2: the label '7'"),
    (NLI, ".jsonl", '{"sentence1": "a", "sentence2": "b", "label": [0, 1]}', "line 1: .*one class"),
    (
        NLI,
        ".jsonl",
        '{"sentence1": "a", "sentence2": "b", "label": {"x": []}}',
        "line 1: .*one class",
    ),
    (LABELLED, ".tsv", LABELS + "1\ta\tb\n\n2\ta\tb\n", "line 4: the label '2'"),
    (LABELLED, ".tsv", LABELS + "-\ta\tb\n", "line 2: the label '-'"),
    (LABELLED, ".csv", 'label,sentence1,sentence2\n1,a,b\n1,"a,b\n', "line 3: .*--no-quotes"),
    (
        LABELLED,
        ".csv",
        'label,sentence1,sentence2\n1,"a\n\nb",c\n1,"a"x,b\n',
        "line 5: .*--no-quotes",
    ),
    (LABELLED, ".tsv", LABELS * 2, "line 2: the header again"),
    (PAIRS, ".tsv", "anchor\tpositive\tnegative\na\tb\n", "line 2: 2 columns; 3"),
    (PAIRS, ".jsonl", '{"anchor": "a"}', "line 1: the keys are 'anchor'"),
    (
        PAIRS,
        ".jsonl",
        '["a", "b"]',
        "line 1: .*object",
    ),  # without --columns nobody knows what they are
    (PAIRS, ".jsonl", f"[{ONE_PAIR}]", "line 1: .*object"),
    (PAIRS, ".json", '["a", "b"]', "item 1: .*object"),
    (
        PAIRS,
        ".jsonl",
        '{"anchor": "a", "positive": {"title": "t", "text": "p"}}',
        "line 1: a text .*title",
    ),
    (
        PAIRS,
        ".jsonl",
        f"{ONE_PAIR}\n" + '{"anchor": "a", "positive": "p", "negative": "n"}',
        "line 2: 3 texts",
    ),
    (PAIRS, ".csv", "anchor,positive,negatives\na,b,\"['c', 'd']\"\n", "line 2: a text"),
    (PAIRS, ".csv", "anchor,positive\na,['b' 'c']\n", "line 2: a text"),  # NumPy's
    (
        PAIRS,
        ".csv",
        "anchor,positive\na,b'c\nd,b'\\xc3'\n",
        "line 3: .*bytes",
    ),  # as Python prints them
    (
        PAIRS,
        ".csv",
        "\ufeffAnchor,positive\na,b\n\ufeffanchor,positive\n",
        "line 3: the header again",
    ),
    (PAIRS, ".jsonl", '{"anchor": ["a", "b"], "positive": "p"}', "line 1: one anchor"),
    (
        PAIRS,
        ".jsonl",
        '{"anchor": "a", "positive": "p", "negative": [["n"]]}',
        r"line 1: a text .*\['n'\]",
    ),
    (PAIRS, ".json", f'[{ONE_PAIR}, {{"anchor": "b"}}]', "item 2: the keys are 'anchor'"),
    (PAIRS, ".json", f"[{ONE_PAIR},", "line 1: not valid JSON"),
    (PAIRS, ".json", '[{"anchor": "a", "positive": "\\ud800"}]', "line 1: .*surrogate"),
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


# ---------------------------------------------------------------------------------- names of
# columns

SCORE, PAIR = Row(("a cat", "b, dog"), 4.0), Row(("a cat", "b, dog"))
UNEVEN = '{"query": "a", "pos": ["p", "q"], "neg": ["n", "m"]}\n{"query": "b", "pos": ["r"], "neg": ["k"]}'
NAMED = [  # format, ending, rows, columns that are named as not read, content
    (SCORED, ".csv", [SCORE], ["genre"], 'genre,text1,text2,score\nx,a cat,"b, dog",4\n'),
    (SCORED, ".csv", [SCORE], [], ',sentence_A,sentence_B,relatedness_score\n0,a cat,"b, dog",4\n'),
    (SCORED, ".jsonl", [SCORE], [], '{"sentence1": "a cat", "sentence2": "b, dog", "label": 4}'),
    (SCORED, ".tsv", [SCORE], [], "query\tanswer\tlabel\na cat\tb, dog\t4.0\n"),
    (
        LABELLED,
        ".csv",
        [Row(("a", "b"), 1), Row(("c", "d"), 0)],
        [],
        "sentence1,sentence2,label\na,b,1.0\nc,d,0.0\n",
    ),
    (
        NLI,
        ".csv",
        [Row(("a", "b"), NEUTRAL)],
        [],
        "premise,hypothesis,label\na,b,1\n",
    ),  # Hugging Face's order
    (
        NLI,
        ".jsonl",
        [Row(("a", "b"), ENTAILMENT)],
        [],
        '{"premise": "a", "hypothesis": "b", "label": 0}',
    ),
    (NLI, ".csv", [Row(("a", "b"), "refund")], [], "sentence1,sentence2,label\na,b,refund\n"),
    (PAIRS, ".tsv", [PAIR], ["title"], "title\tquery\tpassage\nx\ta cat\tb, dog\n"),
    *[
        (PAIRS, ".csv", [Row(("a", "p", "n"))], [], f"{name},query,pos\nn,a,p\n")
        for name in [
            "neg",
            "neg_1",
            "hard_negative",
            "hard_negatives",
            "negative_passage",
            "hard_neg",
            "negative1",
        ]
    ],
    # FlagEmbedding's files: a row for each positive; as many negatives as the shortest list has
    (
        *(PAIRS, ".jsonl", [Row(("a", "p", "n")), Row(("a", "q", "n")), Row(("b", "r", "k"))]),
        *(["negatives beyond 1 of a row"], UNEVEN),
    ),
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
        # a text and its class must not become anchor and positive
        "slow dog,sports\nwarm bus,news\n",
        "new dog red\t0\nsky tree\t2\n",
        "4,a cat,a dog\n3,c,d\n",
        "main\tfile\t2012\t1\t4.5\ta\tb\n",  # STS-B's own file is read by the name of the data set
        "score;sentence1;sentence2\n0,5;a;b\n",
    ],
)
def test_a_table_without_the_names_is_refused_with_those_that_would_do(write, form, content):
    path = write("a.csv", content)
    first = re.escape(repr(re.split("[,\t\n]", content)[0]))
    for read in (lambda: read_file(path, form), lambda: recognise(path)):
        with pytest.raises(InputError, match=rf"a\.csv: .*{first}.*(sentence1|anchor).*--columns"):
            read()


def test_columns_by_name_and_by_number(write):
    named, numbered = write("a.csv", "Mark,left,right\n4,a,b\n"), write("b.csv", "a,4,b\n")
    expected = [Row(("a", "b"), 4.0)]
    for path, columns in ((named, "mark, left, RIGHT"), (numbered, "2,1,3")):
        assert read_file(Rows(path, columns=columns), SCORED).rows == expected
    for path, columns, message in (
        (named, "mark,left,middle", "middle"),
        (named, "left,mark,right", "line 2: the score 'a'"),
        (named, "1,2,3", "line 1: the score 'Mark'"),
        (write("e.jsonl", '{"score": 1}'), "1,2,3", "line 1: .*'score'.*1,2,3"),
        (numbered, "2,1,4", "line 1: 3 columns; 4"),
        (numbered, "0,1,2", "must name columns.*0,1,2"),
        (numbered, "1,2", "--columns 1,2 .*score, sentence1"),
        (write("c.jsonl", '["b", "a", "4"]\n'), "3,2,1", "line 1: .*object"),
        (write("d.csv", COMMAS), "1,2,3", "header, .*--columns score,sentence1,sentence2"),
    ):
        with pytest.raises(InputError, match=message):
            read_file(Rows(path, columns=columns), SCORED)


FORMS = {  # the names in a header -> the format that they stand for, whatever the cells hold
    "sentence1,sentence2,label": LABELLED,
    "question1,question2,is_duplicate": LABELLED,
    "query,answer,label": LABELLED,
    "sentence1,sentence2,score": SCORED,
    "anchor,positive,similarity": SCORED,
    "premise,hypothesis,label": NLI,
    "sentence1,sentence2,gold_label,score": NLI,
    "anchor,positive,negative,score": PAIRS,
    "query,document": PAIRS,
    "id,text": SENTENCES,
}


@pytest.mark.parametrize("header", FORMS)
def test_the_names_say_the_format(write, header):
    cells = ["1"] * len(header.split(","))
    assert recognise(write("a.csv", f"{header}\n{','.join(cells)}\n")) is FORMS[header]
    rows = [dict(zip(header.split(","), cells, strict=True))]
    assert recognise(write("a.jsonl", json.dumps(rows[0]))) is FORMS[header]
    assert recognise(write("a.json", json.dumps(rows))) is FORMS[header]
    assert (
        recognise(write("a.json", json.dumps(rows[0]))) is FORMS[header]
    )  # lines, as Hugging Face's to_json writes
    if FORMS[header] is not SENTENCES:
        assert recognise(write("a", f"{header}\n{','.join(cells)}\n")) is FORMS[header]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(
            ("a.txt", text)
            for text in ("one, two\nthree\n", "[1] a note\n", "\tindented\nb\tc\n", "a b \t\nc\n")
        ),
        ("a", '{"text": "a b"}\n'),
    ],
)
def test_other_files_hold_a_text_in_each_line_or_json(write, name, content):
    assert recognise(write(name, content)) is SENTENCES


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(
            ("a.jsonl", line)
            for line in ("[1, 2]", '["a"]', "7", "[]", '{"id": 1}', '{"text": "a", "label": 1}')
        ),
        *(
            ("a.jsonl", line)
            for line in ('{"query": "a", "answers": ["b"], "labels": [1]}', '[{"a": {}}]')
        ),
        *(
            ("a.json", text)
            for text in (
                '["a", "b"]',
                '{\n "data": []\n}',
                '[{"question": "a", "positive_ctxs": []}]',
            )
        ),
        *(
            ("a.txt", text)
            for text in (
                '["a b", "c d"]\n',
                '[\n{"text": "a"}\n]\n',
                "a b\tc d\n",
                "\ttext\n0\ta\n",
            )
        ),
    ],
)
def test_a_file_without_the_names_is_refused(write, name, content):
    with pytest.raises(InputError, match=rf"{name}.*(anchor|JSON)"):
        recognise(write(name, content))


# ------------------------------------------------------------------------------------- what a name
# does not say


def table(header: str, *rows: str, count: int = 12) -> str:
    """A .csv whose rows take turns; {} is the number of the row."""
    return "\n".join(
        [header, *(rows[i % len(rows)].replace("{}", str(i)) for i in range(count)), ""]
    )


@pytest.mark.parametrize("name", ["label", "score", "labels", "relevance"])
def test_pairs_beside_a_label_or_a_score_are_not_all_positives(write, name):
    path = write("a.csv", table(f"query,answer,{name}", "cat {},kitten {},1", "cat {},rain {},0"))
    with pytest.raises(InputError, match=f"{name} .*--columns query,answer"):
        triplet_rows(Sources(data=str(path)))
    assert len(triplet_rows(Sources(data=str(path), columns="query,answer"))[0]) == 12


def test_labels_that_may_be_other_numbers_are_refused(write):
    """0 and 1 of NLI's three classes; 0, 1 and 2 as scores. Without an objective a ``label`` is 0
    or 1.
    """
    path = write(
        "a.csv", table("premise,hypothesis,label", "cat {},dog {},0", "cat {},kitten {},1")
    )
    for read in (lambda: class_rows(Sources(data=str(path))), lambda: load_rows(str(path))):
        with pytest.raises(InputError, match="sentence1"):
            read()
    path = write(
        "b.csv",
        table(
            "sentence1,sentence2,label", "cat {},dog {},0", "cat {},it {},1", "cat {},kitten {},2"
        ),
    )
    for read in (lambda: scored_rows(Sources(data=str(path))), lambda: load_rows(str(path))):
        with pytest.raises(InputError, match="score"):
            read()
    assert len(read_file(Rows(path, columns="label,sentence1,sentence2"), SCORED).rows) == 12
    own = table(
        "text1,text2,label",
        *(f"cat {{}},dog {{}},{label}" for label in ("positive", "neutral", "negative")),
    )
    assert class_rows(Sources(data=str(write("c.csv", own))))[2] == (
        "negative",
        "neutral",
        "positive",
    )


@pytest.mark.parametrize(
    "header", ["premise,hypothesis,label", "sentence1,sentence2,gold_label", "text1,text2,labels"]
)
def test_classes_are_no_scores(write, header):
    path = write("a.csv", table(header, "a {},b {},0", "c {},d {},2"))
    for read in (lambda: load_rows(str(path)), lambda: load_scored_pairs(path)):
        with pytest.raises(InputError, match="classes"):
            read()


def test_minus_1_is_no_gold_label_as_pandas_writes_it(write):
    content = table(
        "premise,hypothesis,label",
        *(f"a,b {{}},{label}" for label in ("-1.0", "0.0", "1.0", "2.0")),
    )
    nli = read_file(write("a.csv", content), NLI)
    assert (nli.skipped, [row.label for row in nli.rows[:3]]) == (
        3,
        ["entailment", "neutral", "contradiction"],
    )
    own = read_file(write("a.jsonl", '{"sentence1": "a", "sentence2": "b", "label": 3.0}'), NLI)
    assert own.rows[0].label == "3"  # the same class as 3


def test_true_and_false_are_1_and_0(write):
    lines = [
        json.dumps({"sentence1": "a", "sentence2": "b", "label": label}) for label in (True, False)
    ]
    for path in (
        write("a.jsonl", "\n".join(lines)),
        write("a.csv", "sentence1,sentence2,label\na,b,True\na,b,False\n"),
    ):
        assert [row.label for row in read_file(path, LABELLED).rows] == [1, 0]


def test_a_number_is_finite():
    assert [number(value) for value in ("4.5", ".5e1", 7, -0.0, Decimal("1.5"))] == [
        4.5,
        5,
        7,
        0,
        1.5,
    ]
    assert {
        number(value) for value in ("1e999", "4,5", "nan", 10**400, float("inf"), True, None)
    } == {None}


def test_two_columns_of_one_name(write):
    with pytest.raises(InputError, match="two columns"):
        list(every_text(write("a.csv", "text,text\na cat,a dog\n")))
    for content in ("anchor,positive,positive\na,b,c\n", "anchor,positive,anchor\na,b,c\n"):
        with pytest.raises(InputError, match="two columns"):
            read_file(write("b.csv", content), PAIRS)
    # of columns that are not read, any number may have the same name, or none
    assert read_file(write("c.csv", "anchor,positive,,\na,b,,\n"), PAIRS).rows[0].texts == (
        "a",
        "b",
    )


@pytest.mark.parametrize("other", ["summary", "simplified", "translation", "document"])
def test_a_second_text_beside_a_text_is_a_pair_by_columns(write, other):
    path = write("a.csv", f"id,text,{other},url\n1,a b,c,d\n")
    for read in (recognise, lambda path: text_rows(Sources(data=str(path)))):
        with pytest.raises(InputError, match=f"--columns text,{other} .*--columns text "):
            read(path)
    assert triplet_rows(Sources(data=str(path), columns=f"text,{other}"))[0] == [("a b", "c")]
    texts, note = text_rows(Sources(data=str(path), columns="text"))
    assert (texts, note) == ([("a b",)], f"{path} (1 sentences; not read: {other}, url)")


def test_columns_that_are_not_read_are_named(write, capsys):
    """Of every form, and the keys of later rows too; ids are not."""
    lines = ['{"id": 1, "text": "a", "valid": 1}', '{"text": "b", "source": "c"}']
    assert text_rows(Sources(data=str(write("a.jsonl", "\n".join(lines)))))[1].endswith(
        "not read: valid, source)"
    )
    assert list(every_text(write("b.jsonl", "\n".join(lines)))) == ["a", "b"]
    assert "not read: valid, source" in capsys.readouterr().err
    nli = "sentence1,sentence2,gold_label,who\n" + "a,b,entailment,c\na,d,contradiction,e\n"
    assert triplet_rows(Sources(data=str(write("a.csv", nli))))[1].endswith("not read: who)")


SPLITS = "split,sentence1,sentence2,label\ntrain,a,b,1\ntrain,c,d,0\nvalidation,e,f,1\ntest,g,h,1\ndev,i,j,0\n"


def test_a_column_split_chooses_the_rows(write):
    path = write("a.csv", SPLITS)
    for split, count, others in (
        ("train", 2, "dev, rows of test"),
        ("dev", 2, "train, rows of test"),
    ):
        table = read_file(Rows(path, split), LABELLED)
        assert (len(table.rows), table.unread) == (
            count,
            [f"rows of {name}" for name in others.split(", rows of ")],
        )
    with pytest.raises(InputError, match=r"'dev', 'train'.*--split"):
        read_file(path, LABELLED)
    with pytest.raises(InputError, match=r"no row has the split dev.*'train'"):
        read_file(Rows(write("b.csv", SPLITS[: SPLITS.index("valid")]), "dev"), LABELLED)
    rows, notes = duplicate_rows(Sources(data=str(path), dev=str(path), test=str(path)))
    assert {split: len(part) for split, part in rows.items()} == {"train": 2, "dev": 2, "test": 1}
    assert "rows of dev, rows of test" in notes["train"]


def test_only_the_columns_that_are_named_must_be_there(write):
    """The STS Benchmark's own files have 7 to 9. Between commas a longer row may have a comma in a
    text.
    """
    sts = 'main\tsrc\t2012\t1\t5.0\ta\tb\nmain\tsrc\t2012\t2\t3.0\t"c\td\tlicence\tlicence\n'
    rows = read_file(Rows(write("a.csv", sts), quotes=False, columns="5,6,7"), SCORED).rows
    assert rows == [Row(("a", "b"), 5.0), Row(('"c', "d"), 3.0)]
    named = write("b.csv", "score,left,right,note\n3,a,b\n4,c,d,e\n")
    assert len(read_file(Rows(named, columns="score,left,right"), SCORED).rows) == 2
    for columns, content in (
        ("1,2,3", "3,a,b\n4,c, c,d\n"),
        ("score,left,right", "score,left,right\n4,c,c,d\n"),
    ):
        with pytest.raises(InputError, match="line 2: 4 columns"):
            read_file(Rows(write("c.csv", content), columns=columns), SCORED)


def test_blank_rows_of_a_spreadsheet_are_skipped(write):
    for form, header, row in (
        (SCORED, "score", "3"),
        (LABELLED, "label", "1"),
        (NLI, "gold_label", "x"),
    ):
        table = read_file(
            write("a.csv", f"{header},sentence1,sentence2\n{row},a,b\n,,\n, ,\n\n"), form
        )
        assert (len(table.rows), table.skipped) == (1, 2)


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="this system has no /dev/fd")
@pytest.mark.parametrize(
    "content", [TABS, COMMAS, "sentence1,sentence2,label\na,b,1\nc,d,0\n", TRIPLET_LINES]
)
def test_a_pipe_is_read_as_a_file(write, content):
    """It can be opened and read only once: ``evaluate --data <(zcat f.tsv.gz)``."""
    expected = load_rows(str(write("a.jsonl" if content.startswith("{") else "a.csv", content)))
    reading, writing = os.pipe()
    os.write(writing, content.encode())
    os.close(writing)
    form, table = load_rows(f"/dev/fd/{reading}")
    assert (form, table.rows) == (expected[0], expected[1].rows)
    os.close(reading)


def test_a_file_is_opened_once(write, monkeypatch):
    opened = Mock(wraps=open_bytes)
    monkeypatch.setattr("minisbert.data.lines.open_bytes", opened)
    for name in ("a.txt", "a.jsonl", "a.json"):
        rows = Rows(write(name, '{"text": "a"}\n{"text": "b"}\n'))
        assert (recognise(rows), list(every_text(rows))) == (SENTENCES, ["a", "b"])
    assert opened.call_count == 3


def test_a_cell_of_150_kb(write):
    long = "word " * 30_000
    for name, mark in (("a.tsv", "\t"), ("a.csv", ",")):
        assert (
            len(
                read_file(write(name, f"anchor{mark}positive\nq{mark}{long}\n"), PAIRS)
                .rows[0]
                .texts[1]
            )
            == 149_999
        )
