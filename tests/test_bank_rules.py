"""The bank rules against hardware counters, one load instruction at a time: recorded here, read live with `-m gpu`."""

import pytest

from texlab import bank_patterns, trace
from texlab.results import load_results


@pytest.fixture(scope="module")
def recorded():
    return {(row["kernel"], row["source"]): row["measured"] for row in load_results("bank_rules").rows}


@pytest.mark.parametrize("width", bank_patterns.WIDTHS)
def test_wavefronts_are_what_the_hardware_counted(width, recorded):
    predicted = trace.wavefronts(*bank_patterns.addresses(width), width)
    names = list(bank_patterns.patterns(width))
    measured = [recorded[f"read{width}", name] for name in names]
    different = [(n, int(p), m) for n, p, m in zip(names, predicted, measured, strict=True) if p != m]
    assert not different, f"(pattern, predicted, measured): {different}"


@pytest.mark.parametrize("width", bank_patterns.WIDTHS)
def test_the_simulator_runs_the_patterns(width):
    program, inputs = bank_patterns.program(width)
    run = program.run(device="sim", trace=True, **inputs)
    loads = [i for i in run.trace.instructions if i.space == "shared" and i.kind == "load"]
    assert [i.width for i in loads] == [width]
    predicted = trace.wavefronts(*bank_patterns.addresses(width), width)
    assert run.trace.bank_conflicts().query("kind == 'load'").wavefronts.sum() == predicted.sum()


@pytest.mark.gpu
@pytest.mark.parametrize("width", bank_patterns.WIDTHS)
def test_this_gpu_counts_the_same(width):
    from texlab.counters import counters

    program, inputs = bank_patterns.program(width)
    table = counters(program, **inputs)
    measured = table[table.counter == "shared_load_wavefronts"].sort_values("launch").value
    assert measured.tolist() == trace.wavefronts(*bank_patterns.addresses(width), width).tolist()
