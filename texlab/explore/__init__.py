"""Explorers for notebooks: a picture of what a kernel does, with controls. They need ipywidgets and anywidget.

``layout()`` window by window through the layouts, ``banks()`` a warp's shared-memory accesses, ``predict()`` a question
whose answer is computed.
"""

from texlab.explore.layout import layout
from texlab.explore.predict import predict

__all__ = ["layout", "predict"]
