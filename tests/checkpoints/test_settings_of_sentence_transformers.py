"""Each setting that sentence-transformers writes is known: a new one fails until we decide."""

import inspect
import json
import re

import pytest

from minisbert.checkpoints.layout import read_folder
from minisbert.core import InputError
from tests.conftest import ROOT

SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "minisbert").rglob("*.py")))
READ = (
    "Transformer",
    "MLMTransformer",
    "Pooling",
    "Dense",
    "Normalize",
    "SpladePooling",
    "MultiVectorMask",
)
REFUSED = (
    "Router",
    "CLIPModel",
    "LogitScore",
    "CNN",
    "LSTM",
    "BoW",
    "WordWeights",
    "WordEmbeddings",
    "LayerNorm",
    "WeightedLayerPooling",
    "SparseAutoEncoder",
    "SparseStaticEmbedding",
    "HierarchicalTokenPooling",
    "LambdaTokenPooling",
    "BaseTokenPooling",
)
# settings that do not change the vectors of a text
WITHOUT_EFFECT = {
    "unpad_inputs",  # a faster way to the same ones
    "keep_in_fp32_modules",  # we compute in float32
    "pytorch",
    "sentence_transformers",
    "transformers",
    "__version__",
}

pytestmark = pytest.mark.reference


def module_classes() -> dict[str, type]:
    """All classes of modules that the library has, by name."""
    base = pytest.importorskip("sentence_transformers.base.modules")
    for name in ("sentence_transformer", "sparse_encoder", "multi_vector_encoder", "cross_encoder"):
        pytest.importorskip(f"sentence_transformers.{name}.modules")
    classes = {}
    pending = [base.Module]
    while pending:
        for subclass in pending.pop().__subclasses__():
            pending.append(subclass)
            if subclass.__module__.startswith("sentence_transformers") and subclass.config_keys:
                classes[subclass.__name__] = subclass
    return classes


def test_every_module_is_known():
    """Dropout is passed over: it does nothing but in training."""
    assert {*module_classes()} == {*READ, *REFUSED, "Dropout"}


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_is_not_read_is_refused_by_name(name, tmp_path):
    """Leaving a module out would give other vectors."""
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": f"sentence_transformers.models.{name}", "path": name},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match=rf"modules Transformer, {name} are not supported"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", READ)
def test_every_key_of_a_module_is_read(name):
    """A setting that we do not know may change the vectors."""
    for key in {*module_classes()[name].config_keys} - WITHOUT_EFFECT:
        assert re.search(rf'"{key}"|\b{key}:', SOURCES), f"{name} has {key}"


def test_every_key_of_a_model_is_read():
    """The keys are those that the code of the four kinds of models spells out."""
    kinds = {
        "base": "BaseModel",
        "sentence_transformer": "SentenceTransformer",
        "sparse_encoder": "SparseEncoder",
        "multi_vector_encoder": "MultiVectorEncoder",
        "cross_encoder": "CrossEncoder",
    }
    for module, kind in kinds.items():
        cls = getattr(pytest.importorskip(f"sentence_transformers.{module}.model"), kind)
        keys = {*re.findall(r'"(\w+)"(?::|\])', inspect.getsource(cls._get_model_config))}
        assert keys
        for key in keys - WITHOUT_EFFECT:
            assert re.search(rf'"{key}"|\b{key}:', SOURCES), f"{kind} has {key}"
