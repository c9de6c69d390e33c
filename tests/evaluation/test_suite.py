"""The STS suite on files of the same form as the published ones, and on those where they are."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from minisbert.commands.evaluate import main
from minisbert.core import InputError
from minisbert.data.rows import ScoredPair
from minisbert.evaluation.evaluators import EmbeddingSimilarityEvaluator
from minisbert.evaluation.suite import (
    AVERAGED,
    SICK_FILES,
    YEARS,
    Task,
    average,
    evaluate_suite,
    load_suite,
    load_task,
    read_pairs,
    task_scores,
)
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import assets
from tests.toys import NOUNS

# -------------------------------------------------------------------------------------------
# readers


def test_blank_gold_lines_are_unscored_and_not_zero(tmp_path):
    (tmp_path / "input").write_text("a\tb\nc\td\ne\tf\ng\th\n")
    (tmp_path / "gold").write_text("5\n\n 0.25\n\n")
    assert read_pairs(tmp_path / "input", gold=tmp_path / "gold") == [
        ScoredPair("a", "b", 5.0),
        ScoredPair("e", "f", 0.25),
    ]


def test_the_lines_of_a_set(tmp_path):
    lines = {
        'the "cat\ta dog" sits': ('the "cat', 'a dog" sits'),  # no quoting
        "one\u2028line\tone\x85line\x0cmore": (
            "one\u2028line",
            "one\x85line\x0cmore",
        ),  # split at \n only
        "a\tb\tfrom here\tfrom there": ("a", "b"),  # STS16's sources
        " a \t b \r": ("a", "b"),
    }
    (tmp_path / "input").write_bytes("".join(f"{line}\n" for line in lines).encode())
    (tmp_path / "gold").write_bytes(b"1.5\r\n2\n3\n4\n")
    expected = [
        ScoredPair(*texts, score)
        for texts, score in zip(lines.values(), (1.5, 2, 3, 4), strict=True)
    ]
    assert read_pairs(tmp_path / "input", gold=tmp_path / "gold") == expected


HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sick_with_either_line_end(tmp_path, end):
    rows = [HEADER, "4\tA man is here\tA woman's there\t3.6\tNEUTRAL", "9\ta\tb\t1\tCONTRADICTION"]
    (tmp_path / "sick").write_bytes("".join(row + end for row in rows).encode())
    expected = [ScoredPair("A man is here", "A woman's there", 3.6), ScoredPair("a", "b", 1)]
    assert read_pairs(tmp_path / "sick", (3, 1, 2), header=1) == expected


@pytest.mark.parametrize(
    ("sentences", "gold", "message"),
    [
        ("a\tb\nc\td\n", "1\n", "input: .*longer than"),
        ("a\tb\nc\n", "1\n2\n", "gold, line 2: "),
        ("a\tb\n", "6\n", "gold, line 1: the score 6 is not on the scale of 0 to 5"),
    ],
)
def test_bad_files_are_named(tmp_path, sentences, gold, message):
    (tmp_path / "input").write_text(sentences)
    (tmp_path / "gold").write_text(gold)
    with pytest.raises(InputError, match=message):
        read_pairs(tmp_path / "input", gold=tmp_path / "gold")


# --------------------------------------------------------------------------------------------
# scores


def task(*sets: tuple[list[float], list[float]]) -> tuple[Task, np.ndarray]:
    pairs = {
        f"set {i}": [ScoredPair("a", "b", score) for score in scores]
        for i, (scores, _) in enumerate(sets)
    }
    return Task("STS12", "all pairs", pairs), np.array(
        [cosine for _, cosines in sets for cosine in cosines]
    )


def test_all_mean_and_weighted_mean_by_hand():
    found = task_scores(
        *task(([1, 2], [0.1, 0.2]), ([1.5, 2.5, 3.5, 4.5], [0.6, 0.5, 0.7, 0.8])), "dot"
    )
    assert {name: one["spearman"] for name, one in found["sets"].items()} == pytest.approx(
        {"set 0": 1, "set 1": 0.8}
    )
    assert (found["pairs"], found["sets"]["set 1"]["pairs"]) == (6, 4)
    assert found["mean"] == pytest.approx((1 + 0.8) / 2, abs=1e-12)
    assert found["weighted_mean"] == pytest.approx((2 * 1 + 4 * 0.8) / 6, abs=1e-12)
    # ranks of the scores 1 3 2 4 5 6, of the cosines 1 2 4 3 5 6: squared differences 0 + 1 + 4 + 1
    assert found["spearman"] == pytest.approx(1 - 6 * 6 / (6 * 35), abs=1e-12)


def test_a_set_without_a_correlation_is_named():
    with pytest.raises(InputError, match=r"STS12: dot similarity .* different"):
        task_scores(*task(([1, 1], [0.1, 0.2])), "dot")


def test_the_average_is_of_rounded_scores():
    """Each score ends in .xx4, which rounding cuts off; then sup-simcse-bert-base-uncased in
    SimCSE's README.
    """
    lines = [{"task": name, "spearman": 0.70004 + i / 1000} for i, name in enumerate(AVERAGED)]
    assert average([*lines, {"task": "SICK-R, all", "spearman": 0.1}]) == pytest.approx(
        70.3, abs=1e-9
    )  # not 70.304
    assert average(lines[1:]) is None
    scores = (75.30, 84.67, 80.19, 85.40, 80.82, 84.26, 80.39)
    published = [
        {"task": name, "spearman": score / 100}
        for name, score in zip(AVERAGED, scores, strict=True)
    ]
    assert f"{average(published):.2f}" == "81.58"


# ------------------------------------------------------------------------------- a folder of every
# task


def toy_pairs(seed: int, count: int = 5) -> list[tuple[str, str, str]]:
    """Scores, all different, and two sentences; a letter that the vocabulary lacks makes each pair
    the only one.
    """
    words = np.random.default_rng(seed).choice(NOUNS, size=(count, 2))
    scores = [f"{0.5 + 0.75 * i:.2f}" for i in range(count)]
    return [
        (score, f"the {a} is small {chr(0x4E00 + 10 * seed + i)}", f"a {b}")
        for i, (score, (a, b)) in enumerate(zip(scores, words.tolist(), strict=True))
    ]


def write_suite(data: Path) -> dict[str, list[tuple[str, str, str]]]:
    """Files in the published form under ``data``; the scored pairs by task, of SICK and STS-B those
    of the test split.

    Every set of the years begins with a pair that was not scored, and SICK's test file has carriage
    returns.
    """
    written: dict[str, list[tuple[str, str, str]]] = {name: [] for name in AVERAGED}
    for year, sets in YEARS.items():
        folder = data / year.lower()
        folder.mkdir(parents=True)
        for i, name in enumerate(sets):
            pairs = toy_pairs(seed=int(year[3:]) * 10 + i)
            rows = [("", "the moon", "the sun"), *pairs]
            if year == "STS16":
                (folder / f"{name}.test.tsv").write_text(
                    "".join("\t".join(row) + "\n" for row in rows)
                )
            else:
                (folder / f"STS.input.{name}.txt").write_text(
                    "".join(f"{a}\t{b}\n" for _, a, b in rows)
                )
                (folder / f"STS.gs.{name}.txt").write_text(
                    "".join(f"{score}\n" for score, _, _ in rows)
                )
            written[year] += pairs
    (data / "sick").mkdir()
    for i, (split, file) in enumerate(SICK_FILES.items()):
        pairs = toy_pairs(seed=i)
        end = "\r\n" if split == "test" else "\n"
        rows = [
            HEADER,
            *(f"{n}\t{a}\t{b}\t{score}\tNEUTRAL" for n, (score, a, b) in enumerate(pairs)),
        ]
        (data / "sick" / file).write_bytes("".join(row + end for row in rows).encode())
        written["SICK-R"] += pairs if split == "test" else []
    (data / "stsb").mkdir()
    for split in ("train", "dev", "test"):
        rows = (
            toy_pairs(seed=99) if split == "test" else [*toy_pairs(seed=98), *written["STS13"][:4]]
        )
        lines = [
            f"main\tfile\t2012\t{n}\t{score}\t{a}\t{b}\n" for n, (score, a, b) in enumerate(rows)
        ]
        (data / "stsb" / f"sts-{split}.csv").write_text("".join(lines))
    written["STS-B"] = toy_pairs(seed=99)
    return written


@pytest.fixture
def suite(tmp_path, monkeypatch) -> dict[str, list[tuple[str, str, str]]]:
    """``write_suite`` in a home of its own, and a manifest of its hashes."""
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path))
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    written, entries = write_suite(tmp_path / "data"), []
    for folder in sorted((tmp_path / "data").iterdir()):
        files = ", ".join(
            f'{{ name = "{path.name}", sha256 = "{hashlib.sha256(path.read_bytes()).hexdigest()}" '
            f"}}"
            for path in sorted(folder.iterdir())
        )
        rest = "".join(f'{key} = "-"\n' for key in ("about", "licence", "upstream"))
        entries.append(f'[{folder.name}]\nkind = "data"\n{rest}sources = []\nfiles = [{files}]\n')
    (tmp_path / "assets.toml").write_text("\n".join(entries))
    monkeypatch.setattr(assets, "ASSETS_TOML", tmp_path / "assets.toml")
    return written


def test_every_task_is_read(suite):
    tasks, missing = load_suite()
    assert [task.name for task in tasks] == [*AVERAGED, "SICK-R, all"]
    assert missing == {}
    for one in tasks[:-1]:
        assert [(f"{p.score:.2f}", p.sentence1, p.sentence2) for p in one.pairs] == suite[one.name]
    assert [len(one.sets) for one in tasks] == [5, 3, 6, 5, 5, 1, 1, 3]
    assert tasks[-1].pairs[:5] == tasks[-2].pairs
    assert len(tasks[-1].pairs) == 15


def test_a_task_that_is_nowhere_is_left_out(suite, tmp_path, tiny, capsys):
    shutil.rmtree(tmp_path / "data" / "sts14")
    shutil.rmtree(tmp_path / "data" / "sick")
    tasks, missing = load_suite()
    assert [task.name for task in tasks] == ["STS12", "STS13", "STS15", "STS16", "STS-B"]
    assert list(missing) == ["STS14", "SICK-R"]
    assert "MINISBERT_OFFLINE forbids fetching it; put STS.gs.OnWN.txt" in missing["STS14"]
    main(["--model", str(tiny), "--suite", "sts"])
    captured = capsys.readouterr()
    assert "SICK-R is left out: sick is missing" in captured.err
    assert captured.out.splitlines()[-1].split(maxsplit=2) == [
        "average",
        "-",
        "needs STS14, SICK-R too",
    ]
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(
        InputError, match=r"the suite's data is missing: minisbert assets fetch sts12"
    ):
        main(["--model", str(tiny), "--suite", "sts"])


def test_a_changed_or_missing_file_is_named(suite, tmp_path):
    path = tmp_path / "data" / "sts12" / "STS.gs.MSRvid.txt"
    path.write_text("0.60\n")
    with pytest.raises(
        InputError, match=f"{path} has sha256 .*; fetch it again: minisbert assets fetch sts12"
    ):
        load_suite()
    path.unlink()
    with pytest.raises(InputError, match=f"{path} is missing; fetch it again"):
        load_suite()


def test_the_command_prints_every_task(suite, tiny, capsys):
    model = str(tiny)
    main(["--model", model, "--suite", "sts", "--json"])
    found = json.loads(capsys.readouterr().out)
    encoder = SentenceEncoder.load(tiny)
    lines = {line["task"]: line for line in found["tasks"]}
    for name in ("STS13", "STS-B", "SICK-R"):
        scores, first, second = zip(*suite[name], strict=True)
        expected = EmbeddingSimilarityEvaluator(first, second, [*map(float, scores)])(encoder)
        assert lines[name]["spearman"] == pytest.approx(expected["spearman_cosine"], abs=1e-9)
    assert lines["STS13"]["pairs"] == 15
    assert found["average"] == pytest.approx(
        np.mean([round(100 * lines[name]["spearman"], 2) for name in AVERAGED])
    )
    main(["--model", model, "--suite", "sts"])
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("STS13"))
    assert row.split("  ")[-1] == "all pairs of 3 sets"
    means = [f"{100 * lines['STS13'][name]:.2f}" for name in ("spearman", "mean", "weighted_mean")]
    assert row.split()[1:5] == ["15", *means]
    assert f"{found['average']:.2f}" in out.splitlines()[-1]


# --------------------------------------------------------------------------------- the published
# files


PUBLISHED = {  # pairs, and MTEB's score of all-MiniLM-L6-v2, all pairs of a task pooled
    "STS12": (3108, 72.37),
    "STS13": (1500, 80.60),
    "STS14": (3750, 75.59),
    "STS15": (3000, 85.39),
    "STS16": (1186, 78.99),
    "SICK-R, all": (9927, 77.58),
}


@pytest.mark.weights
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_real_model_scores_as_published(minilm, name):
    source = {"SICK-R, all": "sick"}.get(name, name.lower())
    if assets.asset(source).state() != "complete":
        pytest.skip(f"{source} is not there: minisbert assets fetch {source}")
    (one,) = (
        task
        for task in load_task(name.partition(",")[0], assets.asset(source).folder)
        if task.name == name
    )
    (found,) = evaluate_suite(SentenceEncoder.load(minilm), [one])
    pairs, score = PUBLISHED[name]
    assert found["pairs"] == pairs
    assert 100 * found["spearman"] == pytest.approx(score, abs=0.01)
