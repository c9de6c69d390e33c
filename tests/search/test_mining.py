"""Hard negatives against a slow loop; ``test_util.py`` compares them with sentence-transformers."""

import math

import numpy as np
import pytest

from minisbert.core import InputError
from minisbert.search import mining
from minisbert.search.mining import Rules, candidates_of, mine, triplets

PAIRS = [
    ("cat", "kitten"),
    ("dog", "puppy"),
    ("cat", "tomcat"),
    ("rain", "shower"),
    ("dog", "puppy"),
]
CORPUS = ["snow", "kitten", "storm", "CAT", "snow", "  Tomcat"]


def random_task(seed: int, own: bool = False):
    """Pairs, a corpus and a vector for each text; close to each other, so that every rule leaves
    some out.
    """
    generator = np.random.default_rng(seed)
    pairs = [(f"a{i}", f"p{generator.integers(60)}") for i in generator.integers(0, 40, 90)]
    corpus = [] if own else [f"c{i}" for i in generator.integers(0, 200, 150)] + ["p3", "p4"]
    texts = dict.fromkeys([*corpus, *(text for pair in pairs for text in pair)])
    centre = generator.normal(size=12)
    vectors = {text: (centre + generator.normal(size=12)).astype(np.float32) for text in texts}
    return (
        pairs,
        corpus,
        {text: vector / np.linalg.norm(vector) for text, vector in vectors.items()},
    )


def run(pairs, corpus, vectors, rules: Rules):
    task = candidates_of(pairs, corpus)
    anchors, documents = (
        np.stack([vectors[text] for text in texts]) for texts in (task.anchors, task.documents)
    )
    return task, mine(anchors, documents, task, rules)


def slow(pairs, corpus, vectors, rules: Rules) -> list[tuple[str, str, str]]:
    """The rules one candidate after the other, as the issue and the docstring have them."""
    documents = list(dict.fromkeys([*corpus, *(positive for _, positive in pairs)]))
    own: dict[str, list[str]] = {}
    most: dict[str, int] = {}
    for anchor, positive in pairs:
        own.setdefault(anchor, []).append(positive)
        most[anchor] = most.get(anchor, 0) + 1
    rows = []
    for anchor, positives in own.items():
        cosine = {text: float(vectors[anchor].astype(float) @ vectors[text]) for text in documents}
        lowest = min(cosine[text] for text in positives)
        ranked = sorted(documents, key=lambda text: -cosine[text])[
            : rules.depth(max(most.values()))
        ]
        kept = [text for text in ranked if text not in positives]
        if rules.absolute_margin is not None:
            kept = [text for text in kept if lowest - cosine[text] >= rules.absolute_margin]
        if rules.relative_margin is not None:
            kept = [
                text
                for text in kept
                if lowest - cosine[text] >= rules.relative_margin * abs(lowest)
            ]
        kept = [
            text
            for text in kept
            if (rules.min_score or -1) <= cosine[text] <= (rules.max_score or 1)
        ]
        chosen = kept[rules.range_min :][: rules.num_negatives]
        rows += [
            (anchor, positive, text) for positive in dict.fromkeys(positives) for text in chosen
        ]
    return rows


RULES = [
    Rules(),
    Rules(num_negatives=5, range_min=2, range_max=9),
    Rules(absolute_margin=0.1),
    Rules(relative_margin=0.05, num_negatives=4, range_min=1),
    Rules(max_score=0.6, range_max=40),
    Rules(min_score=0.55, num_negatives=7),
    Rules(absolute_margin=0.02, relative_margin=0.2, max_score=0.7, min_score=0.3, range_max=100),
    Rules(range_max=1000, num_negatives=60),
]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("rules", RULES)
def test_negatives_equal_a_slow_loop(rules, own, monkeypatch):
    monkeypatch.setattr(mining, "ANCHOR_BLOCK", 16)
    pairs, corpus, vectors = random_task(1, own)
    task, mined = run(pairs, corpus, vectors, rules)
    expected = slow(pairs, corpus, vectors, rules)
    assert expected
    # negatives whose cosines with the anchor nearly tie may be exchanged by rounding
    for (anchor, positive, negative), other in zip(triplets(task, mined), expected, strict=True):
        assert (anchor, positive) == other[:2]
        assert (
            abs(vectors[anchor] @ vectors[negative] - vectors[anchor] @ vectors[other[2]]) <= 2e-6
        ), negative
    for anchor, rows, scores in zip(task.anchors, mined.negatives, mined.scores, strict=True):
        cosines = [vectors[anchor].astype(float) @ vectors[task.documents[row]] for row in rows]
        np.testing.assert_allclose(scores, cosines, atol=2e-6, rtol=0)  # float32


def test_the_number_of_ranks_that_are_searched():
    """As sentence-transformers computes it from its defaults, with 2 positives."""
    assert Rules().depth(2) == 3 + 2 + 2
    assert Rules(num_negatives=4, range_min=5, min_score=0.1).depth(2) == 5 + 4 + 2 + 2
    for name in ("absolute_margin", "relative_margin", "max_score"):
        assert Rules(range_min=1, **{name: 0.5}).depth(2) == 1 + 30 + 2 + 2
    assert Rules(range_max=20, max_score=0.5).depth(2) == 20 + 2


def test_pairs_and_corpus_become_anchors_and_documents():
    task = candidates_of(PAIRS, CORPUS)
    assert task.anchors == ["cat", "dog", "rain"]
    assert task.documents == [
        "snow",
        "kitten",
        "storm",
        "CAT",
        "  Tomcat",
        "puppy",
        "tomcat",
        "shower",
    ]
    assert task.positives == [[1, 6], [5], [7]]
    assert [sorted(rows) for rows in task.copies] == [[3, 4], [], []]  # CAT and Tomcat, of cat
    assert task.most == 2


def test_a_copy_of_anchor_or_positive_is_no_candidate_and_takes_no_rank():
    """The vectors of copies are the closest of all."""
    angles = {
        "cat": 0,
        "CAT": 0,
        "kitten": 30,
        "tomcat": 40,
        "  Tomcat": 40,
        "snow": 10,
        "storm": 50,
        "shower": 60,
    }
    angles |= {"dog": 180, "puppy": 190, "rain": 270}
    vectors = {
        text: np.array([math.cos(math.radians(a)), math.sin(math.radians(a))], np.float32)
        for text, a in angles.items()
    }
    task, mined = run(PAIRS, CORPUS, vectors, Rules(num_negatives=2, range_max=2))
    assert [task.documents[row] for row in mined.negatives[0]] == ["snow", "storm"]
    np.testing.assert_allclose(
        mined.scores[0], [0.98480775, 0.64278761], atol=1.2e-7, rtol=0
    )  # cos 10, cos 50 degrees
    _, mined = run(PAIRS, CORPUS, vectors, Rules(num_negatives=2, absolute_margin=0.1))
    assert [task.documents[row] for row in mined.negatives[0]] == [
        "storm",
        "shower",
    ]  # 0.766 - 0.643 > 0.1
    assert mined.failed["absolute margin"] > 0


def test_the_margin_of_a_negative_positive():
    """p = -0.5 with a relative margin of 0.2: a candidate must be at most -0.6."""
    vectors = {
        "a": [1, 0],
        "p": [-0.5, math.sqrt(0.75)],
        "near": [-0.55, math.sqrt(1 - 0.55**2)],
        "far": [-0.61, 0.79],
    }
    vectors = {text: np.array(vector, np.float32) for text, vector in vectors.items()}
    task, mined = run([("a", "p")], ["near", "far"], vectors, Rules(relative_margin=0.2))
    assert [task.documents[row] for row in mined.negatives[0]] == ["far"]
    assert mined.failed == {"relative margin": 1}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"num_negatives": 0}, "num_negatives .* got 0"),
        ({"range_min": -1}, "range_min must be an integer from 0"),
        ({"range_min": 5, "range_max": 7}, "ranks 5 to 7 have no room for 3 negatives"),
        ({"absolute_margin": math.nan}, "absolute_margin .* nan"),
    ],
)
def test_rules_that_nothing_can_meet_are_errors(rules, message):
    with pytest.raises(InputError, match=message):
        Rules(**rules)
