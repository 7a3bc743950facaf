"""Explorers for notebooks: a picture of what a kernel does, with controls. They need ipywidgets and anywidget.

``fragments()`` which lane holds which matrix element, ``precision()`` error against time;
``layout()`` window by window through the layouts, ``banks()`` a warp's shared-memory accesses, ``try_mapping()`` a
learner's own lane order, judged; ``predict()`` a question whose answer is computed; ``listing()`` a kernel's source with
what each line moved; ``measured()`` times and counters, live or recorded; ``check_layout()`` judges a learner's layout kernel.
"""

from texlab.explore.bank_scenarios import try_mapping
from texlab.explore.banks import banks
from texlab.explore.costs import listing, measured
from texlab.explore.fragments import fragments
from texlab.explore.layout import check_layout, layout
from texlab.explore.precisions import precision
from texlab.explore.predict import predict

__all__ = ["banks", "check_layout", "fragments", "layout", "listing", "measured", "precision", "predict", "try_mapping"]
