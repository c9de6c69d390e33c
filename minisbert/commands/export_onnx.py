"""Export an encoder to ONNX: token ids in, vectors out, for programs without PyTorch.

    minisbert export-onnx all-MiniLM-L6-v2 --out minilm-onnx
    minisbert export-onnx runs/cosine-all-MiniLM-L6-v2/model --out mine-onnx --int8

Writes the model's folder with onnx/model.onnx in it, as sentence-transformers lays it out: it opens there with
backend="onnx". Pooling, dense layers and scaling are in the graph. ONNX Runtime computes a few vectors with the file,
and the largest difference is printed. Needs the onnx extra.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from minisbert.commands.options import add_model_option
from minisbert.core import InputError
from minisbert.system.assets import local_path
from minisbert.system.console import command_parser, run_command, say
from minisbert.system.files import atomic_folder, check_output

LARGEST = 1e-4  # of a difference to a unit vector's number: float32 in another order stays far below

parser = command_parser("export-onnx", __doc__)
add_model_option(parser, "model")
parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for the model with onnx/model.onnx")
parser.add_argument("--int8", action="store_true", help="write onnx/model_int8.onnx too: a quarter of the size")


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    check_output(options.out, local_path(options.model))
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise InputError(f"minisbert export-onnx needs {package}: pip install 'minisbert[onnx]'")
    from minisbert.backends.onnx_export import SAMPLE_TEXTS, export_onnx, onnx_vectors, quantize_onnx
    from minisbert.models.sentence_encoder import SentenceEncoder

    encoder = SentenceEncoder.load(options.model, device="cpu")
    say(f"exporting {options.model}, about 20 seconds")
    expected = encoder.encode(list(SAMPLE_TEXTS))  # (N, W)
    with atomic_folder(options.out) as folder:
        encoder.write(folder)
        path = folder / "onnx" / "model.onnx"
        path.parent.mkdir()
        export_onnx(encoder, path)
        # before the folder is in its place: a graph that computes something else must not look finished
        difference = float(np.abs(onnx_vectors(encoder, path) - expected).max())
        if not difference <= LARGEST * max(1.0, float(np.abs(expected).max())):
            raise InputError(f"the exported graph gives other vectors, by {difference:.1e}: please report this model")
        lines = [f"onnx/model.onnx: {path.stat().st_size / 1e6:.1f} MB, largest difference {difference:.1e}"]
        if options.int8:
            smaller = path.with_name("model_int8.onnx")
            quantize_onnx(path, smaller)
            u, v = onnx_vectors(encoder, smaller), expected
            cosines = (u * v).sum(axis=1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)  # (N,)
            size = f"{smaller.stat().st_size / 1e6:.1f} MB"
            lines.append(f"onnx/model_int8.onnx: {size}, lowest cosine {cosines.min():.4f}")
    for line in lines:  # now that the folder is in its place
        print(line)


if __name__ == "__main__":
    run_command(main)
