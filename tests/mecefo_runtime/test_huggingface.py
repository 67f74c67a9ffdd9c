from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from mecefo_runtime.checkpoint.checkpoint import Checkpoint, named_tensors, newest, step_folder, unit_names, verify
from mecefo_runtime.checkpoint.manifest import DataOrder, Identity, Stamp
from mecefo_runtime.checkpoint.unit import write_unit
from mecefo_runtime.huggingface import (
    CONFIG,
    INDEX,
    WEIGHTS,
    HuggingFaceError,
    export_checkpoint,
    import_checkpoint,
    main,
)
from mecefo_runtime.job.config import JobConfig, ModelConfig
from mecefo_runtime.model.model import Block, Embedding, Head, build_unit
from mecefo_runtime.state.units import UnitState

pytestmark = pytest.mark.unit

# Every size differs from every other, so that nothing fits a place that is not its own.
PLAIN = ModelConfig(48, 112, 2, 4, 4, 96)
GROUPED = dataclasses.replace(PLAIN, num_key_value_heads=2, rope_theta=500.0, norm_epsilon=1e-5)
DATA = DataOrder(seed=0, samples_per_step=4, sequence_length=24, text_crc32=1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def job_of(model: ModelConfig) -> JobConfig:
    return JobConfig(model=model, nodes=1, gpus_per_node=1, data_parallel=1, pipeline=1)


def save(root: Path, model: ModelConfig, step: int = 7) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    stamp = Stamp(step, "first", Identity(model, DATA))
    for unit in unit_names(model.num_layers):
        state = UnitState(unit, job_of(model))
        # Norms too, which start as ones: a test of ones would not see them exchanged.
        state.storage.normal_(generator=generator)
        state.storage.mul_(0.3)
        write_unit(step_folder(root, step), unit, stamp, named_tensors(state, state.storage), state.checksum())
    return Checkpoint.open(step_folder(root, step))


def our_logits(checkpoint: Checkpoint, tokens_BT: Tensor) -> Tensor:
    model = checkpoint.identity.model
    x: Tensor = tokens_BT
    for unit in unit_names(model.num_layers):
        module = build_unit(unit, model, 0)
        assert isinstance(module, Embedding | Block | Head)
        module.load_state_dict(checkpoint.load_parameters(unit))
        x = module(x)
    return x


@pytest.mark.parametrize("model", [PLAIN, GROUPED], ids=["plain", "grouped"])
@torch.no_grad()
def test_transformers_computes_the_same(tmp_path: Path, model: ModelConfig) -> None:
    checkpoint = save(tmp_path / "root", model)
    export_checkpoint(checkpoint, tmp_path / "llama")
    theirs, loading = LlamaForCausalLM.from_pretrained(tmp_path / "llama", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.dtype == torch.float32
    tokens_BT = torch.randint(model.vocab_size, (3, 24), generator=torch.Generator().manual_seed(0))
    ours_BTV = our_logits(checkpoint, tokens_BT)
    assert ours_BTV.std() > 0.1
    torch.testing.assert_close(theirs.eval()(tokens_BT).logits, ours_BTV, rtol=1e-4, atol=1e-4)
    # Without its order of rows it is another model: the comparison would notice.
    weights = load_file(tmp_path / "llama" / WEIGHTS)
    ours = checkpoint.load_parameters("layer.0")["attention.q.weight"]
    assert not torch.equal(weights["model.layers.0.self_attn.q_proj.weight"], ours)
    theirs.model.layers[0].self_attn.q_proj.weight.copy_(ours)
    assert (theirs(tokens_BT).logits - ours_BTV).abs().max() > 1e-2


@pytest.mark.parametrize("model", [PLAIN, GROUPED], ids=["plain", "grouped"])
def test_export_and_import_keep_every_bit(tmp_path: Path, model: ModelConfig) -> None:
    checkpoint = save(tmp_path / "root", model)
    export_checkpoint(checkpoint, tmp_path / "llama")
    imported = import_checkpoint(tmp_path / "llama", tmp_path / "again")
    assert verify(imported.path).step == 0
    assert newest(tmp_path / "again") == imported
    assert imported.identity == Identity(model, None)
    for unit in unit_names(model.num_layers):
        ours, theirs = checkpoint.load_parameters(unit), imported.load_parameters(unit)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        state = UnitState(unit, job_of(model))
        imported.load_unit(unit, state)
        assert not state.first_moments.any() and not state.second_moments.any() and not state.step_counts.any()


@torch.no_grad()
def test_what_transformers_saves_can_be_imported(tmp_path: Path) -> None:
    export_checkpoint(save(tmp_path / "root", GROUPED), tmp_path / "llama")
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "llama")
    theirs.save_pretrained(tmp_path / "sharded", max_shard_size="60KB")
    assert (tmp_path / "sharded" / INDEX).exists()
    imported = import_checkpoint(tmp_path / "sharded", tmp_path / "again")
    tokens_BT = torch.arange(24).unsqueeze(0)
    torch.testing.assert_close(our_logits(imported, tokens_BT), theirs(tokens_BT).logits, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_tied_half_precision_model_becomes_an_untied_one_in_fp32(tmp_path: Path) -> None:
    export_checkpoint(save(tmp_path / "root", PLAIN), tmp_path / "llama")
    config = json.loads((tmp_path / "llama" / CONFIG).read_text())
    (tmp_path / "llama" / CONFIG).write_text(json.dumps(config | {"tie_word_embeddings": True}))
    weights = {name: tensor.bfloat16() for name, tensor in load_file(tmp_path / "llama" / WEIGHTS).items()}
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "llama" / WEIGHTS)
    imported = import_checkpoint(tmp_path / "llama", tmp_path / "again")
    embedding = imported.load_parameters("embedding")["weight"]
    assert embedding.dtype == torch.float32
    assert torch.equal(embedding, weights["model.embed_tokens.weight"].float())
    assert torch.equal(imported.load_parameters("head")["output.weight"], embedding)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mistral"}, "model_type is 'mistral', only 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "RoPE of type 'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "RoPE of type 'linear'"),
        ({"head_dim": 24}, "head_dim 24"),
        ({"hidden_size": "many"}, "invalid literal"),
        ({"hidden_size": 0}, "at least 1"),
        ({"num_attention_heads": 5}, "no multiple of num_heads 5"),
        ({"num_hidden_layers": 3}, "has no tensor model.layers.2."),
        ({"num_hidden_layers": 1}, "has a tensor model.layers.1."),
        ({"intermediate_size": 100}, "gate_proj.weight has shape (112, 48)"),
    ],
)
def test_models_that_ours_cannot_be_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    export_checkpoint(save(tmp_path / "root", PLAIN), tmp_path / "llama")
    config = json.loads((tmp_path / "llama" / CONFIG).read_text())
    (tmp_path / "llama" / CONFIG).write_text(json.dumps(config | change))
    with pytest.raises(HuggingFaceError) as refusal:
        import_checkpoint(tmp_path / "llama", tmp_path / "again")
    assert message in str(refusal.value)
    assert not (tmp_path / "again").exists()


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    export_checkpoint(save(tmp_path / "root", PLAIN), tmp_path / "llama")
    whole = (tmp_path / "llama" / WEIGHTS).read_bytes()

    def refused(*words: str) -> bool:
        with pytest.raises(HuggingFaceError) as refusal:
            import_checkpoint(tmp_path / "llama", tmp_path / "again")
        return all(word in str(refusal.value) for word in words)

    (tmp_path / "llama" / WEIGHTS).write_bytes(whole[:-10])
    assert refused(WEIGHTS, "cannot be read")
    save_file({"lm_head.weight": torch.zeros(1, dtype=torch.int64)}, tmp_path / "llama" / WEIGHTS)
    assert refused("has no tensor model.embed_tokens.weight")
    weights = {"model.embed_tokens.weight": torch.zeros(PLAIN.vocab_size, PLAIN.hidden_size, dtype=torch.int64)}
    save_file(weights, tmp_path / "llama" / WEIGHTS)
    assert refused("model.embed_tokens.weight is I64")
    (tmp_path / "llama" / WEIGHTS).unlink()
    assert refused(WEIGHTS)
    (tmp_path / "llama" / INDEX).write_text("{}")
    assert refused(INDEX, "no weight_map")
    (tmp_path / "llama" / CONFIG).write_text("[]")
    assert refused(CONFIG, "no JSON object")
    (tmp_path / "llama" / CONFIG).write_text("{")
    assert refused(CONFIG, "cannot be read")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "root", PLAIN)
    (tmp_path / "empty").mkdir()
    export_checkpoint(checkpoint, tmp_path / "empty")
    before = {path: path.read_bytes() for path in (tmp_path / "empty").iterdir()}
    assert {path.name for path in before} == {CONFIG, WEIGHTS}
    with pytest.raises(HuggingFaceError, match="exists already"):
        export_checkpoint(checkpoint, tmp_path / "empty")
    assert {path: path.read_bytes() for path in (tmp_path / "empty").iterdir()} == before
    with pytest.raises(HuggingFaceError, match="has a checkpoint already, of step 7"):
        import_checkpoint(tmp_path / "empty", tmp_path / "root")


def test_an_import_that_was_cut_off_can_be_repeated(tmp_path: Path) -> None:
    export_checkpoint(save(tmp_path / "root", PLAIN), tmp_path / "llama")
    first = import_checkpoint(tmp_path / "llama", tmp_path / "again")
    (first.path / "head" / "unit.json").unlink()
    assert newest(tmp_path / "again") is None
    assert verify(import_checkpoint(tmp_path / "llama", tmp_path / "again").path).step == 0


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = save(tmp_path / "root", PLAIN)
    llama, again = str(tmp_path / "llama"), str(tmp_path / "again")
    assert main(["export", str(checkpoint.path), llama]) == 0
    assert main(["import", llama, again]) == 0
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["step-00000000"]
    capsys.readouterr()
    (checkpoint.path / "head" / "unit.json").write_text("{}")
    (tmp_path / "file").touch()
    for arguments in (
        ["export", str(checkpoint.path), str(tmp_path / "other")],
        ["export", str(tmp_path / "nowhere"), str(tmp_path / "other")],
        ["import", llama, again],
        ["import", str(tmp_path / "nowhere"), str(tmp_path / "other")],
        ["import", llama, str(tmp_path / "file")],
    ):
        assert main(arguments) == 4
        printed = capsys.readouterr()
        assert printed.out == "" and len(printed.err.splitlines()) == 1
        assert str(tmp_path) in printed.err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("arguments", [[], ["publish"], ["export", "here"]])
def test_wrong_usage_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 4
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_command_ends_with_the_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mecefo_runtime.huggingface", "export", str(tmp_path), str(tmp_path / "there")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 4, answer.stderr
    assert len(answer.stderr.splitlines()) == 1 and "unit.json" in answer.stderr
