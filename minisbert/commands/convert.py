"""``minisbert compile``, ``export-onnx`` and ``distill-static``: a model in another form."""

import time
from importlib.util import find_spec
from pathlib import Path

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.system.assets import local_path
from minisbert.system.console import add_threads_option, bounded, command_parser, say
from minisbert.system.files import atomic_folder, check_output, write_json

# The largest difference between a number of a unit vector and the same one of the ONNX graph.
# Rounding in another order, in float32, stays far below it.
LARGEST_DIFFERENCE = 1e-4


def to_native_code(arguments: list[str] | None = None) -> None:
    """Compile a model ahead of time to one file of native code, which encodes a sentence in half
    the time.

    int8 is faster than float32 on a CPU with VNNI or AVX2, and its vectors differ a little
    (docs/results.md). The package is for this CPU and this version of torch. Compiling needs a C++
    compiler and 20 to 90 seconds; loading needs neither. Where few tokens gain by it, a float32
    package has a second graph for them, which takes as long again and as much space;
    MINISBERT_LAID_OUT=0 leaves it out. A package is a program: load only those that you trust. A
    GPU needs no package: --compiled alone is enough there.

    Examples:
      minisbert compile all-MiniLM-L6-v2
      minisbert compile runs/cosine-all-MiniLM-L6-v2/model --dtype bfloat16 --out model.pt2
      minisbert compile all-MiniLM-L6-v2 --dtype int8
      minisbert encode "A cat." "A dog." --compiled --dtype int8
    """
    parser = command_parser("compile", to_native_code.__doc__)
    shared.add_model_option(parser, "model")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="F",
        help="write the package to F.pt2 (default: to the cache, for --compiled)",
    )
    parser.add_argument(
        "--dtype", default="float32", help="float32, bfloat16, int8 or auto (default: %(default)s)"
    )
    shared.add_pooling_option(parser)
    add_threads_option(parser)
    options = parser.parse_args(arguments)
    shared.check_written("--out", options.out, [".pt2"], options.model)

    from minisbert.backends.package import (
        compile_apart,
        compile_to_cache,
        package_dtype,
        package_identity,
    )
    from minisbert.checkpoints.layout import find_model, read_folder
    from minisbert.system.devices import use_threads

    use_threads(options.threads)
    folder = find_model(options.model)
    dtype = package_dtype(options.dtype)
    started = time.monotonic()
    path = options.out
    if path:
        compile_apart(folder, dtype, options.pooling, path)
    else:
        identity = package_identity(read_folder(folder), dtype, options.pooling)
        path = compile_to_cache(folder, identity)
    megabytes = path.stat().st_size / 1e6
    seconds = time.monotonic() - started
    print(f"{path}: {megabytes:.0f} MB, {seconds:.0f} s")


def to_onnx(arguments: list[str] | None = None) -> None:
    """Export an encoder to ONNX: token ids in, vectors out, for programs without PyTorch.

    Writes the model's folder with onnx/model.onnx in it, as sentence-transformers lays it out,
    which opens it with backend="onnx". Pooling, dense layers and scaling are in the graph. ONNX
    Runtime computes a few vectors with the file, and the largest difference is printed. Needs the
    onnx extra.

    Examples:
      minisbert export-onnx all-MiniLM-L6-v2 --out minilm-onnx
    """
    parser = command_parser("export-onnx", to_onnx.__doc__)
    shared.add_model_option(parser, "model")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="write the model, with onnx/model.onnx, to this folder",
    )
    options = parser.parse_args(arguments)
    check_output(options.out, local_path(options.model))
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise InputError(f"minisbert export-onnx needs {package}: pip install -e '.[onnx]'")

    import numpy as np

    from minisbert.backends import graphs
    from minisbert.checkpoints.layout import TOKENIZER_CONFIG, read_folder
    from minisbert.models.sentence_encoder import SentenceEncoder

    encoder = SentenceEncoder.load(options.model, device="cpu")
    say(f"exporting {options.model}, about 20 seconds")
    expected = encoder.encode(list(graphs.SAMPLE_TEXTS))  # (N, W)
    with atomic_folder(options.out) as folder:
        encoder.write(folder)
        # Fastembed and transformers.js cut texts at this length.
        limit = {"model_max_length": encoder.tokenizer.limit}
        settings = read_folder(folder).json(TOKENIZER_CONFIG) | limit
        write_json(folder / TOKENIZER_CONFIG, settings)
        encoder.write_card(folder, former=options.out)
        path = folder / "onnx" / "model.onnx"
        path.parent.mkdir()
        graphs.export_onnx(encoder, path)
        megabytes = path.stat().st_size / 1e6

        # The graph is compared before the folder is in its place: one that computes something else
        # must not look finished.
        exported = graphs.onnx_vectors(encoder, path)
        difference = float(np.abs(exported - expected).max())
        scale = max(1.0, float(np.abs(expected).max()))
        # subtle: "not <=" is true for NaN, too
        if not difference <= LARGEST_DIFFERENCE * scale:
            raise InputError(
                f"the exported graph gives other vectors, by {difference:.1e}: please report this "
                f"model"
            )
    print(f"onnx/model.onnx: {megabytes:.1f} MB, largest difference {difference:.1e}")


def distill_static(arguments: list[str] | None = None) -> None:
    """Make a table of static vectors from an encoder: one per token, far faster, less accurate.

    Examples:
      minisbert distill-static --out table
      minisbert distill-static --model path/to/encoder --dim 128 --out table
      minisbert encode --model table "A cat sits." "A kitten is sitting."
    """
    parser = command_parser("distill-static", distill_static.__doc__)
    shared.add_model_option(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="write the model to this folder"
    )
    parser.add_argument(
        "--dim",
        type=bounded(int, 1),
        default=256,
        metavar="N",
        help="dimensions of a vector (default: %(default)s)",
    )
    parser.add_argument(
        "--sif",
        type=bounded(float, 1e-9),
        default=1e-4,
        metavar="A",
        help="weight a token of frequency p (by Zipf's law) with A / (A + p); a large A weights "
        "all tokens alike (default: %(default)s)",
    )
    shared.add_device_options(parser)
    options = parser.parse_args(arguments)

    from minisbert.loading import load_encoder
    from minisbert.models.sentence_encoder import SentenceEncoder
    from minisbert.models.static_encoder import distill
    from minisbert.system.devices import use_threads

    check_output(options.out, local_path(options.model))
    use_threads(options.threads)
    encoder = load_encoder(options.model, device=options.device)
    if not isinstance(encoder, SentenceEncoder) or encoder.vectors_are != "dense":
        raise InputError(
            f"--model {options.model}: only an encoder of dense vectors can be distilled to a table"
        )
    static = distill(encoder, options.dim, options.sif, progress=True)
    static.save(options.out)
    rows, width = static.embedding.weight.shape
    megabytes = 4 * rows * width / 2**20  # a float32 has 4 bytes
    say(f"wrote {rows:,} vectors of width {width} ({megabytes:.0f} MB) to {options.out}")
