"""Hooks into torch that show what an external training does, and that are removed without a trace."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader
from torch.utils.hooks import RemovableHandle

from chaos.external.call_paths import path_in_call
from chaos.external.imports import Awaiting


class Observer(Protocol):
    """Receives what the training does, on its own thread."""

    def is_elsewhere(self) -> bool:
        """Whether this is a thread that is known not to train."""
        ...

    def on_data(self, source: object) -> None:
        """A batch is about to be fetched; `source` is the same for all batches of one loader."""
        ...

    def on_batch(self, source: object, batch: object, iterator: object, *, is_first: bool) -> None:
        """It has been, by `iterator`, whose first one it is or not."""
        ...

    def on_asked(self, iterator: object, indices: object) -> None:
        """A loader has drawn the indices of a batch that it will return."""
        ...

    def on_restarted(self, iterator: object) -> None:
        """The iterator of a loader begins anew: batches that it was asked for do not come."""
        ...

    def on_forward(self, module: object, arguments: tuple[object, ...], keywords: Mapping[str, object] | None) -> None:
        """The first module since `TorchHooks.await_forward` is about to compute something to be differentiated.

        `keywords` is None where they cannot be seen.
        """
        ...

    def may_be_trained(self, module: object) -> bool:
        """Whether a call of it, to be differentiated, may be of a step."""
        ...

    def on_backward(self, tensors: object, gradients: object) -> None:
        """A backward pass is about to begin."""
        ...

    def on_computed_back(self, tensors: object) -> None:
        """It is over."""
        ...

    def on_scaler_made(self, scaler: object) -> None:
        """The script has made a GradScaler."""
        ...

    def on_scaled(self, outputs: object, scaled: object) -> None:
        """A GradScaler has made `scaled` of `outputs`."""
        ...

    def on_left_out(self) -> None:
        """A GradScaler has left the optimizer's step out: the gradients were not finite."""
        ...

    def on_stepping(self, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """An optimizer is about to step; returns other arguments for it, or None."""
        ...

    def on_stepped(self, optimizer: Any) -> None:
        """It has stepped."""
        ...

    def on_loaded(self) -> None:
        """The state of an optimizer was loaded."""
        ...

    def on_compiled_step(self, optimizer: Any) -> None:
        """It has stepped inside a compiled function, since the last call of any of these."""
        ...

    def on_save(self, path: str | None) -> bool:
        """Something is about to be saved to a file; returns whether `on_saved` or `on_save_failed` is to follow.

        `path` is the destination, where it is known.
        """
        ...

    def on_saved(self, began_seconds: float, result: object, path: str | None) -> None:
        """The call that began then (CLOCK_MONOTONIC) has returned `result`: a future, where it continues.

        It saved to `path`, where that can be told.
        """
        ...

    def on_save_failed(self, error: BaseException, path: str | None) -> None:
        """The call that was to save to `path` has raised `error`."""
        ...

    def on_renamed(self, source: str, target: str) -> None:
        """A file or folder has been renamed."""
        ...

    def on_departure(self) -> None:
        """The process is about to end, or to become another program, at once."""
        ...


class _CompiledSteps:
    """What compiled code leaves for us: it may call nobody without a break of its graph, but set an attribute."""

    def __init__(self) -> None:
        self.optimizer: Any = None


class TorchHooks:
    """All of them, from `attach` to `detach`."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._undo: list[Callable[[], None]] = []
        self._forward: RemovableHandle | None = None
        self._is_forward_awaited = False
        self._is_compiled_call_hooked = False
        self._compiled_steps = _CompiledSteps()
        self.has_compiled_steps = self.is_telling_compiled_step = False
        self._num_stepped = 0

    def attach(self) -> None:
        """Install the hooks."""
        observer, compiled = self._observer, self._compiled_steps

        def stepping(optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            if torch.compiler.is_compiling():
                return None
            self.tell_compiled_step()
            return observer.on_stepping(optimizer, arguments, keywords)

        def stepped(optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if torch.compiler.is_compiling():
                compiled.optimizer = optimizer
            else:
                self._num_stepped += 1
                observer.on_stepped(optimizer)

        self._undo += [
            register_optimizer_step_pre_hook(stepping).remove,
            register_optimizer_step_post_hook(stepped).remove,
        ]
        # Tensor.backward calls it too.
        self._replace(torch.autograd, "backward", self._watch_backward)
        # In both of its places: what is pickled as `torch.save` is looked up in the second.
        self._replace(torch, "save", self._watch_save, torch.serialization)
        self._undo += [
            Awaiting("torch.distributed.checkpoint.state_dict_saver", self._watch_distributed_saves).cancel,
            Awaiting("safetensors.torch", self._watch_safetensors).cancel,
        ]
        # `pathlib` and `shutil` come to these.
        for name in ("rename", "replace"):
            self._replace(os, name, self._watch_rename)
        # No public place sees every fetch (2.13); without this one, `data` is announced with `forward`.
        iterators = getattr(dataloader, "_BaseDataLoaderIter", None)
        self._replace(iterators, "__next__", self._watch_fetch)
        self._replace(iterators, "_next_index", self._watch_indices)
        self._replace(iterators, "_reset", self._watch_reset)
        self._replace(Optimizer, "load_state_dict", self._watch_load)
        self._replace(torch.amp.GradScaler, "__init__", self._watch_scaler)
        self._replace(torch.amp.GradScaler, "scale", self._watch_scale)
        self._replace(torch.amp.GradScaler, "step", self._watch_scaled_step)
        self._undo.append(Awaiting("torch._dynamo.trace_rules", leave_out_of_compiling).cancel)
        self.await_forward()

    def detach(self) -> None:
        """Remove the hooks."""
        self._await_no_forward()
        while self._undo:
            self._undo.pop()()
        self._is_compiled_call_hooked = False

    def tell_compiled_step(self) -> None:
        """Tell of a compiled step that is over, if there is one: before anything else is told, and at the very end."""
        if self._compiled_steps.optimizer is None or self._observer.is_elsewhere():
            # A thread that saves, or fetches ahead, is not the one that trains.
            return
        optimizer, self._compiled_steps.optimizer = self._compiled_steps.optimizer, None
        self.has_compiled_steps = self.is_telling_compiled_step = True
        try:
            self._observer.on_compiled_step(optimizer)
        finally:
            self.is_telling_compiled_step = False

    def await_forward(self) -> None:
        """Tell of the next forward, once.

        A hook on all modules, and only until it is called: whatever the script's model is, the rest of the step does
        not pay for it.
        """
        if self._is_forward_awaited:
            return
        self._is_forward_awaited = True
        hooks = None if self._forward is None else self._forward.hooks_dict_ref()
        if self._forward is None or hooks is None:
            self._forward = register_module_forward_pre_hook(self._on_call)
        else:
            # Under the same handle: to make one costs more than the rest of this.
            hooks[self._forward.id] = self._on_call
        self._hook_compiled_call()

    def _await_no_forward(self) -> None:
        if self._forward is not None and self._is_forward_awaited:
            self._is_forward_awaited = False
            self._forward.remove()

    def _on_call(self, module: object, arguments: tuple[object, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        # Hooks on all modules are not given keyword arguments (torch 2.13), but called where they are.
        keywords = sys._getframe(1).f_locals.get("kwargs")
        self.on_module(module, arguments, keywords if isinstance(keywords, dict) else None)

    def on_module(
        self, module: object, arguments: tuple[object, ...], keywords: Mapping[str, object] | None = None
    ) -> None:
        """A module is about to compute, and its forward is awaited."""
        # Evaluation and parts that are not trained belong to no step; what is being compiled keeps nothing of us.
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if not self._observer.may_be_trained(module):
            return
        self.tell_compiled_step()
        self._await_no_forward()
        self._observer.on_forward(module, arguments, keywords)

    def _replace(
        self, owner: Any, name: str, watch: Callable[[Callable[..., Any]], Callable[..., Any]], *others: Any
    ) -> None:
        """`others` have the same thing by the same name."""
        original = getattr(owner, name, None)
        if original is None:
            return
        watching = functools.wraps(original)(watch(original))
        owners = [one for one in (owner, *others) if getattr(one, name, None) is original]
        for one in owners:
            setattr(one, name, watching)

        def restore() -> None:
            # Whoever replaced it after us keeps what they put there; it goes on to call us, and we the original.
            for one in owners:
                if getattr(one, name) is watching:
                    setattr(one, name, original)

        self._undo.append(restore)

    def _watch_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        observer = self._observer

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            self.tell_compiled_step()
            observer.on_backward(tensors, grad_tensors)
            if self.has_compiled_steps:
                # Of the end of the step nothing else tells in time.
                self.await_forward()
            result = original(tensors, grad_tensors, *args, **kwargs)
            observer.on_computed_back(tensors)
            # A step may consist of several passes.
            self.await_forward()
            return result

        return backward

    def _watch_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        observer = self._observer

        def save(*args: Any, **kwargs: Any) -> Any:
            self.tell_compiled_step()
            path = path_in_call(args, kwargs, "storage_writer", 1)
            if not observer.on_save(path):
                return original(*args, **kwargs)
            began_seconds = time.monotonic()
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                observer.on_save_failed(error, path)
                raise
            observer.on_saved(began_seconds, result, path)
            return result

        return save

    def _watch_distributed_saves(self, module: ModuleType) -> None:
        for name in ("save", "async_save"):
            original = getattr(module, name, None)
            # The package has them too, and so has who imported them from there before the first optimizer was made.
            others = [one for one in list(sys.modules.values()) if getattr(one, "__dict__", {}).get(name) is original]
            self._replace(module, name, self._watch_save, *(one for one in others if one is not module))

    def _watch_safetensors(self, module: ModuleType) -> None:
        # Under whatever names `save_file` and `save_model` were imported: all come to this one.
        self._replace(module, "serialize_file", self._watch_save)

    def _watch_rename(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rename(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(source, target, *args, **kwargs)
            if isinstance(source, str | os.PathLike) and isinstance(target, str | os.PathLike) and not kwargs:
                self._observer.on_renamed(os.fspath(source), os.fspath(target))
            return result

        return rename

    def watch_departure(self) -> None:
        """Also be told when the process is about to end, or to become another, without a word to `atexit`."""
        for name in ("_exit", "execv", "execve"):
            self._replace(os, name, self._watch_departure)

    def _watch_departure(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def depart(*args: Any, **kwargs: Any) -> Any:
            self.tell_compiled_step()
            self._observer.on_departure()
            return original(*args, **kwargs)

        return depart

    def _watch_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        observer = self._observer

        def fetch(iterator: Any) -> Any:
            # The loader itself is out of reach; this one is its own, and outlives the epoch.
            source = getattr(iterator, "_index_sampler", None)
            self.tell_compiled_step()
            observer.on_data(source)
            is_first = getattr(iterator, "_num_yielded", None) == 0
            batch = original(iterator)
            observer.on_batch(source, batch, iterator, is_first=is_first)
            return batch

        return fetch

    def _watch_indices(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_index(iterator: Any) -> Any:
            indices = original(iterator)
            self._observer.on_asked(iterator, indices)
            return indices

        return next_index

    def _watch_reset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reset(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            self._observer.on_restarted(iterator)
            return original(iterator, *args, **kwargs)

        return reset

    def _watch_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._observer.on_loaded()
            return result

        return load_state_dict

    def _watch_scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(scaler: Any, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            self._observer.on_scaler_made(scaler)

        return init

    def _watch_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if scaler.is_enabled():
                self._observer.on_scaled(outputs, scaled)
            return scaled

        return scale

    def _watch_scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._num_stepped
            result = original(scaler, optimizer, *args, **kwargs)
            if scaler.is_enabled() and self._num_stepped == before and self._compiled_steps.optimizer is None:
                self._observer.on_left_out()
            return result

        return step

    def _hook_compiled_call(self) -> None:
        """See calls of compiled modules ourselves: torch (2.13) warns at one that a hook on all modules sees."""
        compiler = sys.modules.get("torch._dynamo.eval_frame")
        if compiler is None or self._is_compiled_call_hooked:
            return
        self._is_compiled_call_hooked = True
        self._replace(getattr(compiler, "OptimizedModule", None), "__call__", self._watch_compiled)

    def _watch_compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_forward_awaited:
                return original(module, *args, **kwargs)
            self.on_module(module, args, kwargs)
            was_evaluation = self._is_forward_awaited
            self._await_no_forward()
            try:
                return original(module, *args, **kwargs)
            finally:
                if was_evaluation:
                    self.await_forward()

        return call


def leave_out_of_compiling(trace_rules: Any) -> None:
    """Have torch.compile leave our functions as they are, but for the hooks themselves, which it may trace.

    Where the graph of a compiled step breaks, at its backward pass for example, all that is called there would be
    compiled (torch 2.13, `torch/_dynamo/trace_rules.py`: `SKIP_DIRS`).
    """
    known, renew = getattr(trace_rules, "SKIP_DIRS", None), getattr(trace_rules, "_recompile_re", None)
    if isinstance(known, list) and callable(renew):
        own = Path(__file__)
        others = [path for path in own.parent.iterdir() if path != own]
        roots = [own.parents[1] / "in_process", own.parents[1] / "host", own.parents[2] / "mecefo_runtime"]
        new = [place for place in map(str, (*others, *roots)) if place not in known]
        if new:
            known += new
            renew()
