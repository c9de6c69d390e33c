"""A run's folder and what it tells people. How a whole run uses them is in test_train.py."""

from minisbert.runs import print_table


def test_the_table_leaves_out_what_only_one_split_has(capsys):
    print_table(
        {"dev": {"f1": 0.5, "alignment": 1.0}, "test": {"f1": 0.25}}, {"dev": {"f1": 0.75}, "test": {"f1": 1.0}}
    )
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["x", "100", "dev", "test"]
    assert row.split() == ["f1", "50.00", "->", "75.00", "25.00", "->", "100.00"]
