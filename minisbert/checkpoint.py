"""A folder on disk <-> the modules, strict in both directions.

The folder is laid out as sentence-transformers lays it out, so that models move both ways:

    config.json, model.safetensors       the encoder, with Hugging Face's names
    tokenizer.json, vocab.txt, ...       the tokenizer
    sentence_bert_config.json            the length limit
    modules.json                         what stands behind the encoder: pooling, then perhaps normalising
    1_Pooling/config.json                which pooling
"""

import dataclasses
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minisbert.bert import Bert, BertConfig
from minisbert.console import InputError
from minisbert.dialects import DIALECTS, Dialect
from minisbert.files import read_json, write_json

# what config.json may say about a model that this encoder does not compute, and the only values accepted
ACCEPTED = {"is_decoder": (False,), "add_cross_attention": (False,), "pruned_heads": (None, {})}


def read_config(folder: Path) -> tuple[Dialect, BertConfig]:
    """The family and sizes in ``config.json``; ``InputError`` for a model that ``Bert`` does not compute."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder with a model in it")
    raw = read_json(path)
    dialect = DIALECTS.get(raw.get("model_type"))
    if dialect is None:
        raise InputError(f"{path}: model_type {raw.get('model_type')!r} is not supported; {', '.join(DIALECTS)} are")
    for key, accepted in ACCEPTED.items():
        if raw.get(key, accepted[0]) not in accepted:
            raise InputError(f"{path}: {key} {raw[key]!r} is not supported, only {accepted[-1]!r} is")
    stated = dialect.fields(raw)
    fields = dataclasses.fields(BertConfig)
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    missing = [dialect.settings.get(name, name) for name in required if name not in stated]
    if missing:
        raise InputError(f"{path} does not say {', '.join(missing)}")
    try:
        return dialect, BertConfig(**{field.name: stated[field.name] for field in fields if field.name in stated})
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def load_bert(folder: str | Path) -> Bert:
    """The encoder of a folder, float32, in eval mode.

    Every tensor of the file is used or skipped by name, every parameter of the model is filled from the file.
    Raises ``InputError`` with the full list of missing, unexpected and misshapen tensors.
    """
    folder = Path(folder)
    dialect, config = read_config(folder)
    path = folder / "model.safetensors"
    found = read_tensors(path, dialect)
    has_pooler = any(name.startswith(f"{theirs}.") for theirs in dialect.pooler.values() for name in found)
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        bert = Bert(config, pooler=has_pooler)
    names = dialect.names(config.num_hidden_layers, has_pooler)
    wanted = {names[ours]: tuple(parameter.shape) for ours, parameter in bert.named_parameters()}

    problems = [f"missing {name} {shape}" for name, shape in wanted.items() if name not in found]
    problems += [f"unexpected {name} {tuple(found[name].shape)}" for name in found if name not in wanted]
    for name, shape in wanted.items():
        if name in found and tuple(found[name].shape) != shape:
            problems.append(f"misshapen {name}: {tuple(found[name].shape)}, config.json asks for {shape}")
        elif name in found and not found[name].is_floating_point():
            problems.append(f"{name} holds {found[name].dtype}, not floating point numbers")
    if problems:
        raise InputError(f"{path} does not fit {folder / 'config.json'}:\n  " + "\n  ".join(problems))
    bert.load_state_dict({ours: found[theirs].float() for ours, theirs in names.items()}, assign=True)
    return bert.eval()


def read_tensors(path: Path, dialect: Dialect) -> dict[str, Tensor]:
    """Every tensor of a safetensors file under its canonical name, those that the dialect skips left out."""
    if not path.is_file():
        hint = ""
        if path.with_name("pytorch_model.bin").exists():
            hint = "; pytorch_model.bin is a pickle, which can run code when it is read, and is not opened here"
        elif path.with_name("model.safetensors.index.json").exists():
            hint = "; a checkpoint in several shards is not supported"
        raise InputError(f"{path} is missing{hint}")
    found: dict[str, Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                canonical = dialect.canonical(name)
                if canonical in found:
                    raise InputError(f"{path} holds {canonical} twice, under two names")
                if canonical not in dialect.skipped:
                    found[canonical] = file.get_tensor(name)
    except SafetensorError as error:
        raise InputError(
            f"{path} is cut short or is not a safetensors file ({error}); fetch or save it again"
        ) from error
    return found


def save_bert(bert: Bert, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` in the model's own dialect, float32."""
    dialect = DIALECTS[bert.config.model_type]
    about = {"architectures": [dialect.architecture], "dtype": "float32"}
    write_json(folder / "config.json", about | dialect.raw(dataclasses.asdict(bert.config)))
    names = dialect.names(bert.config.num_hidden_layers, bert.pooler is not None)
    tensors = {
        names[ours]: parameter.detach().float().cpu().contiguous() for ours, parameter in bert.named_parameters()
    }
    try:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, most often
        raise OSError(f"{folder / 'model.safetensors'} could not be written: {error}") from error


# ------------------------------------------------------------------- what stands behind the encoder

# our names of the poolings and sentence-transformers' flags for them
POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}


@dataclasses.dataclass(frozen=True)
class SentenceConfig:
    """What a folder says about the way from hidden states to a sentence vector."""

    pooling: str | None  # None: the folder does not say
    normalize: bool  # scale each vector to length 1


def read_sentence_config(folder: Path) -> tuple[Path, SentenceConfig]:
    """The folder of the encoder and the pooling that ``modules.json`` lists.

    A plain encoder (no ``modules.json``) says nothing about pooling. Raises ``InputError`` for a module or a
    setting that would change the vectors and that is not supported.
    """
    if not (folder / "modules.json").is_file():
        return folder, SentenceConfig(pooling=None, normalize=False)
    encoder, pooling, normalize = folder, None, False
    for module in read_modules(folder / "modules.json"):
        kind = module["type"].rpartition(".")[2]  # old and new files name other packages, but the same class
        if kind == "Transformer":
            encoder = folder / module["path"]
        elif kind == "Pooling":
            pooling = read_pooling(folder / module["path"] / "config.json")
        elif kind == "Normalize":
            normalize = True
        else:
            raise InputError(f"{folder / 'modules.json'}: module {module['type']!r} is not supported")
    for path, key in (
        (encoder / "sentence_bert_config.json", "do_lower_case"),
        (folder / "config_sentence_transformers.json", "default_prompt_name"),
    ):
        if path.is_file() and read_json(path).get(key):
            raise InputError(f"{path}: {key} changes what is encoded and is not supported")
    return encoder, SentenceConfig(pooling, normalize)


def read_modules(path: Path) -> list[dict]:
    """The list in ``modules.json``, in order."""
    content = read_json(path, kind=list)
    for module in content:
        if not isinstance(module, dict) or not {"type", "path"} <= module.keys():
            raise InputError(f"{path}: each module needs a type and a path")
    return content


def read_pooling(path: Path) -> str:
    """The pooling in ``1_Pooling/config.json``: ``pooling_mode`` (new files) or one flag per mode (old files)."""
    raw = read_json(path)
    if "pooling_mode" in raw:
        stated = raw["pooling_mode"]
        modes = [stated] if isinstance(stated, str) else list(stated)
    else:
        named = {flag: mode for mode, flag in POOLING_FLAGS.items()}
        modes = [named.get(flag, flag) for flag, on in raw.items() if flag.startswith("pooling_mode_") and on]
    if len(modes) != 1 or modes[0] not in POOLING_FLAGS:
        raise InputError(f"{path}: pooling {modes} is not supported; one of {', '.join(POOLING_FLAGS)} is")
    return modes[0]


def write_sentence_config(config: SentenceConfig, width: int, limit: int, folder: Path) -> None:
    """Write what sentence-transformers needs beside the encoder, in the layout that all its versions read."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * config.normalize
    write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
    )
    for path, _ in modules[1:]:
        (folder / path).mkdir()
    flags = {flag: mode == config.pooling for mode, flag in POOLING_FLAGS.items()}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width} | flags)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )
