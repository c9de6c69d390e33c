"""The project's address is written in one step, and in all places at once."""

import re
import runpy
import sys
import tomllib
from types import ModuleType
from typing import Any

import pytest

from docs.tools import set_address
from tests.conftest import ROOT

ADDRESS = "https://github.com/Somebody/course"


def place(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_place_gets_the_address():
    """Where their readers look: an index, reference managers, GitHub's front page, the site."""
    written = {}
    for name, write in set_address.PLACES.items():
        written[name] = write(place(name), ADDRESS)
    assert tomllib.loads(written["pyproject.toml"])["project"]["urls"] == {
        "Documentation": "https://somebody.github.io/course/",
        "Repository": "https://github.com/Somebody/course",
        "Issues": "https://github.com/Somebody/course/issues",
        "Changelog": "https://github.com/Somebody/course/blob/main/CHANGELOG.md",
    }
    assert '\nrepository = "https://github.com/Somebody/course"\n' in written["docs/conf.py"]
    citation = written["CITATION.cff"]
    assert "\nrepository-code: https://github.com/Somebody/course\n" in citation
    assert "\n  url: https://somebody.github.io/course/\n" in citation
    readme = written["README.md"]
    assert "`git clone https://github.com/Somebody/course`" in readme
    assert "  url = {https://github.com/Somebody/course}\n}" in readme
    badge = "(https://github.com/Somebody/course/actions/workflows/tests.yml/badge.svg)"
    assert readme.index(badge) < readme.index("\n**Sentence embeddings")


@pytest.mark.parametrize("name", set_address.PLACES)
def test_an_address_can_be_replaced_and_removed(name):
    """A project that moves leaves no link to where it was."""
    write = set_address.PLACES[name]
    empty = write(place(name), "")
    moved = write(write(empty, ADDRESS), "https://git.example.org/us/minisbert")
    assert "Somebody" not in moved
    assert "https://git.example.org/us/minisbert" in moved
    assert write(moved, "") == empty


@pytest.fixture
def hatch_build(monkeypatch) -> dict[str, Any]:
    """What ``hatch_build.py`` defines, whether hatchling is installed or not."""
    hatchling = ModuleType("hatchling.metadata.plugin.interface")
    hatchling.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, hatchling.__name__, hatchling)
    return runpy.run_path(str(ROOT / "hatch_build.py"))


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("[a](b.md)", "[a](https://x.org/blob/main/b.md)"),
        ("![a](b.svg)", "![a](https://x.org/raw/main/b.svg)"),
        ('[a](b.md "t")', '[a](https://x.org/blob/main/b.md "t")'),
        ("![a](b.svg 't')", "![a](https://x.org/raw/main/b.svg 't')"),
        ("[a](mailto:me@x.org)", "[a](mailto:me@x.org)"),
        ("[a](#b)", "[a](#b)"),
    ],
)
def test_only_a_relative_link_gets_the_address(link, shown, hatch_build):
    """Any other would be dead, and so would a relative one that stays."""
    assert hatch_build["with_whole_addresses"](link, "https://x.org") == shown


def test_the_readme_of_a_package_index_has_no_relative_link(hatch_build, tmp_path):
    """There they would be dead, as the page is not beside the files."""
    hook = hatch_build["CustomMetadataHook"]()
    hook.root = tmp_path
    readme = set_address.in_readme(place("README.md"), ADDRESS)
    (tmp_path / "README.md").write_text(readme, encoding="utf-8")
    metadata = {"urls": {"Repository": ADDRESS}}
    hook.update(metadata)
    shown = metadata["readme"]["text"]
    assert f"({ADDRESS}/raw/main/docs/static/grader.svg)" in shown
    assert f"({ADDRESS}/blob/main/docs/training.md#from-python)" in shown
    for link in re.findall(r"\]\(([^)\s]+)\)", shown):
        assert link.startswith(("https://", "#"))


def test_the_places_agree():
    """Somebody who sets one of them by hand is told."""
    (address,) = re.findall(r'^repository = "(.*)"$', place("docs/conf.py"), re.MULTILINE)
    for name, write in set_address.PLACES.items():
        assert write(place(name), address) == place(name), "python -m docs.tools.set_address"


@pytest.mark.parametrize("address", ["https://github.com/Somebody/course.git", ADDRESS + "/"])
def test_an_address_may_be_the_one_that_is_cloned(address):
    """It is what people have in the clipboard."""
    assert set_address.checked(address) == ADDRESS


@pytest.mark.parametrize("address", ["github.com/a/b", "https://github.com/a", "https://a/b/c d"])
def test_what_is_no_address_is_refused(address):
    """It would become a dead link on every page."""
    with pytest.raises(ValueError, match="OWNER"):
        set_address.checked(address)


def test_the_citation_is_the_readmes_bibtex():
    """Reference managers read one, people copy the other."""
    citation = place("CITATION.cff")
    readme = place("README.md")
    (title,) = set(re.findall(r'title: "(.*)"', citation))
    assert f"  title = {{{title}}}," in readme
    (version,) = set(re.findall(r"^ *version: (\S+)", citation, re.MULTILINE))
    assert f"  version = {{{version}}}," in readme
    (released,) = re.findall(r"^date-released: (\d{4})-", citation, re.MULTILINE)
    (year,) = re.findall(r"^  year: (\d{4})$", citation, re.MULTILINE)
    assert released == year
    assert f"  year = {{{year}}}," in readme
    (author,) = set(re.findall(r"- name: (.*)", citation))
    assert f"  author = {{{{{author}}}}}," in readme
