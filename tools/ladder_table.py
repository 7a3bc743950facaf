"""Write the README's tables from the catalog and the recorded results: python tools/ladder_table.py"""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean

from texlab import ablation
from texlab.catalog import kernels
from texlab.results import Result, load_results
from texlab.shapes import LAYERS
from texlab.studies import best_ms

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- ladder: written by tools/ladder_table.py -->\n", "<!-- end of ladder -->\n"
PIPELINE_BEGIN = "<!-- pipeline: written by tools/ladder_table.py -->\n"
PIPELINE_END = "<!-- end of pipeline -->\n"
TENSOR_BEGIN, TENSOR_END = "<!-- tensor: written by tools/ladder_table.py -->\n", "<!-- end of tensor -->\n"
#: contestant of the study -> what the README calls it
RIVALS = {
    "im2win_zigzag float32": "`im2win_zigzag`, float32, CUDA cores",
    "unfold+cuBLAS float16": "im2col as PyTorch does it (`unfold`) + cuBLAS, float16",
    "im2col+cuBLAS float16": "im2col by the faster of two ways + cuBLAS, float16",
    "cuDNN float16 NCHW": "cuDNN, float16, NCHW",
    "cuDNN float16 NHWC": "cuDNN, float16, NHWC",
}
LAYER = "cv9"  # the layer the table shows: 64 channels of 56 x 56, 64 filters of 3 x 3


def recorded() -> Result | None:
    """The recorded times of LAYER at its largest batch, default tunables; None before any were recorded."""
    try:
        rows = load_results("ladder").where(layer=LAYER, precision="float32")
    except FileNotFoundError:
        return None
    largest = max((row["n"] for row in rows), default=0)
    return rows.where(n=largest) if largest else None


def table() -> str:
    """The Markdown table, with the times' origin below it."""
    result = recorded()
    plain = [row for row in result or () if not row.get("tunables")]
    ms = {row["kernel"]: row["ms"] for row in plain if row.get("ms") is not None}
    lines = ["| file | what it does | time, ms |", "|---|---|---:|"]
    ladder = sorted((k for k in kernels.values() if k.rung), key=lambda k: k.rung)
    others = [k for k in kernels.values() if not k.rung and k.kind == "conv"]
    for kernel in [*ladder, *others]:
        time = f"{ms[kernel.name]:.3g}" if kernel.name in ms else "–"
        lines.append(f"| [`{kernel.file}`](kernels/{kernel.file}) | {kernel.header['title']} | {time} |")
    for row in plain:
        if row.get("peer") and row["kernel"] in ms:
            lines.append(f"| {row['kernel']} | another library, for comparison | {ms[row['kernel']]:.3g} |")
    if result:
        shape = LAYERS[LAYER].with_(n=plain[0]["n"])
        lines += ["", f"Times: {LAYER} ({shape}), layout transform included, {result.label}."]
    else:
        lines += ["", "Times appear here once they are recorded on a GPU (`python -m texlab.bench record ladder`)."]
    return "\n".join(lines) + "\n"


def ablation_table() -> str:
    """What each step towards the pipeline is worth, over the recorded layers, with its origin below it."""
    try:
        result = load_results("pipeline")
    except FileNotFoundError:
        result = None
    lines = [
        "| step | compared with | factor (layers' range) | slower on | registers | shared, KiB | blocks / SM | TFLOP/s | GB/s |"
    ]
    lines.append("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in ablation.factors(result or ()):
        cells = [row["step"], row["after"] or "–"]
        if "factor" in row:
            cells += [
                f"{row['factor']:.2f} ({row['least']:.2f} to {row['most']:.2f})",
                f"{row['losses']} of {row['layers']}",
            ]
        else:
            cells += ["–", "–"]
        if "registers" in row:
            cells += [f"{row['registers']}", f"{row['shared_bytes'] / 1024:.1f}", f"{row['resident_blocks']}"]
        else:
            cells += ["–"] * 3
        achieved = [
            f"{row[name]:,.{digits}f}" for name, digits in (("kernel_tflops", 1), ("kernel_gbps", 0)) if name in row
        ]
        lines.append(f"| {' | '.join(cells + (achieved or ['–', '–']))} |")
    if result:
        n = {row["n"] for row in result}
        batch = f"N = {n.pop()}" if len(n) == 1 else "several batch sizes"
        lines += [
            "",
            f"The convolution kernel alone; factors are geometric means over the layers, {batch}, {result.label}.",
        ]
    else:
        lines += ["", "Figures appear here once they are recorded on a GPU (`python -m texlab.bench record pipeline`)."]
    return "\n".join(lines) + "\n"


def tensor_table() -> str:
    """How many times faster the tensor cores are than each rival, over the recorded layers, with its origin below it."""
    try:
        result = load_results("twelve_layers")
    except FileNotFoundError:
        return "Figures appear here once they are recorded on a GPU (`python -m texlab.bench record twelve_layers`).\n"
    lines = ["| compared with | NHWC input | faster on | NCHW input | faster on |", "|---|---:|---:|---:|---:|"]
    for contestant, name in RIVALS.items():
        rival, cells = best_ms(result, contestant), [name]
        for layout in ("NHWC", "NCHW"):
            factors = [rival[layer] / ms for layer, ms in best_ms(result, f"tensor cores {layout}").items()]
            cells.append(f"{geometric_mean(factors):.2f} ({min(factors):.2f} to {max(factors):.2f})")
            cells.append(f"{sum(f > 1 for f in factors)} of {len(factors)}")
        lines.append(f"| {' | '.join(cells)} |")
    n = next(iter(result))["n"]
    lines += ["", f"Geometric means over the layers (their range), N = {n}, {result.label}."]
    return "\n".join(lines) + "\n"


def _between(text: str, begin: str, end: str, content: str) -> str:
    before, rest = text.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def replaced(readme: str) -> str:
    """The README's text with current tables."""
    readme = _between(readme, BEGIN, END, table())
    readme = _between(readme, PIPELINE_BEGIN, PIPELINE_END, ablation_table())
    return _between(readme, TENSOR_BEGIN, TENSOR_END, tensor_table())


if __name__ == "__main__":
    README.write_text(replaced(README.read_text(encoding="utf-8")), encoding="utf-8")
