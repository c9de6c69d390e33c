"""Are these vectors right? Compare those of any engine with what the model gives, and name the cause if they differ.

minisbert certify vectors.npy --texts sentences.txt
minisbert certify served.jsonl --texts sentences.txt --model my-model --json
minisbert certify --url http://127.0.0.1:8080 --api tei --texts sentences.txt
minisbert certify --write-golden golden.json --model my-model
minisbert certify --url http://127.0.0.1:8080 --golden golden.json

``minisbert trace`` does the same for code whose inner results you have.
Exit codes: 0 equal, or different by rounding alone; 1 not equal; 2 bad input.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from minisbert.commands.options import add_model_options, add_prompt_option, load_pooled, prompt_of
from minisbert.data.lines import every_text
from minisbert.diagnosis.certificate import certify
from minisbert.diagnosis.hypotheses import EQUAL, ROUNDED, UNEXPLAINED, Certificate
from minisbert.diagnosis.vector_sources import (
    PATHS,
    VectorFile,
    certify_golden,
    fetch_vectors,
    golden_texts,
    read_golden,
    read_vectors,
    write_golden,
)
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.command_line import command_parser
from minisbert.system.console import check_usage, exiting, run_command, say
from minisbert.system.files import check_ending, check_output

SHOWN = 5  # lines that are named


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("certify", __doc__)
    parser.add_argument(
        "vectors", nargs="?", metavar="VECTORS", help=".npy, .safetensors, .jsonl or .csv, a row for each text"
    )
    parser.add_argument("--url", help="ask a server for the vectors instead: http://127.0.0.1:8080")
    parser.add_argument("--api", choices=PATHS, default="openai", help="the server's protocol (default: %(default)s)")
    parser.add_argument("--served-model", metavar="NAME", help="the model's name on the server (default: --model)")
    parser.add_argument("--texts", metavar="FILE", help="the texts, one per line")
    about = "compare with a golden file, which has the texts and the right vectors: no model is loaded"
    parser.add_argument("--golden", type=Path, metavar="F.json", help=about)
    about = "write that file, with the vectors of --model, for --texts or for twenty texts that show most mistakes"
    parser.add_argument("--write-golden", type=Path, metavar="F.json", help=about)
    parser.add_argument("--json", action="store_true", help="print one JSON object; rows count from 0")
    group = parser.add_argument_group("what the vectors should be")
    add_model_options(group, device="cpu")
    add_prompt_option(group)
    options = parser.parse_args(arguments)
    given = bool(options.vectors) + bool(options.url)
    check_usage(
        (options.write_golden and (given or options.golden), "--write-golden compares nothing: give --model alone"),
        (not options.write_golden and given != 1, "give either VECTORS, a file, or --url"),
        (options.golden and options.texts, "--golden has the texts: omit --texts"),
        (given and not options.golden and not options.texts, "--texts FILE or --golden F.json is needed"),
    )
    check_ending("--write-golden", options.write_golden, ".json")
    return options


def sentence(found: Certificate) -> str:
    """The verdict in words."""
    if found.verdict == EQUAL:
        return f"Equal, to {found.digits} digits."
    if found.verdict == ROUNDED:
        return f"Equal up to rounding, which is harmless: {found.meaning}."
    return f"Not equal: {found.meaning}."


def lines_of(rows: list[int]) -> str:
    """``line 3``, or ``lines 1, 2, 5, 8, 9, ...``."""
    shown = ", ".join(f"{row + 1:,}" for row in rows[:SHOWN])
    if len(rows) == 1:
        return f"line {shown}"
    if len(rows) > SHOWN:
        shown += ", ..."
    return f"lines {shown}"


def settings_of(encoder: SentenceEncoder) -> str:
    about = f"{encoder.pooling_mode} pooling, at most {encoder.max_seq_length} tokens"
    if encoder.normalize:
        about += ", scaled to length 1"
    return about


def print_report(found: Certificate, given: VectorFile, about: str, options: argparse.Namespace) -> None:
    count, width = given.values.shape
    print(f"model      {options.model}: {about}")
    print(f"vectors    {options.vectors}: {count:,} x {width}, {given.dtype}")
    if found.difference is not None:
        print(f"largest difference  {found.difference:.2e}, line {found.row + 1:,}")
        print(f"smallest cosine     {decimals(found.cosine)}")
    if found.differing and not found.harmless:
        print(f"texts that differ   {len(found.differing):,} of {count:,}: {lines_of(found.differing)}")
    print(f"\n{sentence(found)}")
    if found.checked and found.left is not None:
        print(f"Computed that way, {found.checked} texts differ from yours by at most {found.left:.1e}.")
    if found.showing:
        print(f"It can show in {len(found.showing):,} of {count:,} texts, the longer ones: {lines_of(found.showing)}.")
    if options.golden and found.verdict == UNEXPLAINED:
        print("To have the cause named, compare with the model itself: --model and --texts in place of --golden.")


def decimals(cosine: float) -> str:
    """A cosine with as many digits as say something: ``0.9124``, ``0.99999983``."""
    gap = max(1 - cosine, 1e-14)
    return f"{cosine:.{int(max(4, 2 - np.floor(np.log10(gap))))}f}"


def ask_or_read(options: argparse.Namespace, texts: list[str]) -> VectorFile:
    """The vectors in question, and their place as ``options.vectors``."""
    if not options.url:
        return read_vectors(options.vectors)
    options.vectors = options.url
    return fetch_vectors(options.url, texts, options.api, options.served_model or options.model)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    texts = golden_texts()
    if options.texts:
        texts = list(every_text(options.texts))
    if options.golden:
        golden = read_golden(options.golden)
        options.model, about = golden.model, golden.about
        given = ask_or_read(options, golden.texts)
        found = certify_golden(golden, given.values, options.vectors)
    else:
        given = None if options.write_golden else ask_or_read(options, texts)
        encoder = load_pooled(options, "certify compares one vector of each text")
        prompt, about = prompt_of(encoder, options), settings_of(encoder)
        if given is None:
            check_output(options.write_golden, options.texts, options.model)
            write_golden(encoder, texts, options.write_golden, prompt, options.model, about)
            say(f"wrote {len(texts)} texts and their vectors to {options.write_golden}")
            return
        found = certify(encoder, texts, given.values, prompt, options.vectors)
    with exiting(0 if found.harmless else 1):
        if options.json:
            report = {"model": options.model, "vectors": str(options.vectors), "shape": given.values.shape}
            report.update(asdict(found), dtype=given.dtype, digits=found.digits, harmless=found.harmless)
            report["sentence"] = sentence(found)
            print(json.dumps(report))
        else:
            print_report(found, given, about, options)


if __name__ == "__main__":
    run_command(main)
