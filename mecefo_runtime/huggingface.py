"""Checkpoints to and from Hugging Face's LLaMA folders: `config.json` and `model.safetensors`.

`python -m mecefo_runtime.huggingface export CHECKPOINT FOLDER` takes the folder of a step; `python -m
mecefo_runtime.huggingface import FOLDER ROOT` makes the checkpoint of step 0 in ROOT, which must have none: its
optimizer starts from nothing, and any data may follow. There is no tokenizer in it: tokens are bytes. Both are
lossless: parameters are stored in fp32; narrower ones are widened on import.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mecefo_runtime.checkpoint.checkpoint import Checkpoint, named_tensors, newest, step_folder, unit_names
from mecefo_runtime.checkpoint.manifest import CheckpointError, Identity, Stamp
from mecefo_runtime.checkpoint.unit import write_unit
from mecefo_runtime.job.config import JobConfig, ModelConfig
from mecefo_runtime.job.layout import EMBEDDING, HEAD
from mecefo_runtime.model.model import build_unit
from mecefo_runtime.state.units import UnitState

ENVIRONMENT_EXIT_CODE = 3
USAGE_EXIT_CODE = 4
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_LAYER_NAMES: Mapping[str, str] = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.q.weight": "self_attn.q_proj.weight",
    "attention.k.weight": "self_attn.k_proj.weight",
    "attention.v.weight": "self_attn.v_proj.weight",
    "attention.o.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.gate.weight": "mlp.gate_proj.weight",
    "ffn.up.weight": "mlp.up_proj.weight",
    "ffn.down.weight": "mlp.down_proj.weight",
}
_END_NAMES: Mapping[str, Mapping[str, str]] = {
    EMBEDDING: {"weight": "model.embed_tokens.weight"},
    HEAD: {"norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"},
}
# What our model is, in LlamaConfig's words: a folder that says otherwise computes something else.
_FIXED: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}
# What fp32 holds without loss.
_DTYPES = ("F32", "BF16", "F16")
_SHAPE_NAMES: Mapping[str, str] = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
}


class HuggingFaceError(ValueError):
    """A folder is not one that we can read or write; the message names it and says why."""


def export_checkpoint(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the parameters of `checkpoint` to `folder`, which must not exist or be empty.

    All of them are held in memory.

    Raises:
        HuggingFaceError: there is something in the way.
        CheckpointCorrupt: a file of the checkpoint is not what was written.
        OSError: `folder` cannot be written; then it is as it was.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise HuggingFaceError(f"{folder} exists already and is not an empty folder")
    tensors: dict[str, Tensor] = {}
    model = checkpoint.identity.model
    for unit in unit_names(model.num_layers):
        parameters = checkpoint.load_parameters(unit)
        for name, hf_name in _names(unit).items():
            tensors[hf_name] = _to_halves(name, parameters[name], model)
    temporary = folder.absolute().with_name(f".{folder.absolute().name}.writing-{uuid.uuid4().hex}")
    try:
        temporary.mkdir(parents=True)
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
        data = checkpoint.identity.data
        config = _config_of(model, None if data is None else data.sequence_length)
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        temporary.rename(folder)
    except SafetensorError as error:
        raise OSError(f"{folder}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def import_checkpoint(folder: Path, root: Path) -> Checkpoint:
    """Save the model in `folder` as the checkpoint of step 0 in `root`.

    Raises:
        HuggingFaceError: `folder` is no LLaMA model that ours can be, or `root` has a checkpoint already.
        OSError: `root` cannot be written.
    """
    if root.exists() and not root.is_dir():
        raise HuggingFaceError(f"{root} is no folder")
    existing = newest(root)
    if existing is not None:
        raise HuggingFaceError(f"{root} has a checkpoint already, of step {existing.step}: give another folder")
    raw = _read_json(folder / CONFIG)
    model = _model_of(folder / CONFIG, raw)
    sources = _sources_of(folder, model, is_tied=bool(raw.get("tie_word_embeddings", False)))
    job = JobConfig(model=model, nodes=1, gpus_per_node=1, data_parallel=1, pipeline=1)
    # Another lineage for every import: what one that was cut off left behind is no part of this one.
    stamp = Stamp(0, f"import-{uuid.uuid4().hex}", Identity(model, None))
    for unit in unit_names(model.num_layers):
        state = UnitState(unit, job)
        for name, parameter in state.module.named_parameters():
            path, hf_name = sources[unit, name]
            with torch.no_grad(), safe_open(path, "pt") as file:
                parameter.copy_(_to_pairs(name, file.get_tensor(hf_name).float(), model))
        write_unit(step_folder(root, 0), unit, stamp, named_tensors(state, state.storage), state.checksum())
    return Checkpoint.open(step_folder(root, 0))


def _sources_of(folder: Path, model: ModelConfig, *, is_tied: bool) -> dict[tuple[str, str], tuple[Path, str]]:
    """For every (unit, parameter) of ours the file and name that it comes from, all looked at but not read."""
    files = _files_of(folder)
    sources: dict[tuple[str, str], tuple[Path, str]] = {}
    for unit in unit_names(model.num_layers):
        module = build_unit(unit, model, 0, device="meta")
        for name, parameter in module.named_parameters():
            source = _names(unit)[name]
            if is_tied and source == "lm_head.weight":
                source = "model.embed_tokens.weight"
            if source not in files:
                raise HuggingFaceError(f"{folder} has no tensor {source}")
            _check_tensor(files[source], source, tuple(parameter.shape))
            sources[unit, name] = files[source], source
    known = {source for _, source in sources.values()} | {"lm_head.weight"}
    unknown = sorted(name for name in files if name not in known and not name.endswith("rotary_emb.inv_freq"))
    if unknown:
        raise HuggingFaceError(f"{folder} has a tensor {unknown[0]}, which the model of its {CONFIG} has not")
    return sources


def _check_tensor(path: Path, name: str, shape: tuple[int, ...]) -> None:
    try:
        with safe_open(path, "pt") as file:
            found = file.get_slice(name)
            dtype, found_shape = found.get_dtype(), tuple(found.get_shape())
    except (OSError, SafetensorError) as error:
        raise HuggingFaceError(f"{path}: {name} cannot be read: {error}") from None
    if found_shape != shape:
        raise HuggingFaceError(f"{path}: {name} has shape {found_shape}, {CONFIG} makes it {shape}")
    if dtype not in _DTYPES:
        raise HuggingFaceError(f"{path}: {name} is {dtype}, only {', '.join(_DTYPES)} can be imported")


def _names(unit: str) -> Mapping[str, str]:
    """Hugging Face's names of a unit's parameters."""
    if unit in _END_NAMES:
        return _END_NAMES[unit]
    layer = unit.removeprefix("layer.")
    return {name: f"model.layers.{layer}.{hf_name}" for name, hf_name in _LAYER_NAMES.items()}


def _num_rotated_heads(name: str, model: ModelConfig) -> int | None:
    """The heads of a weight whose output RoPE rotates, None for any other."""
    return {"attention.q.weight": model.num_heads, "attention.k.weight": model.num_key_value_heads}.get(name)


def _to_halves(name: str, weight: Tensor, model: ModelConfig) -> Tensor:
    """Our RoPE rotates neighbours 2i and 2i + 1 of a head, theirs i and i + D/2: reorder the rows of q and k."""
    num_heads = _num_rotated_heads(name, model)
    if num_heads is None:
        return weight
    return weight.view(num_heads, model.head_size // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def _to_pairs(name: str, weight: Tensor, model: ModelConfig) -> Tensor:
    """The inverse of `_to_halves`."""
    num_heads = _num_rotated_heads(name, model)
    if num_heads is None:
        return weight
    return weight.view(num_heads, 2, model.head_size // 2, -1).transpose(1, 2).reshape(weight.shape)


def _config_of(model: ModelConfig, sequence_length: int | None) -> dict[str, Any]:
    """The content of config.json, for transformers 4 (`rope_theta`) and 5 (`rope_parameters`)."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        **_FIXED,
        **{hf_name: getattr(model, name) for name, hf_name in _SHAPE_NAMES.items()},
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_size,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if sequence_length is not None:
        config["max_position_embeddings"] = sequence_length
    return config


def _model_of(path: Path, raw: Mapping[str, Any]) -> ModelConfig:
    """Our shape for a config.json; what it leaves out is LlamaConfig's default."""
    for name, expected in _FIXED.items():
        if raw.get(name, expected) != expected:
            raise HuggingFaceError(f"{path}: {name} is {raw[name]!r}, only {expected!r} can be imported")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    try:
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default":
            raise HuggingFaceError(f"{path}: RoPE of type {rope_type!r}, only 'default' can be imported")
        shape = {name: int(raw[hf_name]) for name, hf_name in _SHAPE_NAMES.items()}
        shape["num_key_value_heads"] = int(raw.get("num_key_value_heads") or shape["num_heads"])
        if min(shape.values()) < 1:
            raise HuggingFaceError(f"{path}: sizes must be at least 1")
        model = ModelConfig(
            **shape,
            rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10_000.0))),
            norm_epsilon=float(raw.get("rms_norm_eps", 1e-6)),
        )
        head_size = raw.get("head_dim") or model.head_size
    except HuggingFaceError:
        raise
    except KeyError as error:
        raise HuggingFaceError(f"{path} does not say {error.args[0]}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise HuggingFaceError(f"{path}: {error}") from None
    if head_size != model.head_size or head_size % 2:
        raise HuggingFaceError(f"{path}: head_dim {head_size}, only hidden_size / heads = {model.head_size} if even")
    return model


def _files_of(folder: Path) -> dict[str, Path]:
    """For every tensor in `folder` the file that it is in, of one file or of several with an index."""
    index = folder / INDEX
    if not index.exists():
        return dict.fromkeys(_tensor_names(folder / WEIGHTS), folder / WEIGHTS)
    places = _read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise HuggingFaceError(f"{index} has no weight_map")
    return {name: folder / Path(file).name for name, file in places.items()}


def _tensor_names(path: Path) -> list[str]:
    try:
        with safe_open(path, "pt") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise HuggingFaceError(f"{path} cannot be read: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HuggingFaceError(f"{path} cannot be read: {error}") from None
    if not isinstance(raw, dict):
        raise HuggingFaceError(f"{path} is no JSON object")
    return raw


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line and exit with the exit code of a usage error."""
        self.exit(USAGE_EXIT_CODE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = _Parser("python -m mecefo_runtime.huggingface", description="Checkpoints to and from Hugging Face.")
    commands = parser.add_subparsers(dest="command", required=True)
    exporting = commands.add_parser("export", help="write the parameters of a checkpoint as a LLaMA folder")
    exporting.add_argument("checkpoint", type=Path, help="the folder of a step, such as ROOT/step-00000500")
    exporting.add_argument("folder", type=Path, help="where to: must not exist or be empty")
    importing = commands.add_parser("import", help="make a LLaMA folder the checkpoint of step 0")
    importing.add_argument("folder", type=Path, help="a folder with config.json and model.safetensors")
    importing.add_argument("root", type=Path, help="where a job looks for checkpoints: must have none")
    given = parser.parse_args(arguments)
    try:
        if given.command == "export":
            checkpoint = Checkpoint.open(given.checkpoint)
            export_checkpoint(checkpoint, given.folder)
            print(f"step {checkpoint.step} of {given.checkpoint} is in {given.folder}")
        else:
            print(f"{given.folder} is in {import_checkpoint(given.folder, given.root).path}")
    except (CheckpointError, HuggingFaceError, OSError) as error:
        print(f"{parser.prog}: {' '.join(str(error).split())}", file=sys.stderr)
        return ENVIRONMENT_EXIT_CODE if isinstance(error, OSError) else USAGE_EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
