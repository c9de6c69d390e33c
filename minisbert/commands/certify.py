"""Are these vectors right? Compare those of any engine with what the model gives, and name the cause if they differ.

minisbert certify vectors.npy --texts sentences.txt
minisbert certify served.jsonl --texts sentences.txt --model my-model --json
minisbert certify --url http://127.0.0.1:8080 --texts sentences.txt

``minisbert trace`` does the same for code whose inner results you have.
Exit codes: 0 equal, or different by rounding alone; 1 not equal; 2 bad input.
"""

import argparse
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from minisbert.commands.options import add_model_options, add_prompt_option, load_pooled, prompt_of
from minisbert.system.console import check_usage, command_parser, exiting, run_command

if TYPE_CHECKING:
    from minisbert.diagnosis.certificate import Certificate

SHOWN_LINES = 5  # that are named


def certify_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("certify", __doc__)
    about = ".npy, .safetensors or .jsonl, a row for each text"
    parser.add_argument("vectors", nargs="?", metavar="VECTORS", help=about)
    about = "ask a server for the vectors instead, in OpenAI's protocol: http://127.0.0.1:8080"
    parser.add_argument("--url", help=about)
    parser.add_argument("--served-model", metavar="NAME", help="the model's name on the server (default: --model)")
    parser.add_argument("--texts", metavar="FILE", required=True, help="the texts, one per line")
    parser.add_argument("--json", action="store_true", help="print one JSON object; rows count from 0")
    group = parser.add_argument_group("what the vectors should be")
    add_model_options(group, device="cpu")
    add_prompt_option(group)
    options = parser.parse_args(arguments)
    check_usage((bool(options.vectors) == bool(options.url), "give either VECTORS, a file, or --url"))
    return options


def main(arguments: list[str] | None = None) -> None:
    options = certify_options(arguments)

    from minisbert.data.lines import every_text
    from minisbert.diagnosis.certificate import certify, fetch_vectors, read_vector_file

    texts = list(every_text(options.texts))
    # the vectors come before the model: a wrong file or address is told in a second
    if options.url:
        values = fetch_vectors(options.url, texts, options.served_model or options.model)
    else:
        values = read_vector_file(options.vectors)
    source = options.url or options.vectors
    encoder = load_pooled(options, "certify compares one vector of each text")
    certificate = certify(encoder, texts, values, prompt_of(encoder, options), source)

    with exiting(0 if certificate.harmless else 1):
        if options.json:
            report = {"model": options.model, "vectors": source, "shape": values.shape} | asdict(certificate)
            report |= {"digits": certificate.digits, "harmless": certificate.harmless}
            print(json.dumps(report | {"sentence": sentence(certificate)}))
            return
        about = f"{encoder.pooling_mode} pooling, at most {encoder.max_seq_length} tokens"
        if encoder.normalize:
            about += ", scaled to length 1"
        print(f"model      {options.model}: {about}")
        print(f"vectors    {source}: {len(values):,} x {values.shape[1]}")
        print_certificate(certificate, len(values))


def print_certificate(certificate: "Certificate", count: int) -> None:
    """Print the numbers and the verdict on ``count`` vectors."""
    print(f"largest difference  {certificate.difference:.2e}, line {certificate.row + 1:,}")
    # as many digits as say something: 0.9124, 0.99999983
    gap = max(1 - certificate.cosine, 1e-14)
    digits = max(4, 2 - math.floor(math.log10(gap)))
    print(f"smallest cosine     {min(certificate.cosine, 1):.{digits}f}")
    if not certificate.harmless:
        shown = ", ".join(f"{row + 1:,}" for row in certificate.differing[:SHOWN_LINES])
        if len(certificate.differing) > SHOWN_LINES:
            shown += ", ..."
        print(f"texts that differ   {len(certificate.differing):,} of {count:,}: lines {shown}")
    print(f"\n{sentence(certificate)}")
    if certificate.left is not None:
        print(f"Computed that way, {certificate.checked} texts differ from yours by at most {certificate.left:.1e}.")


def sentence(certificate: "Certificate") -> str:
    """Return the verdict in words."""
    if certificate.verdict == "equal":
        return f"Equal, to {certificate.digits} digits."
    if certificate.verdict == "rounded":
        return f"Equal up to rounding, which is harmless: {certificate.meaning}."
    return f"Not equal: {certificate.meaning}."


if __name__ == "__main__":
    run_command(main)
