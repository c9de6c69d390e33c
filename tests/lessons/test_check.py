"""The commands: what they print, write and return, and that none of the learner's work is lost."""

import json
import re
import subprocess
import sys

import pytest

from lessons import check
from lessons.grader import sandbox
from lessons.grader.pieces import EXERCISES, LESSONS, PIECES, lesson_file, mine, pieces_of
from lessons.grader.result import MOVED, RUNGS, Progress, Result, file_digest, function_digests, place
from lessons.mistakes import MISTAKES
from minisbert.core import InputError
from tests.parity import ROOT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for module in ("grader.pieces", "grader.result", "check"):
        monkeypatch.setattr(f"lessons.{module}.MINE", tmp_path)
    monkeypatch.setattr(Progress.__init__, "__defaults__", (tmp_path,))
    return tmp_path


@pytest.fixture
def graded(monkeypatch):
    """Grading without a process: every piece passes except those for which a test enters another result."""
    wrong: dict[str, Result] = {}
    monkeypatch.setattr(
        sandbox, "grade", lambda lesson: [wrong.get(p.master, Result(p.master, "passed")) for p in pieces_of(lesson)]
    )
    return wrong


def command(*arguments: str) -> int:
    try:
        check.main(list(arguments))
    except SystemExit as exit:
        return exit.code
    return 0


FAILED = Result(
    "bert.attention",
    "failed",
    [(RUNGS["runs"], True, ""), (RUNGS["golden"], False, "attention, masked: largest difference 0.6 at (0, 1)")],
    ["no attention mask"],
    line=12,
)


def test_start_writes_stubs_and_shows_the_cards(folder, capsys):
    assert command("start", "05") == 0
    out = capsys.readouterr().out
    assert "bert.attention                          ★★☆   30 min" in out
    assert PIECES["bert.attention"].what_for in out
    assert "raise NotImplementedError" in mine(5).read_text()


def test_start_never_overwrites(folder, capsys):
    mine(5).write_text("my work")
    assert command("start", "5") == 0
    assert mine(5).read_text() == "my work"
    assert "stays as it is" in capsys.readouterr().err


def test_reset_keeps_the_old_file_under_a_new_name_each_time(folder, graded):
    for text in ("first", "second"):
        mine(5).write_text(text)
        command("run", "5")
        assert command("reset", "05") == 0
        assert Progress().state(PIECES["bert.attention"]) == "not run"
    assert (folder / "lesson_05_before_1.py").read_text() == "first"
    assert (folder / "lesson_05_before_2.py").read_text() == "second"
    assert "raise NotImplementedError" in mine(5).read_text()


def test_run_prints_the_ladder_and_the_mistake(folder, graded, capsys):
    mine(5).write_text("work")
    graded["bert.attention"] = FAILED
    assert command("run", "05") == 1
    out = capsys.readouterr().out
    assert "  ok    runs, right shape and dtype\n" in out
    assert "  FAIL  golden values, float64: attention, masked: largest difference 0.6 at (0, 1)\n" in out
    assert 'exactly the numbers you get when pads take part in attention ("no attention mask").' in out
    assert "3 of 4 passed. Next: bert.attention. A hint: python -m lessons.check hint 05" in out


def test_run_of_a_solved_lesson(folder, graded, capsys):
    mine(5).write_text("work")
    assert command("run", "05") == 0
    assert "4 of 4 passed. The lesson is solved." in capsys.readouterr().out


def test_a_bare_run_takes_the_next_unsolved_lesson(folder, graded, capsys):
    for lesson in (1, 2):
        mine(lesson).write_text("work")
    assert command("run") == 0
    assert "Lesson 01" in capsys.readouterr().out
    assert command("run") == 0
    assert "Lesson 02" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"lesson 03 is not started: python -m lessons\.check start 03"):
        check.main(["run"])
    mine(1).write_text("changed")  # the record belongs to another file
    assert command("run") == 0
    assert "Lesson 01" in capsys.readouterr().out


def test_a_bare_run_checks_all_again_if_all_is_solved(folder, graded, capsys):
    for piece in PIECES.values():
        mine(piece.lesson).write_text("work")
    assert command("all") == 0
    graded["bert.gelu"] = Result("bert.gelu", "failed", [(RUNGS["golden"], False, "wrong")])
    capsys.readouterr()
    assert command("run") == 1
    assert f"{len(PIECES) - 1} of {len(PIECES)} passed" in capsys.readouterr().out


def test_hints_come_one_by_one_and_end_at_the_master_copy(folder, capsys):
    hints = PIECES["bert.attention"].hints
    for count in range(1, len(hints) + 2):
        assert command("hint", "05") == 0
        out = capsys.readouterr().out
        shown = [hint for hint in hints if hint in out]
        assert shown == list(hints[:count])
    lines = (ROOT / "minisbert" / "core" / "bert.py").read_text(encoding="utf-8").splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.startswith("def attention"))
    assert f"The master copy: minisbert/core/bert.py, line {line}" in out


def test_hints_for_the_next_unsolved_piece_or_a_named_one(folder, graded, capsys):
    mine(5).write_text("work")
    graded["bert.Attention.merge"] = Result("bert.Attention.merge", "unwritten")
    command("run", "5")
    capsys.readouterr()
    command("hint", "5")
    assert capsys.readouterr().out.startswith("bert.Attention.merge, 1 of 3")
    command("hint", "5", "split")
    assert capsys.readouterr().out.startswith("bert.Attention.split, 1 of 3")
    with pytest.raises(InputError, match=r"has no piece gelu: bert\.attention, "):
        check.main(["hint", "5", "gelu"])


def test_list(folder, graded, capsys):
    mine(5).write_text("work")
    graded["bert.attention"] = FAILED
    command("run", "5")
    command("hint", "5")
    capsys.readouterr()
    assert command("list") == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert rows["bert.attention"].endswith("failed                1 of 6 hints")
    assert rows["bert.Attention.split"].endswith("passed")
    assert rows["bert.gelu"].endswith("not started")
    assert rows["3"] == f"3 of {len(PIECES)} passed"
    mine(5).write_text("other work")
    command("list")
    assert "changed, was passed" in capsys.readouterr().out


def test_all_writes_what_a_teacher_collects(folder, graded, capsys):
    mine(5).write_text("work")
    graded["bert.attention"] = FAILED
    assert command("all", "--json", str(folder / "ada.json")) == 1
    found = json.loads((folder / "ada.json").read_text())
    assert (found["passed"], found["of"]) == (3, len(PIECES))
    rows = {row["piece"]: row for row in found["pieces"]}
    assert rows["bert.attention"]["mistakes"] == ["no attention mask"]
    assert rows["bert.attention"]["rung"] == RUNGS["golden"]
    assert rows["bert.gelu"]["status"] == "unwritten"
    assert rows["bert.gelu"]["seen"] == "lesson 06 is not started"
    assert len(rows["bert.Attention.split"]["file_sha256"]) == 64
    assert "3 of " in capsys.readouterr().out


def test_results_say_how_far_each_piece_came_and_what_was_graded(folder, graded):
    mine(5).write_text(
        "def attention(a):\n    return a\n\nclass Attention:\n    def split(self, x):\n        return x\n"
    )
    graded["bert.attention"] = FAILED
    command("all", "--json", str(folder / "ada.json"))
    found = json.loads((folder / "ada.json").read_text())
    assert re.fullmatch("[0-9a-f]{12}", found["grader"])
    rows = {row["piece"]: row for row in found["pieces"]}
    assert rows["bert.attention"]["rungs_passed"] == [RUNGS["runs"]]
    assert rows["bert.attention"]["difficulty"] == 2
    assert rows["bert.Attention.merge"]["function_sha256"] is None
    assert len({rows[f"bert.{name}"]["function_sha256"] for name in ("attention", "Attention.split")}) == 2


def test_the_hash_of_a_function_is_of_its_syntax_tree(folder):
    hashes = []
    for text in (
        "def gelu(x):\n    return x + 1",
        "# mine\ndef gelu( x ):\n    'It adds.'\n\n    return (x+1)  # so",
        "def gelu(y):\n    return y + 1",
        "def gelu(x):",
    ):
        mine(6).write_text(text)
        hashes.append(function_digests(6).get("bert.gelu"))
    assert hashes[0] == hashes[1] != hashes[2]
    assert hashes[3] is None


def test_results_for_a_teacher_leave_the_progress_alone(folder, graded):
    mine(5).write_text("work")
    (folder / "progress.json").write_text("not JSON")
    assert command("all", "--json", str(folder / "ada.json")) == 1
    assert (folder / "progress.json").read_text() == "not JSON"


@pytest.mark.parametrize("form", ["minisbert", "gradescope"])
@pytest.mark.parametrize(("made", "says"), [(True, "has no lesson_*.py"), (False, "does not exist")])
def test_a_folder_with_nothing_to_grade_is_an_error(folder, graded, monkeypatch, made, says, form):
    monkeypatch.setattr("lessons.grader.pieces.MINE", folder / "ada")
    if made:
        (folder / "ada").mkdir()
    with pytest.raises(InputError, match=re.escape(says)):
        check.main(["all", "--json", str(folder / "ada.json"), "--format", form])
    found = json.loads((folder / "ada.json").read_text())
    assert says in (found["error"] if form == "minisbert" else found["output"])
    assert (folder / "ada").exists() == made


def test_a_lesson_that_cannot_be_graded_costs_no_other(folder, monkeypatch):
    def grade(lesson):
        if lesson == 5:
            raise RuntimeError("the grader's process ended")
        return [Result(piece.master, "passed") for piece in pieces_of(lesson)]

    monkeypatch.setattr(sandbox, "grade", grade)
    mine(5).write_text("work")
    mine(6).write_text("work")
    assert command("all", "--json", str(folder / "ada.json")) == 1
    found = json.loads((folder / "ada.json").read_text())
    assert found["passed"] == len(pieces_of(6))
    assert {row["seen"] for row in found["pieces"] if row["lesson"] == 5} == {"the grader's process ended"}


def test_results_in_gradescopes_format(folder, graded):
    mine(5).write_text("work")
    graded["bert.attention"] = FAILED
    command("all", "--json", str(folder / "results.json"), "--format", "gradescope")
    found = json.loads((folder / "results.json").read_text())
    tests = {test["name"]: test for test in found["tests"]}
    assert len(tests) == len(PIECES)
    assert tests["05 bert.Attention.split"].items() >= {"score": 1, "max_score": 1, "status": "passed"}.items()
    wrong = tests["05 bert.attention"]
    assert (wrong["score"], wrong["max_score"], wrong["status"]) == (0, 2, "failed")
    assert "Known mistake: no attention mask" in wrong["output"]
    assert "attention, masked: largest difference" in wrong["output"]
    with pytest.raises(InputError, match="needs --json"):
        check.main(["all", "--format", "gradescope"])


def test_a_class_at_a_glance(folder, graded, capsys):
    mine(5).write_text("work")
    results = folder / "results"
    results.mkdir()
    command("all", "--json", str(results / "bob.json"))
    for name in ("ada", "cem"):
        graded["bert.attention"] = FAILED
        command("all", "--json", str(results / f"{name}.json"))
    capsys.readouterr()
    assert command("class", str(results)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("student  passed  01 02 03 04 05 ")
    assert lines[1].startswith(f"ada        3/{len(PIECES)}  .  .. .  .. FPPP ...")
    assert lines[2].startswith(f"bob        4/{len(PIECES)}  .  .. .  .. PPPP ...")
    assert "    2  no attention mask, bert.attention" in lines
    assert f"    2  bert.attention, {RUNGS['golden']}" in lines


def test_a_class_with_its_variants(folder, capsys):
    (folder / "results").mkdir()
    for name in ("ada", "bob"):
        (folder / "results" / f"{name}.json").write_text('{"pieces": []}')
    table, variants = ["class", str(folder / "results"), "--variants"], folder / "variants.json"
    variants.write_text('{"ada": [{"name": "band", "status": "passed"}, {"name": "norm", "status": "refused"}]}')
    assert command(*table, str(variants)) == 0
    head, ada, bob = capsys.readouterr().out.splitlines()[:3]
    assert head.endswith("  variants")
    assert ada[head.index("variants") :] == "PR"
    assert len(bob) <= head.index("variants")
    for wrong in ("[]", '{"ada": [{"name": "band"}]}', '{"ada": [{"status": "splendid"}]}'):
        variants.write_text(wrong)
        with pytest.raises(InputError, match=re.escape("variants.json")):
            check.main([*table, str(variants)])


def test_a_class_without_results(folder):
    with pytest.raises(InputError, match=re.escape("has no *.json")):
        check.main(["class", str(folder)])


@pytest.mark.parametrize("text", ["[]", "{}", '{"pieces": 3}', '{"pieces": [{"piece": "bert.gelu"}]}', "\\0"])
def test_one_damaged_file_costs_no_other(folder, graded, capsys, text):
    mine(5).write_text("work")
    (folder / "results").mkdir()
    command("all", "--json", str(folder / "results" / "ada.json"))
    (folder / "results" / "bob.json").write_text(text)
    capsys.readouterr()
    assert command("class", str(folder / "results")) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith(f"ada        4/{len(PIECES)} ")
    assert out.splitlines()[2].startswith(f"bob        0/{len(PIECES)} ")
    assert "this file cannot be read" in out
    assert "bob.json" in err


def test_the_class_table_counts_for_itself_and_marks_the_packages_own_code(folder, graded, capsys):
    source = (ROOT / "minisbert" / "core" / "bert.py").read_text()
    mine(6).write_text(source)
    (folder / "results").mkdir()
    command("all", "--json", str(folder / "results" / "ada.json"))
    found = json.loads((folder / "results" / "ada.json").read_text())
    (folder / "results" / "ada.json").write_text(json.dumps(found | {"passed": 99, "of": 53}))
    capsys.readouterr()
    command("class", str(folder / "results"))
    assert capsys.readouterr().out.splitlines()[1].startswith(f"ada        3/{len(PIECES)}  .  .. .  .. .... MMM ")


def test_results_are_written_lesson_by_lesson(folder, graded, monkeypatch):
    mine(1).write_text("work")
    grade = sandbox.grade

    def interrupted(lesson):
        if lesson == 5:
            raise KeyboardInterrupt
        return grade(lesson)

    monkeypatch.setattr(sandbox, "grade", interrupted)
    mine(5).write_text("work")
    with pytest.raises(KeyboardInterrupt):
        check.main(["all", "--json", str(folder / "ada.json")])
    rows = json.loads((folder / "ada.json").read_text())["pieces"]
    assert {row["lesson"] for row in rows} == {1, 2, 3, 4}
    assert rows[0]["status"] == "passed"


@pytest.mark.slow
def test_many_students_each_with_a_limit(tmp_path, capsys):
    """A right answer, a folder with nothing in it, and a loop that the limit ends."""
    right = "def mse_loss(scores, target):\n    return (scores - target).pow(2).mean()\n"
    for name, text in (("ada", right), ("bob", ""), ("cem", "while True:\n    pass\n")):
        (tmp_path / name).mkdir()
        if text:
            (tmp_path / name / "lesson_12.py").write_text(text)
    ada, bob, cem = (str(tmp_path / name) for name in ("ada", "bob", "cem"))
    assert command("grade", ada, bob, "--out", str(tmp_path / "out"), "--jobs", "2") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ada: wrote {tmp_path}/out/ada.json"
    assert "has no lesson_*.py" in lines[1]
    rows = json.loads((tmp_path / "out" / "ada.json").read_text())["pieces"]
    assert [row["piece"] for row in rows if row["status"] == "passed"] == ["losses.mse_loss"]
    assert command("grade", cem, "--out", str(tmp_path / "out"), "--limit", "3") == 1
    assert capsys.readouterr().out.startswith("cem: stopped after 3 seconds")
    with pytest.raises(InputError, match="the same name"):
        check.main(["grade", ada, ada, "--out", str(tmp_path / "out")])


def test_an_ambiguous_name_of_a_piece_is_asked_about(folder, capsys):
    with pytest.raises(InputError, match=r"3 pieces called forward: which of JointHead\.forward, CrossAttention\."):
        check.main(["hint", "10", "forward"])
    assert command("hint", "10", "CrossHead.forward") == 0
    assert capsys.readouterr().out.startswith("heads.CrossHead.forward, 1 of")


def test_a_record_with_the_old_names_of_pieces_is_understood(folder):
    mine(2).write_text("work")
    passed = {"status": "passed", "file": file_digest(2)}
    old = ("wordpiece.split_words", "losses.cosine_matrix", "train.linear_schedule", "bert.attention")
    record = {"results": dict.fromkeys(old, passed), "hints": {"wordpiece.split_words": 2, "bert.attention": 1}}
    (folder / "progress.json").write_text(json.dumps(record))
    progress = Progress()
    assert [*progress.results] == [
        "tokenizer.split_words",
        "encoder.cosine_matrix",
        "loop.linear_schedule",
        "bert.attention",
    ]
    assert progress.state(PIECES["tokenizer.split_words"]) == "passed"
    assert progress.hints == {"tokenizer.split_words": 2, "bert.attention": 1}


def test_every_piece_that_moved_is_a_piece_today():
    assert set(MOVED.values()) <= PIECES.keys()
    assert not MOVED.keys() & PIECES.keys()


@pytest.mark.parametrize("number", [str(max(LESSONS) + 1), "99", "x", "-1"])
def test_no_such_lesson(number, capsys):
    assert command("run", number) == 2
    assert f"lessons are numbered 00 to {max(LESSONS)}" in capsys.readouterr().err or number == "-1"


@pytest.mark.parametrize("name", ["start", "hint", "reset"])
def test_a_lesson_without_pieces(folder, name):
    with pytest.raises(InputError, match=r"lesson 15, .*, has no pieces to rebuild"):
        check.main([name, "15"])


def test_where_the_lesson_mentions_a_mistake(tmp_path, monkeypatch):
    lesson = tmp_path / "05_attention.py"
    lines = ["# # Lesson", "# ## The formula", "# attention", "# ## Break it", "x = 1", 'planted("no attention mask")']
    lesson.write_text("\n".join(lines))
    monkeypatch.setattr("lessons.grader.result.lesson_file", lambda number: lesson)
    piece = PIECES["bert.attention"]
    assert place(piece, "no attention mask") == 'lessons/05_attention.py, line 6, "Break it"'
    assert place(piece, "another") == 'lessons/05_attention.py, line 3, "The formula"'
    lesson.write_text("# # Lesson\nfrom x import attention\n# ## Break it")
    assert place(piece, "another") == 'lessons/05_attention.py, line 2, "Lesson"'
    monkeypatch.setattr("lessons.grader.result.lesson_file", lambda number: None)
    assert place(piece) == "lesson 05"


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_every_pointer_names_a_heading(piece):
    names = [name for name, mistake in MISTAKES.items() if mistake.target in (piece.master, *piece.parts)]
    for text in (place(piece, name) for name in ["", *names]):
        assert re.fullmatch(r'lessons/\d\d_\w+\.py, line \d+, "[^"]+"', text), text


def test_the_command_as_typed(tmp_path):
    """A real process that starts a real process: exit codes, and nothing but results on stdout."""
    environment = {"PATH": "/usr/bin:/bin", "MINISBERT_MINE": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        words = [sys.executable, "-m", "lessons.check", *arguments]
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)

    assert run("run").returncode == 2
    assert run("start", "12").returncode == 0
    path = tmp_path / "lesson_12.py"
    text = path.read_text().replace(
        'raise NotImplementedError("losses.mse_loss")', "return ((scores - target) ** 2).sum()"
    )
    path.write_text(text)
    done = run("run", "12")
    assert done.returncode == 1, done.stderr
    assert '("summed, not averaged")' in done.stdout
    assert "loop.linear_schedule                    ★☆☆  unwritten" in done.stdout


# ------------------------------------------------------------------------------------------- answers


def test_an_answer_comes_after_its_hint(folder, capsys):
    assert command("answer", "05", "2") == 0
    first = capsys.readouterr().out
    assert EXERCISES["05.2"]["hint"] in first
    assert EXERCISES["05.2"]["answer"] not in first
    assert command("answer", "05", "2") == 0
    assert EXERCISES["05.2"]["answer"] in capsys.readouterr().out
    assert Progress().hints == {"05.2": 1}


def test_an_exercise_that_is_graded_has_no_answer(folder):
    with pytest.raises(InputError, match=r"answers to the exercises 1, 2, 3; python -m lessons\.check run grades"):
        check.main(["answer", "05", "4"])


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_exercise_has_a_hint_and_an_answer(lesson):
    text = lesson_file(lesson).read_text(encoding="utf-8").partition("\n# ## Exercises\n")[2]
    graded = re.findall(r"^# (\d+)\. Graded", text, re.MULTILINE)
    asked = [f"{lesson:02}.{n}" for n in re.findall(r"^# (\d+)\. ", text, re.MULTILINE) if n not in graded]
    assert [name for name in EXERCISES if name.startswith(f"{lesson:02}.")] == asked
    for name in asked:
        exercise = EXERCISES[name]
        assert {exercise["hard"], exercise["matters"]} <= {1, 2, 3}
        assert len(exercise["hint"]) > 10
        assert len(exercise["answer"]) > 40
