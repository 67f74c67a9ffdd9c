"""Faults inside ranks: what they ask of the rank, and what they take for evidence."""

import asyncio
import dataclasses
import json
import os

import pytest
from pydantic import ValidationError

import chaos.faults.device._tensors
from chaos.errors import EffectNotSeen, InjectionError, TargetNotFound, UsageError
from chaos.faults.base import FaultContext, OwnedProcess
from chaos.faults.device.cuda import DeviceAssert, GpuHang, GpuOom
from chaos.faults.device.telemetry import EccTelemetry
from chaos.faults.device.tensor import BitFlip, Scale, SetInf, SetNan, StaleGradient
from chaos.faults.watch import Watch
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import PHASES
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.run_records import Telemetry
from tests.chaos.tiny_training import Training

pytestmark = pytest.mark.unit

TENSOR_FAULTS = (BitFlip, SetNan, SetInf, Scale, StaleGradient)
CUDA_FAULTS = (DeviceAssert, GpuHang, GpuOom)
INSIDE_FAULTS = (*TENSOR_FAULTS, *CUDA_FAULTS)
TARGET = ResolvedTarget(ranks=(2,))


class Inside:
    """Ranks whose effects tell what they were given beforehand."""

    def __init__(self, *told):
        self.told = list(told)
        self.begun = []
        self.lifted = []

    async def begin(self, rank, effect, arguments):
        self.begun.append((rank, effect, dict(arguments)))
        return len(self.begun), {}

    async def report(self, rank, handle, timeout_seconds):
        await asyncio.sleep(0)
        if not self.told:
            raise EffectNotSeen(f"rank {rank} reported nothing within {timeout_seconds:g} s")
        return self.told.pop(0)

    async def lift(self, rank, handle, timeout_seconds):
        self.lifted.append((rank, handle))
        return {}


class Processes:
    """Every rank is this process."""

    def rank_processes(self, ranks):
        return tuple(OwnedProcess("rank", ProcessId.of(os.getpid()), rank=rank, node=0) for rank in ranks)


def context(inside, folder=None, **more):
    return FaultContext(processes=Processes(), inside=inside, watch=Watch(), run_folder=folder, **more)


def inject(fault, on, *, target=TARGET, meanwhile=None):
    """Apply, verify, lift and undo, as the injector does; returns the evidence."""

    async def run():
        act = fault.prepare(target, on)
        await fault.apply(act, on)
        await asyncio.sleep(0)
        if meanwhile is not None:
            meanwhile()
        try:
            return await fault.verify(act, on, 1.0)
        finally:
            await fault.lift(act, on)
            assert fault.undo(act.undo_record) == fault.undo(act.undo_record)

    evidence = asyncio.run(run())
    assert json.loads(json.dumps(evidence)) == evidence
    assert evidence["summary"].strip()
    return evidence


def create(fault, **parameters):
    return fault(fault.Parameters(**parameters))


def affected(**more):
    element = {"index": 3, "place": [0, 3], "before": 1.0, "after": 4.0, "bit": 24}
    told = {"tensor": "layer.1.up.weight", "count": 1, "elements": [element]}
    return {"struck": told, "is_changed": True, "step": 5, **more}


CONSUMED = affected(outcome="consumed", update={"parameter_actual": 0.25, "parameter_clean": 0.5})


def rejected(step, verdict="repeat"):
    fields = {"verdict": verdict, "suspects": [2], "reason": "the gradient is not finite", "epoch": 1}
    return Event("step_unfit", "rank", 0.0, 0.0, 1, step=step, fields=fields)


@pytest.fixture(autouse=True)
def _be_impatient(monkeypatch):
    monkeypatch.setattr(chaos.faults.device._tensors, "JUDGEMENT_SECONDS", 0.1)


@pytest.mark.parametrize("fault", INSIDE_FAULTS, ids=lambda fault: fault.kind)
def test_nothing_told_is_nothing_seen_and_all_is_lifted(fault):
    inside = Inside()
    with pytest.raises(EffectNotSeen, match="reported nothing"):
        inject(create(fault), context(inside))
    assert inside.lifted == [(2, 1)]


@pytest.mark.parametrize("fault", INSIDE_FAULTS, ids=lambda fault: fault.kind)
def test_not_applied_it_is_not_verified(fault):
    async def run():
        wanted = create(fault)
        await wanted.verify(wanted.prepare(TARGET, context(Inside(CONSUMED))), context(Inside(CONSUMED)), 1.0)

    with pytest.raises(EffectNotSeen, match="was not started inside"):
        asyncio.run(run())


@pytest.mark.parametrize("fault", (*INSIDE_FAULTS, EccTelemetry), ids=lambda fault: fault.kind)
def test_a_target_without_ranks_is_refused(fault):
    with pytest.raises(TargetNotFound, match="coordinator"):
        create(fault).prepare(ResolvedTarget(role="coordinator"), context(Inside()))


def test_what_the_optimizer_took_in_is_evidence():
    inside = Inside(CONSUMED)
    evidence = inject(create(BitFlip, bit=24), context(inside))
    assert evidence["summary"] == (
        "rank 2: layer.1.up.weight[0, 3], bit 24: 1 -> 4; the optimizer used it: the parameter became 0.25 "
        "instead of 0.5"
    )
    assert evidence["ranks"][0]["outcome"] == "consumed"


def test_what_changed_by_little_is_shown_to_have_changed():
    last_place = {"before": 0.000109108, "after": 0.00010910801, "index": 3, "place": [0, 3], "bit": 2}
    told = {**CONSUMED, "struck": {**CONSUMED["struck"], "elements": [last_place]}}
    assert "bit 2: 0.000109108 -> 0.00010910801;" in inject(create(BitFlip), context(Inside(told)))["summary"]


@pytest.mark.parametrize("verdict", ["repeat", "skip", "evict"])
@pytest.mark.parametrize("outcome", ["left", "unchanged"])
def test_a_step_that_the_job_found_rejected_is_evidence(outcome, verdict):
    on = context(Inside(affected(outcome=outcome)))
    evidence = inject(create(SetNan), on, meanwhile=lambda: on.watch.feed(rejected(5, verdict)))
    assert f"step 5 was rejected: {verdict} (the gradient is not finite)" in evidence["summary"]
    assert evidence["ranks"][0]["judgement"]["suspects"] == [2]


@pytest.mark.parametrize("outcome", ["left", "unchanged"])
def test_a_step_that_was_left_without_a_judgement_is_none(outcome):
    on = context(Inside(affected(outcome=outcome)))
    with pytest.raises(EffectNotSeen, match="no rank checked the step"):
        inject(create(SetNan), on, meanwhile=lambda: on.watch.feed(rejected(4)))


def test_state_that_was_healed_before_it_was_read_is_evidence():
    on = context(Inside(affected(outcome="restored")))
    evidence = inject(create(BitFlip, where="parameters"), on, meanwhile=lambda: on.watch.feed(rejected(8, "heal")))
    assert evidence["ranks"][0]["judgement"]["verdict"] == "heal"


@pytest.mark.parametrize("outcome", ["otherwise", "unused", "failed"])
def test_other_outcomes_are_no_evidence(outcome):
    on = context(Inside(affected(outcome=outcome, reason="a mistake")))
    with pytest.raises(EffectNotSeen, match=r"layer\.1\.up\.weight"):
        inject(create(BitFlip), on, meanwhile=lambda: on.watch.feed(rejected(5)))


def test_memory_that_did_not_change_is_no_evidence():
    with pytest.raises(EffectNotSeen, match="did not change"):
        inject(create(BitFlip), context(Inside({**CONSUMED, "is_changed": False})))


def test_memory_that_did_not_change_at_the_hold_is_not_waited_for():
    class Unchanged(Inside):
        async def begin(self, rank, effect, arguments):
            handle, _ = await super().begin(rank, effect, arguments)
            return handle, affected(is_changed=False)

    inside = Unchanged(CONSUMED)
    with pytest.raises(EffectNotSeen, match=r"rank 2: layer\.1\.up\.weight.*: the values in memory did not change"):
        inject(create(Scale, where="parameters"), context(inside))
    assert inside.told == [CONSUMED]


def test_a_use_of_what_may_not_have_changed_is_no_evidence():
    with pytest.raises(EffectNotSeen, match="did not report whether it changed"):
        inject(create(BitFlip), context(Inside({key: CONSUMED[key] for key in CONSUMED if key != "is_changed"})))


def test_a_factor_that_changes_nothing_is_refused():
    with pytest.raises(UsageError, match="1 changes nothing: choose another factor") as refused:
        create(Scale, factor=1.0)
    assert refused.value.key == "factor"


def test_all_ranks_of_the_target_must_show_it():
    inside = Inside(CONSUMED)
    with pytest.raises(EffectNotSeen):
        inject(create(BitFlip), context(inside), target=ResolvedTarget(ranks=(1, 3)))
    assert [rank for rank, _, _ in inside.begun] == [1, 3] == [rank for rank, _ in inside.lifted]


def test_each_rank_and_incident_draws_for_itself():
    seeds = set()
    for seed in (7, 8):
        inside = Inside(CONSUMED, CONSUMED)
        fault = create(BitFlip)
        fault.seed = seed
        inject(fault, context(inside), target=ResolvedTarget(ranks=(1, 3)))
        seeds |= {arguments["seed"] for _, _, arguments in inside.begun}
    assert seeds == {"7/1", "7/3", "8/1", "8/3"}


@pytest.mark.parametrize(
    ("fault", "parameters", "effect", "arguments"),
    [
        (BitFlip, {}, "gradients:InjectGradients", {"how": "flip", "bit": "drawn", "sticky": False}),
        (
            BitFlip,
            {"where": "parameters", "tensor": "layer.*", "bit": 30, "elements": 2},
            "tensors:InjectParameters",
            {"how": "flip", "tensor": "layer.*", "bit": 30, "count": 2, "sticky": False},
        ),
        (SetNan, {"where": "optimizer"}, "tensors:InjectOptimizer", {"how": "fill", "number": "nan"}),
        (SetInf, {"where": "activations", "share": 0.5}, "activations:InjectActivations", {"share": 0.5}),
        (Scale, {"factor": -2.0}, "gradients:InjectGradients", {"how": "scale", "number": -2.0, "share": 1.0}),
        (Scale, {"index": 4}, "gradients:InjectGradients", {"how": "scale", "number": 1000.0, "index": 4}),
        (StaleGradient, {"layer": 3}, "gradients:KeepGradients", {"layer": 3}),
    ],
)
def test_parameters_reach_the_effect(fault, parameters, effect, arguments):
    inside = Inside(CONSUMED)
    # As an experiment keeps them: all written out.
    given = fault.Parameters(**parameters).model_dump(mode="json")
    inject(create(fault, **given), context(inside))
    ((_, name, told),) = inside.begun
    assert name == f"chaos.in_process.{effect}"
    assert arguments.items() <= told.items()
    assert ("share" in told) == ("share" in arguments)


@pytest.mark.parametrize(
    ("fault", "parameters"),
    [
        (BitFlip, {"where": "weights"}),
        (BitFlip, {"bit": "parity"}),
        (BitFlip, {"bit": 64}),
        (BitFlip, {"bit": -1}),
        (BitFlip, {"bit": True}),
        (SetNan, {"share": 0.5, "elements": 3}),
        (BitFlip, {"elements": 0}),
        (BitFlip, {"share": 0.5}),
        (SetNan, {"share": 1.5}),
        (SetNan, {"sticky": True}),
        (Scale, {"factor": float("nan")}),
        (StaleGradient, {"where": "gradients"}),
        (GpuHang, {"seconds": 0}),
        (EccTelemetry, {"xid": 0}),
    ],
)
def test_impossible_parameters_are_refused(fault, parameters):
    with pytest.raises((ValidationError, UsageError)):
        fault.Parameters(**parameters)


def test_parameters_are_read_from_a_command_line():
    assert BitFlip.Parameters(bit="30", elements="2", sticky="true").bit == 30


def test_only_a_stuck_bit_lasts():
    assert BitFlip.has_lifetime and create(BitFlip, sticky=True).lasts() and not create(BitFlip).lasts()
    assert not any(create(fault).lasts() for fault in (SetNan, SetInf, Scale, StaleGradient))


@pytest.mark.parametrize(
    ("where", "phases"),
    [
        ("parameters", PHASES),
        ("optimizer", PHASES),
        ("gradients", ("data", "forward", "backward", "reduce", "optimizer")),
        ("activations", ("data", "forward")),
    ],
)
def test_the_phases_at_which_it_still_lies_ahead(where, phases):
    assert BitFlip.phases_for(BitFlip.Parameters(where=where)) == phases


# ---- a GPU ----


@pytest.mark.parametrize("fault", CUDA_FAULTS, ids=lambda fault: fault.kind)
def test_what_needs_a_gpu_says_so_and_is_refused_inside_a_rank_that_has_none(fault):
    from importlib import import_module

    from chaos.in_process.base import InProcessFaultRefused

    assert fault.needs == ("cuda",)
    effect, arguments = create(fault)._effect()
    module, _, name = effect.partition(":")
    training = Training()
    with pytest.raises(InProcessFaultRefused, match="trains on no GPU"):
        getattr(import_module(module), name)(arguments, training, training.reports.append).begin(1, "forward")


@pytest.mark.parametrize(
    ("fault", "told", "said"),
    [
        (DeviceAssert, {"errors": ["device-side assert", "again"], "is_sticky": True}, "so did the next call: again"),
        (GpuHang, {"is_busy": True, "watched_seconds": 0.2, "seconds": 10.0}, "is blocked for 10 s"),
        (GpuOom, {"taken_bytes": 3 << 30, "error": "CUDA out of memory."}, "3.0 GiB taken"),
    ],
)
def test_what_a_gpu_shows_is_evidence(fault, told, said):
    assert said in inject(create(fault), context(Inside(told)))["summary"]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (DeviceAssert, {"errors": ["device-side assert"], "is_sticky": False}),
        (GpuHang, {"is_busy": False, "watched_seconds": 0.01, "seconds": 10.0}),
        (GpuOom, {"taken_bytes": 0, "error": ""}),
        (GpuOom, {"taken_bytes": 5, "error": ""}),
    ],
)
def test_a_gpu_that_goes_on_is_no_evidence(fault, told):
    with pytest.raises(EffectNotSeen):
        inject(create(fault), context(Inside(told)))


# ---- telemetry ----


def recorder(folder, *, writes=True):
    log = folder / "events.jsonl"
    log.write_text('{"kind":"run_started","fields":{}}\n')

    def emit(record, *, step=None, monotonic_seconds=None):
        if writes:
            with log.open("a") as file:
                file.write(json.dumps({"kind": record.KIND, "fields": record.to_fields()}) + "\n")

    return emit


def test_telemetry_is_in_the_log(tmp_path):
    on = context(Inside(), tmp_path, emit=recorder(tmp_path))
    evidence = inject(create(EccTelemetry, xid=94, ecc_sbe=3), on, target=ResolvedTarget(ranks=(0, 2)))
    assert evidence["ranks"] == [0, 2] and "the device itself was not touched" in evidence["summary"]
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()[1:]]
    assert [line["kind"] for line in lines] == ["telemetry"] * 2
    assert [(f["rank"], f["xid"], f["ecc_sbe"], f["ecc_dbe"]) for f in (line["fields"] for line in lines)] == [
        (0, 94, 3, 1),
        (2, 94, 3, 1),
    ]


def test_telemetry_that_is_not_in_the_log_was_not_seen(tmp_path):
    # Another incident's record is none of this one's.
    recorder_of_another = recorder(tmp_path)
    silent = context(Inside(), tmp_path, emit=recorder(tmp_path, writes=False))
    recorder_of_another(Telemetry(of_rank=2, xid=94, ecc_sbe=1, ecc_dbe=1, record="another"))
    with pytest.raises(EffectNotSeen, match=r"no telemetry of ranks \[2\]"):
        inject(create(EccTelemetry), silent)


def test_without_a_log_there_is_no_telemetry(tmp_path):
    with pytest.raises(InjectionError):
        inject(create(EccTelemetry), dataclasses.replace(context(Inside(), tmp_path), emit=None))
