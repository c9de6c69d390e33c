"""Hard negatives against a slow loop; ``test_util.py`` compares them with sentence-transformers."""

import math

import numpy as np
import pytest

from minisbert.core import InputError
from minisbert.search.mining import Rules, candidates_of, mine, triplets

PAIRS = [
    ("cat", "kitten"),
    ("dog", "puppy"),
    ("cat", "tomcat"),
    ("rain", "shower"),
    ("dog", "puppy"),
]
CORPUS = ["snow", "kitten", "storm", "CAT", "snow", "  Tomcat"]


def random_task(seed: int, with_corpus: bool = True):
    """Pairs, a corpus and a vector for each text.

    The vectors are close to each other, so that every rule leaves some texts out. Without a corpus
    the documents are the positives alone.
    """
    generator = np.random.default_rng(seed)
    pairs = []
    for i in generator.integers(0, 40, 90):
        pairs.append((f"a{i}", f"p{generator.integers(60)}"))
    corpus = []
    if with_corpus:
        corpus = [f"c{i}" for i in generator.integers(0, 200, 150)] + ["p3", "p4"]
    texts = list(corpus)
    for pair in pairs:
        texts += pair
    centre = generator.normal(size=12)
    vectors = {}
    for text in dict.fromkeys(texts):
        vector = (centre + generator.normal(size=12)).astype(np.float32)
        vectors[text] = vector / np.linalg.norm(vector)
    return pairs, corpus, vectors


def mine_from(pairs, corpus, vectors, rules: Rules, **options: int):
    """The task of pairs and corpus, and what is mined."""
    task = candidates_of(pairs, corpus)
    anchors = np.stack([vectors[text] for text in task.anchors])
    documents = np.stack([vectors[text] for text in task.documents])
    return task, mine(anchors, documents, task, rules, **options)


def mine_slowly(pairs, corpus, vectors, rules: Rules) -> list[tuple[str, str, str]]:
    """The rules one candidate after the other, as the docstring has them."""
    texts = list(corpus)
    by_anchor: dict[str, list[str]] = {}
    for anchor, positive in pairs:
        texts.append(positive)
        by_anchor.setdefault(anchor, []).append(positive)
    documents = list(dict.fromkeys(texts))
    most = max(len(positives) for positives in by_anchor.values())
    rows = []
    for anchor, positives in by_anchor.items():
        cosine = {text: float(vectors[anchor].astype(float) @ vectors[text]) for text in documents}
        lowest = min(cosine[text] for text in positives)
        ranked = sorted(documents, key=lambda text: -cosine[text])
        kept = []
        for text in ranked[: rules.depth(most)]:
            if text not in positives and meets(rules, cosine[text], lowest):
                kept.append(text)
        chosen = kept[rules.range_min :][: rules.num_negatives]
        for positive in dict.fromkeys(positives):
            for text in chosen:
                rows.append((anchor, positive, text))
    return rows


def meets(rules: Rules, score: float, positive: float) -> bool:
    """Whether a candidate's score meets every rule, given the lowest of the positives."""
    if rules.absolute_margin is not None and positive - score < rules.absolute_margin:
        return False
    relative = rules.relative_margin
    if relative is not None and positive - score < relative * abs(positive):
        return False
    if rules.max_score is not None and score > rules.max_score:
        return False
    return rules.min_score is None or score >= rules.min_score


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


@pytest.mark.parametrize("with_corpus", [True, False])
@pytest.mark.parametrize("rules", RULES)
def test_negatives_equal_a_slow_loop(rules, with_corpus):
    """In several blocks of anchors."""
    pairs, corpus, vectors = random_task(1, with_corpus)
    task, mined = mine_from(pairs, corpus, vectors, rules, block=16)
    expected = mine_slowly(pairs, corpus, vectors, rules)
    assert expected
    for triplet, expected_triplet in zip(triplets(task, mined), expected, strict=True):
        anchor, positive, negative = expected_triplet
        assert (triplet.anchor, triplet.positive) == (anchor, positive)
        # Negatives whose cosines with the anchor nearly tie may be exchanged by rounding.
        difference = (
            vectors[anchor] @ vectors[triplet.negative] - vectors[anchor] @ vectors[negative]
        )
        assert abs(difference) <= 2e-6, triplet.negative


@pytest.mark.parametrize("rules", RULES)
def test_scores_are_the_cosines_of_anchor_and_negative(rules):
    """People choose thresholds by them."""
    pairs, corpus, vectors = random_task(1)
    task, mined = mine_from(pairs, corpus, vectors, rules, block=16)
    for anchor, rows, scores in zip(task.anchors, mined.negatives, mined.scores, strict=True):
        cosines = [vectors[anchor].astype(float) @ vectors[task.documents[row]] for row in rows]
        np.testing.assert_allclose(scores, cosines, atol=2e-6, rtol=0)  # float32


def test_the_number_of_ranks_that_are_searched():
    """As sentence-transformers computes it from its defaults, with 2 positives."""
    assert Rules().depth(2) == 3 + 2 + 2
    assert Rules(num_negatives=4, range_min=5, min_score=0.1).depth(2) == 5 + 4 + 2 + 2
    assert Rules(range_min=1, absolute_margin=0.5).depth(2) == 1 + 30 + 2 + 2
    assert Rules(range_min=1, relative_margin=0.5).depth(2) == 1 + 30 + 2 + 2
    assert Rules(range_min=1, max_score=0.5).depth(2) == 1 + 30 + 2 + 2
    assert Rules(range_max=20, max_score=0.5).depth(2) == 20 + 2


def test_pairs_and_corpus_become_anchors_and_documents():
    """Each text once, in an order that every run has."""
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
    assert task.most_positives == 2


ANGLES = {  # in degrees
    "cat": 0,
    "CAT": 0,
    "snow": 10,
    "kitten": 30,
    "tomcat": 40,
    "  Tomcat": 40,
    "storm": 50,
    "shower": 60,
    "dog": 180,
    "puppy": 190,
    "rain": 270,
}


def at_angles() -> dict[str, np.ndarray]:
    """The vector of each text, on the unit circle."""
    vectors = {}
    for text, degrees in ANGLES.items():
        angle = math.radians(degrees)
        vectors[text] = np.array([math.cos(angle), math.sin(angle)], np.float32)
    return vectors


def test_a_copy_of_anchor_or_positive_is_no_candidate_and_takes_no_rank():
    """The vectors of copies are the closest of all."""
    task, mined = mine_from(PAIRS, CORPUS, at_angles(), Rules(num_negatives=2, range_max=2))
    assert [task.documents[row] for row in mined.negatives[0]] == ["snow", "storm"]
    # The cosines of 10 and of 50 degrees.
    np.testing.assert_allclose(mined.scores[0], [0.98480775, 0.64278761], atol=1.2e-7, rtol=0)


def test_candidates_within_the_margin_are_counted():
    """The lowest positive is at 0.766, the storm at 0.643."""
    rules = Rules(num_negatives=2, absolute_margin=0.1)
    task, mined = mine_from(PAIRS, CORPUS, at_angles(), rules)
    assert [task.documents[row] for row in mined.negatives[0]] == ["storm", "shower"]
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
    task, mined = mine_from([("a", "p")], ["near", "far"], vectors, Rules(relative_margin=0.2))
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
