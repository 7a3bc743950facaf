"""Explorers for notebooks: a picture of what a kernel does, with controls. They need ipywidgets and anywidget.

``pipeline()`` when tiles are loaded and used, ``measured_timeline()`` the same on a GPU; ``fragments()`` which lane holds
which matrix element; ``precision()`` error against time;
``layout()`` window by window through the layouts, ``banks()`` a warp's shared-memory accesses, ``texture()`` a warp's
fetches from an image and the lines of memory it lies in; ``try_mapping()`` and ``try_order()`` a learner's own orders,
judged; ``predict()`` a question whose answer is computed; ``listing()`` a kernel's source with what each line moved;
``measured()`` times and counters, live or recorded; ``texture_agreement()``, ``texture_times()`` what was measured of
textures; ``schedules()`` the knobs of a TVM schedule, ``tuning()`` a search for the best, ``fusion()`` what
fusing saves, ``processor_times()`` what was recorded on processors; ``check_layout()`` judges a
learner's layout kernel; ``landscape()``, ``face()`` pictures to work on.
"""

from texlab.explore.bank_scenarios import try_mapping
from texlab.explore.banks import banks
from texlab.explore.costs import listing, measured
from texlab.explore.fragments import fragments
from texlab.explore.layout import check_layout, layout
from texlab.explore.pipeline import measured_timeline, pipeline
from texlab.explore.precisions import precision
from texlab.explore.predict import predict
from texlab.explore.schedule_tables import fusion, processor_times
from texlab.explore.schedules import schedules
from texlab.explore.texture import texture
from texlab.explore.texture_pictures import face, landscape
from texlab.explore.texture_tables import texture_agreement, texture_times, try_order
from texlab.explore.tuning import tuning

__all__ = [
    "banks",
    "check_layout",
    "face",
    "fragments",
    "fusion",
    "landscape",
    "layout",
    "listing",
    "measured",
    "measured_timeline",
    "pipeline",
    "precision",
    "predict",
    "processor_times",
    "schedules",
    "texture",
    "texture_agreement",
    "texture_times",
    "try_mapping",
    "try_order",
    "tuning",
]
