"""Predict first: a question whose right answer is computed from a run, checked when the learner presses Check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import isclose
from typing import Any

import ipywidgets as widgets

RIGHT, WRONG, NEUTRAL = "#009E73", "#D55E00", "#56B4E9"  # Okabe-Ito; the words say the same as the colour


def judge(given: Any, wanted: Any, tolerance: float = 0.0) -> bool:
    """Whether ``given`` answers ``wanted``: numbers within a relative ``tolerance``, words without regard to case.

    >>> judge("32", 32), judge(" Padded ", "padded"), judge("2.9", 2.8929, 0.01), judge("many", 4)
    (True, True, True, False)
    """
    if isinstance(wanted, str):
        return str(given).strip().lower() == wanted.strip().lower()
    try:
        number = float(str(given).replace(",", "").replace("\N{MULTIPLICATION SIGN}", "").strip())
    except ValueError:
        return False
    return isclose(number, float(wanted), rel_tol=max(tolerance, 1e-9), abs_tol=1e-9)


def predict(
    question: str,
    answer: Any | Callable[[], Any],
    *,
    choices: Sequence[str] | None = None,
    hint: str = "",
    why: str | Callable[[Any], str] = "",
    tolerance: float = 0.0,
) -> widgets.VBox:
    """A question with a Check button.

    ``answer`` is the right value or a function that computes it (from a real run) when the learner checks; ``choices``
    makes it a multiple choice; a wrong answer shows ``hint``; a right one, or giving up, shows ``why`` (text, or a
    function of the right value). Text is HTML. An exception in ``answer`` is shown in the box, not lost.

    >>> box = predict("How many banks?", 32, hint="Count the columns.", why="One per lane.")
    """
    text = widgets.HTML(f"<div style='max-width:70em;line-height:1.5'><b>Predict first.</b> {question}</div>")
    if choices is None:
        entry = widgets.Text(placeholder="your answer", layout=widgets.Layout(width="12em"))
    else:
        entry = widgets.ToggleButtons(options=list(choices), value=None, style={"button_width": "auto"})
    check = widgets.Button(description="Check", icon="check", layout=widgets.Layout(width="8em"))
    reveal = widgets.Button(description="Show the answer", layout=widgets.Layout(width="11em", visibility="hidden"))
    reply = widgets.HTML()

    def say(colour: str, head: str, body: str) -> None:
        style = f"border-left:4px solid {colour};padding:2px 10px;margin:4px 0;max-width:70em;line-height:1.5"
        reply.value = f"<div role='status' style='{style}'><b>{head}</b> {body}</div>"

    def respond(giving_up: bool) -> None:
        given = entry.value
        if not giving_up and (given is None or not str(given).strip()):
            say(NEUTRAL, "Your turn.", "Write down what you expect, even a guess: being surprised is how it sticks.")
            return
        try:
            wanted = answer() if callable(answer) else answer
            reason = why(wanted) if callable(why) else why
        except Exception as error:
            say(WRONG, "The check itself failed.", escape(f"{type(error).__name__}: {error}"))
            return
        shown = escape(
            f"{wanted:,}" if isinstance(wanted, int) else f"{wanted:.4g}" if isinstance(wanted, float) else wanted
        )
        if giving_up:
            say(NEUTRAL, f"The answer is {shown}.", reason)
        elif judge(given, wanted, tolerance):
            say(RIGHT, f"Right: {shown}.", reason)
        else:
            reveal.layout.visibility = "visible"
            say(WRONG, f"Not {escape(str(given))}.", hint or "Look again, or let the kernel tell you below.")

    check.on_click(lambda _: respond(False))
    reveal.on_click(lambda _: respond(True))
    if choices is None:
        entry.continuous_update = False
        entry.observe(lambda change: respond(False), "value")
    box = widgets.VBox([text, widgets.HBox([entry, check, reveal]), reply])
    box.entry, box.check, box.reveal, box.reply = entry, check, reveal, reply
    return box
