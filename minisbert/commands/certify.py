"""Are these vectors right? Compare those of any engine with what the model gives, and name the cause if they differ.

minisbert certify vectors.npy --texts sentences.txt
minisbert certify served.jsonl --texts sentences.txt --model my-model --json
minisbert certify --url http://127.0.0.1:8080 --texts sentences.txt
minisbert certify --write-golden golden.json --model my-model
minisbert certify --url http://127.0.0.1:8080 --golden golden.json

``minisbert trace`` does the same for code whose inner results you have.
Exit codes: 0 equal, or different by rounding alone; 1 not equal; 2 bad input.
"""

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from minisbert.commands.options import add_model_options, add_prompt_option, load_pooled, prompt_of
from minisbert.system.command_line import command_parser
from minisbert.system.console import check_usage, exiting, run_command, say
from minisbert.system.files import check_ending, check_output

if TYPE_CHECKING:
    from minisbert.diagnosis.certificate import Certificate
    from minisbert.diagnosis.vector_sources import VectorFile
    from minisbert.loading import Encoder

SHOWN_LINES = 5  # that are named


def certify_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("certify", __doc__)
    parser.add_argument(
        "vectors", nargs="?", metavar="VECTORS", help=".npy, .safetensors, .jsonl or .csv, a row for each text"
    )
    about = "ask a server for the vectors instead, in OpenAI's protocol: http://127.0.0.1:8080"
    parser.add_argument("--url", help=about)
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


def main(arguments: list[str] | None = None) -> None:
    options = certify_options(arguments)

    from minisbert.data.lines import every_text
    from minisbert.diagnosis import vector_sources
    from minisbert.diagnosis.certificate import certify, certify_vectors

    texts = vector_sources.golden_texts()
    if options.golden:
        golden = vector_sources.read_golden(options.golden)
        texts, options.model, about = golden.texts, golden.model, golden.about
    elif options.texts:
        texts = list(every_text(options.texts))

    # the vectors come before the model: a wrong file or address is told in a second
    if options.url:
        given = vector_sources.fetch_vectors(options.url, texts, options.served_model or options.model)
        options.vectors = options.url  # their name in what is printed
    elif options.vectors:
        given = vector_sources.read_vectors(options.vectors)

    if options.golden:
        certificate = certify_vectors(None, texts, golden.vectors, given.values, name=options.vectors)
    else:
        encoder = load_pooled(options, "certify compares one vector of each text")
        prompt = prompt_of(encoder, options)
        about = settings_in_words(encoder)
        if options.write_golden:
            check_output(options.write_golden, options.texts, options.model)
            vector_sources.write_golden(encoder, texts, options.write_golden, prompt, options.model, about)
            say(f"wrote {len(texts)} texts and their vectors to {options.write_golden}")
            return
        certificate = certify(encoder, texts, given.values, prompt, options.vectors)

    with exiting(0 if certificate.harmless else 1):
        print_certificate(options, certificate, given, about)


def settings_in_words(encoder: "Encoder") -> str:
    words = f"{encoder.pooling_mode} pooling, at most {encoder.max_seq_length} tokens"
    if encoder.normalize:
        words += ", scaled to length 1"
    return words


def print_certificate(options: argparse.Namespace, certificate: "Certificate", given: "VectorFile", about: str) -> None:
    """Print the numbers and the verdict on the given vectors; ``about`` describes what they were compared with."""
    count, width = given.values.shape
    if options.json:
        report = {"model": options.model, "vectors": str(options.vectors), "shape": given.values.shape}
        report |= asdict(certificate)
        report |= {"dtype": given.dtype, "digits": certificate.digits, "harmless": certificate.harmless}
        print(json.dumps(report | {"sentence": sentence(certificate)}))
        return
    print(f"model      {options.model}: {about}")
    print(f"vectors    {options.vectors}: {count:,} x {width}, {given.dtype}")
    if certificate.difference is not None:
        print(f"largest difference  {certificate.difference:.2e}, line {certificate.row + 1:,}")
        # as many digits as say something: 0.9124, 0.99999983
        gap = max(1 - certificate.cosine, 1e-14)
        digits = max(4, 2 - math.floor(math.log10(gap)))
        print(f"smallest cosine     {certificate.cosine:.{digits}f}")
    if certificate.differing and not certificate.harmless:
        print(f"texts that differ   {len(certificate.differing):,} of {count:,}: {lines_of(certificate.differing)}")
    print(f"\n{sentence(certificate)}")
    if certificate.checked and certificate.left is not None:
        print(f"Computed that way, {certificate.checked} texts differ from yours by at most {certificate.left:.1e}.")
    showing = certificate.showing
    if showing:
        print(f"It can show in {len(showing):,} of {count:,} texts, the longer ones: {lines_of(showing)}.")
    if options.golden and certificate.verdict == "unexplained":
        print("To have the cause named, compare with the model itself: --model and --texts instead of --golden.")


def sentence(certificate: "Certificate") -> str:
    """Return the verdict in words."""
    if certificate.verdict == "equal":
        return f"Equal, to {certificate.digits} digits."
    if certificate.verdict == "rounded":
        return f"Equal up to rounding, which is harmless: {certificate.meaning}."
    return f"Not equal: {certificate.meaning}."


def lines_of(rows: list[int]) -> str:
    """Name rows as lines of the file: ``line 3``, or ``lines 1, 2, 5, 8, 9, ...``."""
    shown = ", ".join(f"{row + 1:,}" for row in rows[:SHOWN_LINES])
    if len(rows) == 1:
        return f"line {shown}"
    if len(rows) > SHOWN_LINES:
        shown += ", ..."
    return f"lines {shown}"


if __name__ == "__main__":
    run_command(main)
