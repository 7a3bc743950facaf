"""Which candidates tuning looks at: generators that yield lists of them and are sent what each list measured.

``grid``, ``random`` and ``evolutionary`` choose among the named knobs of ``texlab.schedules.space``; each looks at the
defaults first. ``meta_schedule`` and ``meta_schedule_random`` have TVM write schedules of its own. TVM's search runs in a
process of its own, where a crash of it (https://github.com/apache/tvm-ffi/issues/697) ends no notebook, and where what it
imports for 45 seconds, instructions no schedule here uses, can be left out.
"""

from __future__ import annotations

import os
import pickle
import random as random_
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from texlab.schedules.database import ir_hash
from texlab.schedules.tvm_import import cpu_target, load, threads
from texlab.schedules.work import Workload, space

Row = Mapping[str, Any]  # what was measured: "status", and "ms" where that is "ok"
BATCH = 8  # candidates that meta_schedule and evolution propose at a time


@dataclass(frozen=True)
class Candidate:
    """Knobs to try; or, from meta_schedule, TVM's JSON of a scheduled module, and its hash for knobs."""

    knobs: Mapping[str, Any]
    ir: str | None = None


Search = Generator[list[Candidate], Sequence[Row], None]


class SearchDied(RuntimeError):
    """TVM's search ended its process; the message says how."""


def points(choices: Mapping[str, Sequence[Any]], indices: Iterable[int]) -> list[Candidate]:
    """The candidates at these places of the grid, whose last knob changes fastest.

    >>> [dict(c.knobs) for c in points({"A": (8, 4), "B": (True, False)}, (0, 1, 3))]
    [{'A': 8, 'B': True}, {'A': 8, 'B': False}, {'A': 4, 'B': False}]
    """
    out = []
    for index in indices:
        knobs = {}
        for name in reversed(choices):
            index, at = divmod(index, len(choices[name]))
            knobs[name] = choices[name][at]
        out.append(Candidate({name: knobs[name] for name in choices}))
    return out


def grid(workload: Workload, target: str, trials: int, seed: int = 0) -> Search:
    """All of the grid; where that is more than ``trials``, so many of it, evenly spaced and beginning with the defaults."""
    choices = space(workload, target)
    total = prod(map(len, choices.values()))
    count = min(trials, total)
    yield points(choices, (i * total // count for i in range(count)))


def random(workload: Workload, target: str, trials: int, seed: int = 0) -> Search:
    """The defaults, then different places of the grid in random order; more ``trials`` go on where fewer ended."""
    choices = space(workload, target)
    yield points(choices, _draws(choices, trials, seed))


def _draws(choices: Mapping[str, Sequence[Any]], trials: int, seed: int) -> list[int]:
    total = prod(map(len, choices.values()))
    drawn, source = {0: None}, random_.Random(seed)
    while len(drawn) < min(trials, total):
        drawn[source.randrange(total)] = None
    return list(drawn)


def evolutionary(workload: Workload, target: str, trials: int, seed: int = 0) -> Search:
    """A third of ``trials`` at random; then children of the fastest quarter: each knob from one of two parents, and about
    one knob of each child anew."""
    choices = space(workload, target)
    source, seen = random_.Random(seed), {}
    most = min(trials, prod(map(len, choices.values())))
    batch = points(choices, _draws(choices, min(most, max(BATCH, trials // 3)), seed))
    while batch:
        rows = yield batch
        for candidate, row in zip(batch, rows, strict=True):
            seen[_key(candidate)] = (row["ms"] if row["status"] == "ok" else float("inf"), candidate)
        parents = [c for _, c in sorted(seen.values(), key=lambda pair: pair[0])[: max(2, len(seen) // 4)]]
        new: dict[Any, Candidate] = {}
        while len(new) < min(BATCH, most - len(seen)):
            mother, father = source.choice(parents).knobs, source.choice(parents).knobs
            knobs = {name: source.choice((mother, father))[name] for name in choices}
            for name, values in choices.items():
                if source.random() < 1 / len(choices):
                    knobs[name] = source.choice(values)
            child = Candidate(knobs)
            if _key(child) in seen or _key(child) in new:  # parents too much alike: go anywhere
                child = points(choices, [source.randrange(prod(map(len, choices.values())))])[0]
            if _key(child) not in seen:
                new[_key(child)] = child
        batch = list(new.values())


def _key(candidate: Candidate) -> Any:
    return tuple(candidate.knobs.values())


# TVM's own search --------------------------------------------------------------------------------------------------
def meta_schedule(workload: Workload, target: str, trials: int, seed: int = 0) -> Search:
    """TVM's evolutionary search over the schedules its rules derive from the workload, with its "random" cost model (its
    learned one needs 470 MB of xgboost). Raises SearchDied."""
    return _meta("evolutionary", workload, target, trials, seed)


def meta_schedule_random(workload: Workload, target: str, trials: int, seed: int = 0) -> Search:
    """Schedules drawn at random from those that TVM's rules derive ("replay-trace"). Raises SearchDied."""
    return _meta("replay-trace", workload, target, trials, seed)


METHODS: dict[str, Callable[..., Search]] = {
    function.__name__: function for function in (grid, random, evolutionary, meta_schedule, meta_schedule_random)
}


def _meta(strategy: str, workload: Workload, target: str, trials: int, seed: int) -> Search:
    if target != "llvm":
        raise ValueError(f"target={target!r}: meta_schedule is set up for 'llvm'; the other methods know {target!r}")
    here = str(Path(__file__).resolve().parent.parent.parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile() as printed:
        child = subprocess.Popen(
            [sys.executable, "-c", "from texlab.schedules.search import _serve; _serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            _send(child.stdin, (strategy, workload, trials, seed))
            while (texts := pickle.load(child.stdout)) is not None:
                rows = yield [Candidate({"ir": ir_hash(text)}, text) for text in texts]
                _send(child.stdin, [row.get("ms") for row in rows])
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            printed.seek(0)
            said = printed.read().decode(errors="replace").strip()[-2000:]
            raise SearchDied(f"TVM's meta_schedule ended its process (exit {child.wait()}): {said}") from None
        finally:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()


def _send(pipe: Any, message: Any) -> None:
    pickle.dump(message, pipe, protocol=5)
    pipe.flush()


def _serve() -> None:
    """The process of TVM's search: modules leave through stdout as JSON, their milliseconds (None: unusable) come back."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what TVM prints
    strategy, workload, trials, seed = pickle.load(sys.stdin.buffer)

    def measure(texts: list[str]) -> list[float | None]:
        _send(answers, texts)
        return pickle.load(sys.stdin.buffer)

    _tune_tir(workload, strategy, trials, seed, measure)
    _send(answers, None)


def _tune_tir(workload: Workload, strategy: str, trials: int, seed: int, measure: Callable[..., Any]) -> None:
    tvm = load()
    unused = types.ModuleType("tvm.s_tir.tensor_intrin")  # 45 seconds of instructions that the rules below do not use
    sys.modules[unused.__name__] = tvm.s_tir.tensor_intrin = unused
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    kept: dict[str, str] = {}

    @derived_object
    class Builder(ms.builder.PyBuilder):
        def build(self, inputs: list[Any]) -> list[Any]:
            out = []
            for item in inputs:
                module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(item.mod)
                # TVM deletes the directory of the path after the trial
                path = os.path.join(tempfile.mkdtemp(prefix="texlab-"), "module")
                kept[path] = tvm.ir.save_json(module)
                out.append(ms.builder.BuilderResult(path, None))
            return out

    def ready(ms_: float | None) -> Any:
        failed = None if ms_ is not None else "not the answer, or none"
        result = ms.runner.RunnerResult([ms_ / 1e3] if ms_ is not None else None, failed)

        @derived_object
        class Ready(ms.runner.PyRunnerFuture):
            def done(self) -> bool:
                return True

            def result(self) -> Any:
                return result

        return Ready()

    @derived_object
    class Runner(ms.runner.PyRunner):
        def run(self, inputs: list[Any]) -> list[Any]:
            return [ready(value) for value in measure([kept.pop(str(item.artifact_path)) for item in inputs])]

    if strategy == "evolutionary":  # a population that is bred in a second, not the default's half minute
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=64, init_min_unmeasured=20, genetic_num_iters=2
        )
    with tempfile.TemporaryDirectory(prefix="texlab-") as folder:
        ms.tune_tir(
            mod=workload.module(),
            target=cpu_target(),
            work_dir=folder,
            max_trials_global=trials,
            num_trials_per_iter=min(BATCH, trials),
            builder=Builder(),
            runner=Runner(),
            database="memory",
            cost_model=ms.cost_model.RandomModel(seed=seed),
            space="llvm",  # also where the processor has VNNI, whose rules want the instructions left out above
            strategy=strategy,
            num_tuning_cores=threads(),
            seed=seed,
        )
