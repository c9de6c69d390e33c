"""A folder that every machine has: twenty modules of Python, each with question and answer.

The questions were written before an engine saw them, and avoid the words of the answers where they
can. The answer is the sentence of the module, or the end of it, that whoever asks would want to
read.
"""

import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

TABLE = """
keep a list sorted while inserting | bisect | Insert item x in list a, and keep it sorted assuming a is sorted.
the smallest element of a queue by priority | heapq | Pop the smallest item off the heap, maintaining the heap
break a long paragraph into lines of a given width | textwrap | Reformat the single paragraph in 'text' so it fits
does a file name match a pattern with stars | fnmatch | Test whether FILENAME matches PATTERN
list all files that match a wildcard, subfolders too | glob | any files and zero or more directories and subdirectories.
ask for a password without showing it | getpass | Prompt for a password, with echo turned off
a random token that nobody can guess, for a reset link | secrets | Return a random URL-safe text string, in Base64
run a function at a later time | sched | Enter a new event in the queue at an absolute time.
from red, green and blue to hue and saturation | colorsys | HSV: Hue, Saturation, Value
put values into a text at dollar signs | string | A string class for supporting $-substitutions.
keep Python objects on disk under their names | shelve | A "shelf" is a persistent, dictionary-like object.
pass work from one thread to another | queue | Put an item into the queue.
duplicate an object together with everything in it | copy | into it of the objects found in the original.
get one line of a source file by its number | linecache | Get a line for a Python source file from the cache.
how long does a small piece of code take | timeit | Tool for measuring execution time of small code snippets.
turn bytes into printable letters and back | base64 | Encode the bytes-like object s using Base64 and return a bytes
user names and passwords for ftp servers in a file | netrc | Return a (user, account, password) tuple for given host.
order tasks so that each comes after those it depends on | graphlib | an iterable of nodes in a topological order
shorten what is printed of a very long list | reprlib | Redo the builtin repr() (representation) but with limits
print nested data so that people can read it | pprint | Support to pretty-print lists, tuples, & dictionaries
"""


class Question(NamedTuple):
    text: str
    file: str
    answer: str


QUESTIONS = []
for line in TABLE.strip().splitlines():
    text, module, answer = line.split(" | ")
    QUESTIONS.append(Question(text, f"{module}.py", answer))


def folder() -> Path:
    """A new folder with the twenty modules."""
    found = Path(tempfile.mkdtemp())
    library = Path(sysconfig.get_path("stdlib"))
    for question in QUESTIONS:
        source = library / question.file
        if not source.is_file():  # a module may become a folder
            source = source.with_suffix("") / "__init__.py"
        shutil.copyfile(source, found / question.file)
    return found
