"""The commands: what they print, write and return, and that none of the learner's work is lost."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lessons import check
from lessons.grader import sandbox
from lessons.grader.pieces import EXERCISES, LESSONS, PIECES, lesson_file, mine, pieces_of
from lessons.grader.result import RUNGS, Progress, Result, function_digests, place
from lessons.grader.stubs import lesson_stubs
from lessons.mistakes import MISTAKES
from minisbert.core import InputError
from tests.parity import ROOT


@pytest.fixture
def work(folder):
    """A folder with lesson 5 written."""
    mine(5).write_text("work")
    return folder


@pytest.fixture
def graded(monkeypatch):
    """Grading without a process: every piece passes except those for which a test enters another
    result.
    """
    wrong: dict[str, Result] = {}
    monkeypatch.setattr(
        sandbox,
        "grade",
        lambda lesson: [wrong.get(p.master, Result(p.master, "passed")) for p in pieces_of(lesson)],
    )
    return wrong


def command(*arguments: str) -> int:
    try:
        check.main(list(arguments))
    except SystemExit as exit:
        return exit.code
    return 0


@pytest.fixture
def shown(capsys):
    """``shown("run", "05", code=1)``: what the command prints, once it has ended with this code."""

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert command(*arguments) == code
        return capsys.readouterr().out

    return run


FAILED = Result(
    "bert.attention",
    "failed",
    [
        (RUNGS["runs"], True, ""),
        (RUNGS["golden"], False, "attention, masked: largest difference 0.6 at (0, 1)"),
    ],
    ["no attention mask"],
    ["pads take part in attention"],
    line=12,
)


def test_start_writes_stubs_and_shows_the_cards_but_never_overwrites(folder, shown, capsys):
    out = shown("start", "05")
    assert "bert.attention                          ★★☆   30 min" in out
    assert PIECES["bert.attention"].what_for in out
    assert "raise NotImplementedError" in mine(5).read_text()
    mine(5).write_text("my work")
    assert command("start", "5") == 0
    assert mine(5).read_text() == "my work"
    assert "stays as it is" in capsys.readouterr().err


def test_run_prints_the_ladder_and_the_mistake(work, graded, shown):
    assert "5 of 5 passed. The lesson is solved." in shown("run", "05")
    graded["bert.attention"] = FAILED
    out = shown("run", "05", code=1)
    assert "  ok    runs, right shape and dtype\n" in out
    assert (
        f"  FAIL  {RUNGS['golden']}: attention, masked: largest difference 0.6 at (0, 1)\n" in out
    )
    assert (
        'exactly the numbers you get when pads take part in attention ("no attention mask").' in out
    )
    assert "4 of 5 passed. Next: bert.attention. A hint: python -m lessons.check hint 05" in out
    graded["bert.attention"] = replace(FAILED, mistakes=[], meanings=[])
    out = shown("run", "05", code=1)
    assert "exactly the numbers" not in out
    assert "score[t, s] = sum over j of q[t, j] * k[s, j] / sqrt(K)" in out, (
        "the formula, whatever the mistake"
    )


def test_a_bare_run_takes_the_next_unsolved_lesson_and_in_the_end_all(folder, graded, shown):
    for lesson in (1, 2):
        mine(lesson).write_text("work")
    assert "Lesson 01" in shown("run")
    assert "Lesson 02" in shown("run")
    with pytest.raises(InputError, match="lesson 03 is not started"):
        check.main(["run"])
    mine(1).write_text("changed")  # the record belongs to another file
    assert "Lesson 01" in shown("run")
    for piece in PIECES.values():
        mine(piece.lesson).write_text("work")
    assert command("all") == 0
    graded["bert.gelu"] = Result("bert.gelu", "failed", [(RUNGS["golden"], False, "wrong")])
    assert f"{len(PIECES) - 1} of {len(PIECES)} passed" in shown("run", code=1)


def test_hints_come_one_by_one_and_end_at_the_master_copy(folder, shown):
    hints = PIECES["bert.attention"].hints
    for count in range(1, len(hints) + 2):
        out = shown("hint", "05")
        assert [hint for hint in hints if hint in out] == list(hints[:count])
    lines = (ROOT / "minisbert" / "core" / "bert.py").read_text(encoding="utf-8").splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.startswith("def attention"))
    assert f"The master copy: minisbert/core/bert.py, line {line}" in out


def test_hints_for_the_next_unsolved_piece_or_a_named_one(work, graded, shown):
    graded["bert.Attention.merge"] = Result("bert.Attention.merge", "unwritten")
    command("run", "5")
    assert shown("hint", "5").startswith("bert.Attention.merge, 1 of 3")
    assert shown("hint", "5", "split").startswith("bert.Attention.split, 1 of 3")
    graded["bert.attention"] = Result(
        "bert.attention", "failed", [(RUNGS["traps"], False, "values at the pads")]
    )
    command("run", "5")
    assert "  1. A pad must get a share of exactly 0" in shown(
        "hint", "5", "attention"
    )  # it fits what failed
    assert shown("hint", "15", "CrossHead.forward").startswith("heads.CrossHead.forward, 1 of")
    for lesson, name, says in (("5", "gelu", "gelu"), ("15", "forward", "3 pieces")):
        with pytest.raises(InputError, match=says):
            check.main(["hint", lesson, name])


def test_list(work, graded, shown):
    graded["bert.attention"] = FAILED
    command("run", "5")
    command("hint", "5")
    rows = {line.split()[0]: line for line in shown("list").splitlines() if line.strip()}
    assert rows["bert.attention"].endswith("failed                1 of 6 hints")
    assert rows["bert.Attention.split"].endswith("passed")
    assert rows["bert.gelu"].endswith("not started")
    assert rows["4"] == f"4 of {len(PIECES)} passed"
    mine(5).write_text("other work")
    assert "changed, was passed" in shown("list")


def read(path: Path) -> tuple[dict, dict[str, dict]]:
    """A file of results, and its rows by piece."""
    found = json.loads(path.read_text())
    return found, {row["piece"]: row for row in found["pieces"]}


def test_all_writes_what_a_teacher_collects_and_leaves_the_progress_alone(folder, graded, shown):
    mine(5).write_text(
        "def attention(a):\n    return a\n\nclass Attention:\n    def split(self, x):\n        "
        "return x\n"
    )
    (folder / "progress.json").write_text("not JSON")
    graded["bert.attention"] = FAILED
    assert "4 of " in shown("all", "--json", str(folder / "ada.json"), code=1)
    assert (folder / "progress.json").read_text() == "not JSON"
    found, rows = read(folder / "ada.json")
    assert (found["passed"], found["of"]) == (4, len(PIECES))
    attention, split = rows["bert.attention"], rows["bert.Attention.split"]
    assert (attention["mistakes"], attention["rung"]) == (["no attention mask"], RUNGS["golden"])
    assert (attention["rungs_passed"], attention["difficulty"]) == ([RUNGS["runs"]], 2)
    assert (rows["bert.gelu"]["status"], rows["bert.gelu"]["seen"]) == (
        "unwritten",
        "lesson 06 is not started",
    )
    assert attention["function_sha256"] != split["function_sha256"]
    assert rows["bert.Attention.merge"]["function_sha256"] is None


def test_the_hash_of_a_function_is_of_its_syntax_tree(folder):
    hashes = []
    for text in (
        "def gelu(x):\n    return x + 1",
        "# mine\ndef gelu( x ):\n    'It adds.'\n\n    return (x+1)  # so",
    ):
        mine(6).write_text(text)
        hashes.append(function_digests(6)["bert.gelu"])
    assert hashes[0] == hashes[1]
    mine(6).write_text("def gelu(y):\n    return y + 1")
    assert function_digests(6)["bert.gelu"] != hashes[0]
    mine(6).write_text("def gelu(x):")
    assert "bert.gelu" not in function_digests(6)


@pytest.mark.parametrize("form", ["minisbert", "gradescope"])
def test_a_folder_with_nothing_to_grade_is_an_error(folder, graded, monkeypatch, form):
    monkeypatch.setattr("lessons.grader.pieces.MINE", folder / "ada")
    for says in ("does not exist", "has no lesson_*.py"):
        with pytest.raises(InputError, match=re.escape(says)):
            check.main(["all", "--json", str(folder / "ada.json"), "--format", form])
        found = json.loads((folder / "ada.json").read_text())
        assert says in (found["error"] if form == "minisbert" else found["output"])
        (folder / "ada").mkdir(exist_ok=True)


def test_results_are_written_lesson_by_lesson_and_one_that_cannot_be_graded_costs_no_other(
    work, graded, monkeypatch
):
    grade, trouble = sandbox.grade, RuntimeError("the grader's process ended")

    def troubled(lesson):
        if lesson == 5:
            raise trouble
        return grade(lesson)

    monkeypatch.setattr(sandbox, "grade", troubled)
    for lesson in (1, 6):
        mine(lesson).write_text("work")
    assert command("all", "--json", str(work / "ada.json")) == 1
    found, rows = read(work / "ada.json")
    assert found["passed"] == len(pieces_of(1)) + len(pieces_of(6))
    assert {row["seen"] for row in rows.values() if row["lesson"] == 5} == {
        "the grader's process ended"
    }
    trouble = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        check.main(["all", "--json", str(work / "bob.json")])
    _, rows = read(work / "bob.json")
    assert {row["lesson"] for row in rows.values()} == {1, 2, 3, 4}
    assert {row["status"] for row in rows.values() if row["lesson"] == 1} == {"passed"}


def test_results_in_gradescopes_format(work, graded):
    graded["bert.attention"] = FAILED
    command("all", "--json", str(work / "results.json"), "--format", "gradescope")
    tests = {
        test["name"]: test for test in json.loads((work / "results.json").read_text())["tests"]
    }
    assert len(tests) == len(PIECES)
    assert (
        tests["05 bert.Attention.split"].items()
        >= {"score": 1, "max_score": 1, "status": "passed"}.items()
    )
    wrong = tests["05 bert.attention"]
    assert (wrong["score"], wrong["max_score"], wrong["status"]) == (0, 2, "failed")
    assert "Known mistake: no attention mask" in wrong["output"]
    assert "attention, masked: largest difference" in wrong["output"]
    with pytest.raises(InputError, match="needs --json"):
        check.main(["all", "--format", "gradescope"])


def test_a_class_at_a_glance(work, graded, shown):
    results = work / "results"
    results.mkdir()
    with pytest.raises(InputError, match=re.escape("has no *.json")):
        check.main(["class", str(results)])
    for name in ("bob", "ada", "cem"):
        command("all", "--json", str(results / f"{name}.json"))
        graded["bert.attention"] = FAILED
    lines = shown("class", str(results)).splitlines()
    assert lines[0].startswith("student  passed  01 02  03 04  05 ")
    assert lines[1].startswith(f"ada        4/{len(PIECES)}  .  ... .  ... FPPPP ...")
    assert lines[2].startswith(f"bob        5/{len(PIECES)}  .  ... .  ... PPPPP ...")
    assert "    2  no attention mask, bert.attention" in lines
    assert f"    2  bert.attention, {RUNGS['golden']}" in lines


def test_damaged_files_cost_no_other_and_the_table_counts_for_itself(folder, graded, capsys):
    """The package's own code is marked, and what a file says of its own sum is not believed."""
    mine(6).write_text((ROOT / "minisbert" / "core" / "bert.py").read_text())
    results = folder / "results"
    results.mkdir()
    command("all", "--json", str(results / "ada.json"))
    found, _ = read(results / "ada.json")
    (results / "ada.json").write_text(json.dumps(found | {"passed": 99, "of": 53}))
    for text in (
        "[]",
        "{}",
        '{"pieces": 3}',
        '{"pieces": [3]}',
        '{"pieces": [{"piece": "bert.gelu"}]}',
        "\\0",
    ):
        (results / "bob.json").write_text(text)
        capsys.readouterr()
        assert command("class", str(results)) == 0
        out, err = capsys.readouterr()
        assert out.splitlines()[1].startswith(
            f"ada        7/{len(PIECES)}  .  ... .  ... ..... MMMMMPP "
        )
        assert out.splitlines()[2].startswith(f"bob        0/{len(PIECES)} ")
        assert "this file cannot be read" in out
        assert "bob.json" in err


@pytest.mark.slow
def test_many_students_each_with_a_limit(tmp_path, shown):
    """A right answer, a folder with nothing in it, and a loop that the limit ends."""
    right = "def mse_loss(scores, target):\n    return (scores - target).pow(2).mean()\n"
    for name, text in (("ada", right), ("bob", ""), ("cem", "while True:\n    pass\n")):
        (tmp_path / name).mkdir()
        if text:
            (tmp_path / name / "lesson_11.py").write_text(text)
    ada, bob, cem = (str(tmp_path / name) for name in ("ada", "bob", "cem"))
    lines = shown(
        "grade", ada, bob, "--out", str(tmp_path / "out"), "--jobs", "2", code=1
    ).splitlines()
    assert lines[0] == f"ada: wrote {tmp_path}/out/ada.json"
    assert "has no lesson_*.py" in lines[1]
    rows = json.loads((tmp_path / "out" / "ada.json").read_text())["pieces"]
    assert [row["piece"] for row in rows if row["status"] == "passed"] == ["losses.mse_loss"]
    stopped = shown("grade", cem, "--out", str(tmp_path / "out"), "--limit", "3", code=1)
    assert stopped.startswith("cem: stopped after 3 seconds")
    with pytest.raises(InputError, match="the same name"):
        check.main(["grade", ada, ada, "--out", str(tmp_path / "out")])


def test_no_such_lesson_and_one_without_pieces(folder, capsys):
    for number in (str(max(LESSONS) + 1), "x", "-1"):
        assert command("run", number) == 2
        assert f"00 to {max(LESSONS)}" in capsys.readouterr().err or number == "-1"
    for name in ("start", "hint"):
        with pytest.raises(InputError, match="lesson 14"):
            check.main([name, "14"])


def test_every_pointer_leads_to_the_formula_and_to_the_lessons_own_mistake():
    for piece in PIECES.values():
        lines = lesson_file(piece.lesson).read_text(encoding="utf-8").splitlines()
        names = [
            name
            for name, mistake in MISTAKES.items()
            if mistake.target in (piece.master, *piece.parts)
        ]
        for name in ["", *names]:
            text = place(piece, name)
            found = re.fullmatch(
                r'lessons/\w+\.py, line (\d+), "[^"]+": (.+?)( \(line (\d+) .+\))?', text
            )
            assert found, text
            parts = [PIECES[part] for part in piece.parts if part in PIECES]
            read = [piece.printed]
            for each in (piece, *parts):
                read += [line for _, line in each.reads]
            assert any(line in lines[int(found[1]) - 1] for line in read)
            assert any(" ".join(line.split()) in found[2] for line in read)
            assert not found[4] or f'"{name}"' in lines[int(found[4]) - 1]


@pytest.mark.parametrize(
    ("master", "mistake", "seen", "line"),
    [
        ("bert.layer_norm", "unbiased variance", "", "variance = (1/D)"),
        ("bert.Embeddings.forward", "unbiased variance", "", "variance = (1/D)"),
        ("bert.attention", "no attention dropout", "", "In training, dropout"),
        ("bert.Attention.forward", "dropout alive in eval", "", "rate self.dropout in training"),
        ("backward.dense_gelu_backward", "GELU's density left out", "", "P(z) + z p(z)"),
        ("losses.softmax_cross_entropy_loss", "exp overflows", "", "a log of a sum"),
        ("loop.fit", "gradients not zeroed", "", "gradients of the optimizer's parameters  =  0"),
        ("loop.fit", "micro-batches weighted equally", "", "len(part) / len(batch)"),
        ("loop.fit", "", "clipped to 5: the weight after each step: 1", "norm  =  the length"),
        ("paired.paired_gain", "deviation by n", "", "(n - 1)"),
        ("patience.train_with_patience", "as good counts as better", "", "stop     as soon"),
    ],
)
def test_a_line_is_read_again_that_says_what_went_wrong(master, mistake, seen, line):
    assert line in line_read_again(place(PIECES[master], mistake, seen))


def line_read_again(text: str) -> str:
    """The whole line of the lesson that a pointer has."""
    file, number = re.match(r"(lessons/\w+\.py), line (\d+)", text).groups()
    return (ROOT / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]


def test_every_line_of_a_card_stands_once_on_its_page():
    for piece in PIECES.values():
        page = lesson_file(piece.lesson).read_text(encoding="utf-8")
        for _, line in piece.reads:
            assert page.count(line) == 1, (piece.master, line)


def test_the_command_as_typed(tmp_path):
    """A real process that starts a real process: exit codes, and nothing but results on stdout."""
    environment = {"PATH": "/usr/bin:/bin", "MINISBERT_MINE": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        words = [sys.executable, "-m", "lessons.check", *arguments]
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)

    stub = 'raise NotImplementedError("losses.mse_loss")'
    text = lesson_stubs(11).replace(stub, "return ((scores - target) ** 2).sum()")
    (tmp_path / "lesson_11.py").write_text(text)
    done = run("run", "11")
    assert done.returncode == 1, done.stderr
    assert '("summed, not averaged")' in done.stdout
    assert "loop.linear_schedule                    ★☆☆  unwritten" in done.stdout


def test_an_answer_comes_after_its_hint_and_a_graded_exercise_has_none(folder, shown):
    exercise = EXERCISES["05.2"]
    first = shown("answer", "05", "2")
    assert exercise["hint"] in first
    assert exercise["answer"] not in first
    assert exercise["answer"] in shown("answer", "05", "2")
    assert Progress().hints == {"05.2": 1}
    with pytest.raises(InputError, match="exercises 1, 2, 3"):
        check.main(["answer", "05", "4"])
