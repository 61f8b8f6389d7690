"""What a training step or a model costs on a device that is not here: time, memory, and the choice of a device.

Rooms, each above the ones before: ``trace`` (a step as plain data), ``memory``, ``cost`` (prices of operators),
``step`` (the graph of a step), ``whatif``; then forecasts and what compares them. ``import roller`` imports none of it.
Only ``trace.pytorch`` needs PyTorch, which is imported when a model is traced.
"""

from roller.insight.renamed import install

install()
