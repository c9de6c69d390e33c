"""Compare another engine's vectors with the model's own, and name the cause if they differ.

For code whose inner results you have, ``minisbert trace`` does the same.
Exit codes: 0 equal, or different by rounding alone; 1 not equal; 2 bad input.

Examples:
  minisbert certify vectors.npy --texts sentences.txt
  minisbert certify served.npy --texts sentences.txt --model my-model --json
  minisbert certify --url http://127.0.0.1:8080 --texts sentences.txt
"""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from minisbert.commands import shared
from minisbert.system.console import check_usage, command_parser, exiting

if TYPE_CHECKING:
    from minisbert.diagnosis.certificate import Certificate

NAMED_LINES = 5  # of the texts that differ

parser = command_parser("certify", __doc__)
parser.add_argument(
    "vectors", nargs="?", metavar="VECTORS", help="a .npy file, a row for each text"
)
parser.add_argument(
    "--url",
    help="ask a server for the vectors instead, in OpenAI's protocol: http://127.0.0.1:8080",
)
parser.add_argument(
    "--served-model", metavar="NAME", help="the model's name on the server (default: --model)"
)
parser.add_argument("--texts", metavar="FILE", required=True, help="the texts, one per line")
shared.add_table_options(parser, "the column of texts")
shared.add_json_option(parser)
group = parser.add_argument_group("what the vectors should be")
shared.add_model_options(group, device="cpu")
shared.add_prompt_option(group)


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    both_or_none = bool(options.vectors) == bool(options.url)
    check_usage((both_or_none, "give either VECTORS, a file, or --url"))

    from minisbert.data.rows import every_text
    from minisbert.diagnosis.certificate import certify
    from minisbert.diagnosis.vector_sources import fetch_vectors, read_vector_file

    texts = list(every_text(options.texts, options.columns, options.quotes))
    # The vectors are read before the model: a wrong file or address is reported within a second.
    if options.url:
        values = fetch_vectors(options.url, texts, options.served_model or options.model)
    else:
        values = read_vector_file(options.vectors)
    source = options.url or options.vectors

    encoder = shared.chosen_encoder(options, instead="certify compares one vector of each text")
    certificate = certify(encoder, texts, values, shared.prompt_of(encoder, options), source)
    sentence = f"Not equal: {certificate.meaning}."
    if certificate.verdict == "equal":
        sentence = f"Equal, to {certificate.digits} digits."
    if certificate.verdict == "rounded":
        sentence = f"Equal up to rounding, which is harmless: {certificate.meaning}."

    exit_code = 1
    if certificate.harmless:
        exit_code = 0
    with exiting(exit_code):
        if options.json:
            report = {"model": options.model, "vectors": source, "shape": values.shape}
            report |= asdict(certificate)
            report["digits"] = certificate.digits
            report["harmless"] = certificate.harmless
            report["sentence"] = sentence
            print(json.dumps(report))
        else:
            scaled = ""
            if encoder.normalize:
                scaled = ", scaled to length 1"
            limit = f"at most {encoder.max_seq_length} tokens"
            print(f"model      {options.model}: {encoder.pooling_mode} pooling, {limit}{scaled}")
            print(f"vectors    {source}: {len(values):,} x {values.shape[1]}")
            print_certificate(certificate, len(values), sentence)


def print_certificate(certificate: "Certificate", count: int, sentence: str) -> None:
    """Print how far ``count`` vectors differ, which of them do, and what that means."""
    print(f"largest difference  {certificate.difference:.2e}, line {certificate.row + 1:,}")

    # The distance from 1 is shown to three digits: 0.9124, 0.999999832.
    gap = max(1 - certificate.cosine, 1e-14)
    digits = max(4, 2 - math.floor(math.log10(gap)))
    print(f"smallest cosine     {min(certificate.cosine, 1):.{digits}f}")

    if not certificate.harmless:
        differing = certificate.differing
        lines = ", ".join(f"{row + 1:,}" for row in differing[:NAMED_LINES])
        if len(differing) > NAMED_LINES:
            lines += ", ..."
        print(f"texts that differ   {len(differing):,} of {count:,}: lines {lines}")
    print(f"\n{sentence}")

    # If a cause is known, some vectors were computed with it: what difference is left?
    if certificate.left is not None:
        print(
            f"Computed that way, {certificate.checked} texts differ from yours by at most "
            f"{certificate.left:.1e}."
        )
