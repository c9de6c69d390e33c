"""Every format of training data: the rows of good files, and the reason for each row that is refused."""

import json
import re

import pytest
from minisbert.data.corpora import (
    Row,
    Triplet,
    load_duplicates,
    load_nli,
    read_sentences,
    read_triplets,
    read_tuples,
)
from minisbert.data.scored_pairs import Row, read_scored_pairs

from minisbert.core import InputError

CONTRADICTION, ENTAILMENT, NEUTRAL = range(3)  # SBERT's order


def nli_line(label: str, premise: str, hypothesis: str, **more: object) -> str:
    return json.dumps({"gold_label": label, "sentence1": premise, "sentence2": hypothesis, **more}) + "\n"


# ------------------------------------------------------------------------------------- scored pairs

SCORED = [Row(("A cat sits.", "A kitten is sitting."), 4.2), Row(('He said "sit', "The dog, it sat"), 0.0)]
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
    assert load_scored_pairs(write("pairs.csv", content)) == SCORED
    variant = "\ufeff" + content.replace("\n", "\r\n\r\n") + " \n"  # byte order mark, CRLF, blank lines
    assert load_scored_pairs(write("pairs.csv", variant)) == SCORED
    assert load_scored_pairs(write("pairs.csv", content.removesuffix("\n"))) == SCORED


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
        ("nan\ta\tb", "the score nan is not on the scale of 0 to 5"),
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
NLI = (
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
TRIPLETS = [Triplet("a cat", "A cat", 'A "dog" runs.'), Triplet("One, two", "1, 2", "three")]
PAIRS = [("a cat", "A cat"), ("One, two", "1, 2")]
NEGATIVES = [("a", "p", "n", "m"), ("b", "q", "o", "k")]
SENTENCES = ["A cat.", "Naïve 猫", "A cat.", 'a\u2028b, "c"\tand d']
READ = {"nli": load_nli, "duplicates": load_duplicates, "triplets": read_triplets, "tuples": read_tuples}
READ |= {"scored": read_scored_pairs, "sentences": read_sentences}
GOOD = [  # reader, ending of the file's name, rows, how many are skipped, content
    ("nli", ".jsonl.gz", NLI_ROWS, 1, NLI),
    ("nli", ".txt", NLI_ROWS, 2, NLI + nli_line("neutral", "A man.", " \t")),
    ("nli", ".jsonl", NLI_ROWS[:1], 0, '["neutral", "A man sleeps.", "A man dreams."]'),
    ("duplicates", ".tsv", QUORA_ROWS, 1, QUORA),
    ("duplicates", ".tsv", PLAIN, 0, '1\tA cat.\tThe "cat\n0\tA, b\t"c"\n'),
    ("duplicates", ".tsv", PLAIN, 0, 'sentence1\tid\tsentence2\tLabel\nA cat.\t7\tThe "cat\t1\nA, b\t8\t"c"\t0'),
    ("duplicates", ".csv", PLAIN, 0, '1,A cat.,"The ""cat"\n0,"A, b","""c"""\n'),
    ("duplicates", ".csv.gz", PLAIN, 0, '"label","sentence1","sentence2"\n"1",A cat.,"The ""cat"\n0,"A, b","""c"""'),
    ("triplets", ".tsv", TRIPLETS, 1, 'a cat\tA cat\tA "dog" runs.\n\tx\ty\nOne, two\t1, 2\tthree\n'),
    (
        "triplets",
        ".csv",
        TRIPLETS,
        1,
        'sent0,sent1,hard_neg\na cat,A cat,"A ""dog"" runs."\nx,y,\n"One, two","1, 2",three\n',
    ),
    (
        *("triplets", ".jsonl", TRIPLETS, 1),
        '{"anchor": "a cat", "positive": "A cat", "negative": "A \\"dog\\" runs."}\n["x", "y", ""]\n'
        '{"negative": "three", "anchor": "One, two", "positive": "1, 2", "id": 5}\n',
    ),
    ("tuples", ".tsv", PAIRS, 1, "a cat\tA cat\n\tx\nOne, two\t1, 2\n"),
    ("tuples", ".tsv.gz", PAIRS, 1, "positive\tid\tAnchor\n A cat\t7\ta cat \n\t8\tx\n1, 2\t9\tOne, two"),
    ("tuples", ".csv", PAIRS, 1, 'query,answer\r\na cat,A cat\r\nx, \r\n"One, two","1, 2"\r\n'),
    (
        "tuples",
        ".jsonl",
        PAIRS,
        0,
        '{"query": "a cat", "positive": "A cat"}\n\n{"positive": "1, 2", "query": "One, two"}\n',
    ),
    (
        *("tuples", ".tsv", NEGATIVES, 0),
        "negative_2\tanchor\tscore\tpositive\tnegative_1\nn\ta\t3\tp\tm\no\tb\t4\tq\tk\n",
    ),
    ("tuples", ".csv", NEGATIVES, 0, "question,answer,hard_neg,hard_neg2\na,p,n,m\nb,q,o,k\n"),
    (
        "tuples",
        ".jsonl",
        NEGATIVES,
        0,
        '{"anchor": "a", "positive": "p", "negative": ["n", "m"]}\n["b", "q", "o", "k"]\n',
    ),
    ("sentences", ".txt.gz", SENTENCES, 2, 'A cat.\r\n\nNaïve 猫\n A cat. \n \t\na\u2028b, "c"\tand d'),
]


@pytest.mark.parametrize(("reader", "ending", "rows", "skipped", "content"), GOOD)
def test_the_rows_of_a_good_file(write, reader, ending, rows, skipped, content):
    path = write(f"a{ending}", content)
    assert READ[reader](path) == (rows, skipped)
    found, passed = READ[reader](path, limit=2)
    assert (len(found) + passed, found) == (min(2, len(rows) + skipped), rows[: len(found)])


BAD_NLI = "line 5: expected NLI rows (.jsonl or .zip with gold_label, sentence1, sentence2) as strings, not "
NO_PAIR = "line 1: expected pairs or triplets"
BAD = [  # reader, ending of the file's name, content, message
    ("nli", ".jsonl", NLI + '{"gold_label": "neutral"', "line 5: not valid JSON: Expecting ',' delimiter"),
    ("nli", ".jsonl", NLI + "[" * 100_000, "line 5: not valid JSON: "),
    ("nli", ".jsonl", NLI + "7", BAD_NLI + "7"),
    ("nli", ".jsonl", NLI + '["a"]', BAD_NLI),
    ("nli", ".jsonl", NLI + '{"gold_label": "neutral", "sentence1": "a"}', BAD_NLI),
    ("nli", ".jsonl", NLI + '{"gold_label": "neutral", "sentence1": null, "sentence2": "b"}', BAD_NLI),
    ("nli", ".jsonl", NLI + '{"gold_label": "neutral", "sentence1": ["a"], "sentence2": "b"}', BAD_NLI),
    ("nli", ".jsonl", NLI + nli_line("Neutral", "a", "b"), "line 5: the label 'Neutral' is not contradiction or ent"),
    ("nli", ".jsonl", NLI + nli_line("neutral", "a \ud800 b", "c"), "line 5: not valid Unicode: a lone surrogate"),
    ("duplicates", ".tsv", "1\ta\tb\n\n2\ta\tb\n", "line 3: the label '2' is not 0 or 1"),
    ("duplicates", ".tsv", "1\ta\tb\n-\ta\tb\n", "line 2: the label '-' is not 0 or 1"),
    ("duplicates", ".tsv", "1\ta\n", "line 1: 2 columns; 3 are needed (is_duplicate, question1, question2)"),
    ("duplicates", ".tsv", QUORA + '4\t9\t10\t"a\tb\t0\n', "line 7: 4 columns; 6 are needed (as in the first row)"),
    ("duplicates", ".csv", '1,a,b\n1,"a,b\n', "line 2: not comma-separated values: "),
    ("duplicates", ".csv", '1,"a\n\nb",c\n1,"a"x,b\n', "line 4: not comma-separated values: "),
    ("duplicates", ".tsv", "label\tsentence1\tsentence2\n" * 2, "line 2: the header again; delete the line"),
    ("triplets", ".tsv", "a\tb\tc\na\tb\n", "line 2: 2 columns; 3 are needed (as in the first row)"),
    ("triplets", ".jsonl", '["a", "b", "c"]\n["a", "b"]\n', "line 2: 2 texts; the first row has 3"),
    ("triplets", ".jsonl", '["a", "b", 3]', "line 1: expected triplets"),
    ("triplets", ".jsonl", '["a", "b"]', "line 1: 2 texts; anchor, positive and negative are needed"),
    ("tuples", ".txt", "only one\ncolumn\n", "line 1: 1 column; anchor and positive are needed"),
    ("tuples", ".jsonl", '{"anchor": "a"}', NO_PAIR),
    ("tuples", ".jsonl", '"a"', NO_PAIR),
    ("tuples", ".jsonl", '{"anchor": "a", "positive": "p", "negative": [["n"]]}', NO_PAIR),
]


@pytest.mark.parametrize(("reader", "ending", "content", "message"), BAD)
def test_an_unusable_row_names_file_line_and_reason(write, reader, ending, content, message):
    with pytest.raises(InputError, match=re.escape(f"a{ending}, {message}")):
        READ[reader](write(f"a{ending}", content))


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        ("scored", "score,sentence1,sentence2\n"),
        ("nli", nli_line("-", "a", "b") * 2),
        ("duplicates", "1\t\tb\n0\ta\t\n"),
        ("triplets", "anchor,positive,negative\n,b,c\na,b,\n"),
        ("sentences", " \n\t\n"),
    ],
)
def test_a_file_without_usable_rows(write, reader, content):
    skipped = "" if reader == "scored" else r" \(2 were skipped\)"
    with pytest.raises(InputError, match=f"a holds no usable rows{skipped}"):
        READ[reader](write("a", content))
    for empty in ("", "\ufeff"):
        with pytest.raises(InputError, match="a holds no usable rows"):
            READ[reader](write("a", empty))
