"""Variants from a secret: the book's functions are no answer, right answers pass, likely mistakes are named."""

import ast
import inspect
import json
import textwrap
from pathlib import Path

import pytest
import torch

from lessons.check import main
from lessons.grader.variant_grading import grade_folder, judged, reports_on
from lessons.grader.variants import VARIANTS, answers, cases_of, settings_of, sheet
from minisbert.core import InputError, bert, losses, pooling
from minisbert.core.metrics import ranks as book_ranks

SECRETS = [f"the key of class {i}".encode() for i in range(10)]
# the book's nearest function of each
BOOK = {
    "banded_attention": lambda q, k, v: bert.attention(q[None], k[None], v[None])[0][0],
    "prefix_attention": lambda q, k, v: bert.attention(q[None], k[None], v[None])[0][0],
    "weighted_pool": pooling.mean_pool,
    "margin_ranking_loss": losses.multiple_negatives_ranking_loss,
    "power_norm": lambda x, weight, bias: bert.layer_norm(x, weight, bias, 1e-12),
    "ranks": lambda values: torch.as_tensor(book_ranks(values.detach())).double(),
}
# answers in another style than the reference's: loops over tokens
RIGHT = """
import torch

def seen(query, key, value, may):
    rows = []
    for i in range(query.shape[1]):
        keys = [j for j in range(query.shape[1]) if may(i, j)]
        scores = (query[:, i:i + 1] * key[:, keys]).sum(dim=-1) / query.shape[-1] ** 0.5
        rows.append((torch.softmax(scores, dim=-1)[..., None] * value[:, keys]).sum(dim=1))
    return torch.stack(rows, dim=1)

def banded_attention(query, key, value):
    return seen(query, key, value, lambda i, j: -{before} <= j - i <= {after})

def prefix_attention(query, key, value):
    return seen(query, key, value, lambda i, j: max(i, j) < {prefix} or j <= i)

def weighted_pool(hidden, mask):
    pooled = []
    for states, real in zip(hidden, mask):
        tokens = states[real] if "{end}" == "first" else states[real].flip(0)
        weights = torch.tensor([{decay} ** i for i in range(len(tokens))], dtype=hidden.dtype)
        pooled.append((tokens * weights[:, None]).sum(dim=0) / weights.sum())
    return torch.stack(pooled)

def margin_ranking_loss(a, b):
    total = 0
    for i in range(len(a)):
        cosines = torch.stack([(a[i] @ y) / (a[i].norm() * y.norm()) for y in b])
        cosines = cosines - torch.tensor([{margin} if j == i else 0 for j in range(len(b))], dtype=a.dtype)
        total = total + torch.logsumexp({scale} * cosines, dim=0) - {scale} * cosines[i]
    return total / len(a)

def power_norm(x, weight, bias):
    size = torch.linalg.vector_norm(x, {power}, dim=-1, keepdim=True) / x.shape[-1] ** (1 / {power})
    return weight * x / size + bias

def ranks(values):
    distinct = sorted(set(values.tolist()))
    places = sorted(values.tolist())
    found = dict(lowest=lambda x: places.index(x) + 1, highest=lambda x: len(places) - places[::-1].index(x),
                 dense=lambda x: distinct.index(x) + 1)
    return torch.tensor([float(found["{ties}"](x)) for x in values.tolist()], dtype=torch.float64)
"""


def right(secret: bytes, student: str = "") -> str:
    found = {}
    for variant in VARIANTS.values():
        found |= settings_of(variant, secret, student)
    text = RIGHT
    for name, value in found.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def loaded(text: str) -> dict:
    space: dict = {}
    exec(compile(text, "variants.py", "exec"), space)
    return space


def report(secret: bytes, name: str, function) -> dict:
    cases = cases_of(VARIANTS[name], secret)
    return {"results": [[x.double().tolist() for x in answers(function, case)] for case in cases]}


def handed_in(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "variants.py").write_text(text)
    return folder


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.txt"
    path.write_text(SECRETS[0].decode() + "\n")
    return path


@pytest.mark.parametrize("name", VARIANTS)
def test_the_book_fails_and_a_right_answer_passes_in_ten_classes(name):
    variant = VARIANTS[name]
    for secret in SECRETS:
        graded = judged(variant, secret, "", report(secret, name, BOOK[name]))
        assert graded.status == "failed", settings_of(variant, secret)
        graded = judged(variant, secret, "", report(secret, name, loaded(right(secret))[name]))
        assert graded.status == "passed", settings_of(variant, secret)
    assert all(variant.differs(settings_of(variant, f"secret {i:06}".encode())) for i in range(200))


@pytest.mark.parametrize("name", VARIANTS)
def test_no_choice_of_constants_makes_a_likely_mistake_right_or_two_mistakes_alike(name):
    """But for those that change nothing, such as exchanged ends of a band that are equal: these are not named."""
    variant, named = VARIANTS[name], set()
    for secret in SECRETS:
        settings = settings_of(variant, secret)
        for meaning, mistaken in variant.mistakes.items():
            wrong = mistaken(settings)
            graded = judged(variant, secret, "", report(secret, name, lambda *x, w=wrong: variant.function(*x, **w)))
            if wrong == settings:
                assert graded.status == "passed"
            else:
                assert graded.status == "failed"
                named |= {meaning} if graded.reason.endswith(meaning) else set()
    assert named == {*variant.mistakes}


def test_a_secret_decides_and_a_student_may_have_constants_of_her_own():
    assert sheet(SECRETS[0]) == sheet(SECRETS[0])
    sheets = {sheet(secret) for secret in SECRETS} | {sheet(SECRETS[0], name) for name in ("ann", "bob")}
    assert len(sheets) == 12
    cases = [cases_of(VARIANTS["ranks"], SECRETS[0], name)[0][0].tolist() for name in ("", "ann", "bob")]
    assert len({*map(tuple, cases)}) == 3


def test_the_sheet_has_an_example_that_comes_out_and_no_hidden_input():
    tree = ast.parse(sheet(SECRETS[1]))
    functions = {node.name: ast.get_docstring(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert [*functions] == [*VARIANTS]
    space = loaded(right(SECRETS[1]))
    for name, doc in functions.items():
        example = textwrap.dedent(doc.split("For\n")[1].rsplit("\n", 1)[0])
        given = loaded(f"import torch\ntorch.set_default_dtype(torch.float64)\n{example}")
        torch.set_default_dtype(torch.float32)
        arguments = [given[argument] for argument in inspect.signature(space[name]).parameters]
        found = [round(x, 6) for x in space[name](*arguments).flatten()[:4].tolist()]
        assert f"begins with {found}." in doc
        assert not any(torch.equal(case[0], arguments[0]) for case in cases_of(VARIANTS[name], SECRETS[1]))


def test_files_are_graded_in_a_process_of_their_own(tmp_path, key, capsys):
    good = handed_in(tmp_path / "in" / "ann", right(SECRETS[0]))
    text = right(SECRETS[0])
    for line, before in (
        ("    distinct = ", "    import os; os._exit(3)\n"),
        ("    size = ", "    raise NotImplementedError\n"),
        ("    pooled = []", "    from minisbert.core.pooling import mean_pool\n"),
        ("    total = 0\n", "    a = a.detach()\n"),
    ):
        text = text.replace(line, before + line, 1)
    bad = handed_in(tmp_path / "in" / "bob", text)
    empty = tmp_path / "in" / "eve"
    empty.mkdir()
    out = tmp_path / "results.json"
    with pytest.raises(SystemExit):
        main(["variants", "grade", "--secret", str(key), str(good), str(bad), str(empty), "--json", str(out)])
    said = capsys.readouterr().out
    assert "ann         6/6  P P P P P P" in said
    found = {student: {row["name"]: row for row in rows} for student, rows in json.loads(out.read_text()).items()}
    assert {row["status"] for row in found["ann"].values()} == {"passed"}
    assert {name: row["status"] for name, row in found["bob"].items()} == {
        "banded_attention": "passed",
        "prefix_attention": "passed",
        "weighted_pool": "refused",
        "margin_ranking_loss": "failed",
        "power_norm": "unwritten",
        "ranks": "refused",  # the lesson may not import os
    }
    assert "minisbert" in found["bob"]["weighted_pool"]["reason"]
    assert "gradient 1" in found["bob"]["margin_ranking_loss"]["reason"]
    missing = f"{empty} has no variants.py: the teacher's sheet, filled in"
    assert {row["reason"] for row in found["eve"].values()} == {missing}


def test_a_loop_an_end_and_a_forged_report(tmp_path):
    lines = '[print(\'{"name": "ranks", "status": "passed", "reason": ""}\') for _ in range(9)]\n'
    text = lines + right(SECRETS[0])
    text = text.replace("    distinct = ", "    while True: pass\n    distinct = ", 1)
    graded = grade_folder(handed_in(tmp_path, text), SECRETS[0], seconds=1)
    by_name = {one.name: one for one in graded}
    assert by_name["ranks"].status == "failed"
    assert "never ends" in by_name["ranks"].reason
    assert by_name["power_norm"].status == "passed"


def test_files_that_cannot_be_loaded(tmp_path):
    cases = {name: [] for name in VARIANTS}
    for text, reason in (("def f(:", "not Python"), ("1 / 0", "ZeroDivisionError"), ("", "defines no ranks")):
        found = [*reports_on(handed_in(tmp_path, text) / "variants.py", cases)]
        assert [each["name"] for each in found] == [*VARIANTS]
        assert {each["status"] for each in found} == {"failed"}
        assert reason in found[-1]["reason"]


def test_the_sheet_command(tmp_path, key, capsys):
    out = tmp_path / "variants.py"
    main(["variants", "sheet", "--secret", str(key), "--out", str(out), "--student", "ann"])
    assert out.read_text() == sheet(SECRETS[0], "ann")
    with pytest.raises(InputError, match="exists"):
        main(["variants", "sheet", "--secret", str(key), "--out", str(out)])
    inputs = {name: [[x.tolist() for x in case] for case in cases_of(VARIANTS[name], SECRETS[0])] for name in VARIANTS}
    assert {each["status"] for each in reports_on(out, inputs)} == {"unwritten"}
    ann = handed_in(tmp_path / "ann", right(SECRETS[0], "ann"))
    main(["variants", "grade", "--secret", str(key), "--per-student", str(ann)])
    assert "6/6  P P P P P P" in capsys.readouterr().out


def test_secrets_that_are_refused(tmp_path, key):
    (tmp_path / "short").write_text("abc\n")
    for task, secret, rest, says in (
        ("sheet", "missing.txt", ["--out", str(tmp_path / "v.py")], "missing"),
        ("sheet", "short", ["--out", str(tmp_path / "v.py")], "12"),
        ("grade", "key.txt", [str(tmp_path)], "student"),
    ):
        with pytest.raises(InputError, match=says):
            main(["variants", task, "--secret", str(tmp_path / secret), *rest])
