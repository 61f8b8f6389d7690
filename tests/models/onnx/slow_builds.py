"""Preloaded by Dask workers of tests: builds that take long enough to be killed in, and say where they ran.

Lines of the file ``ROLLER_TEST_LOG``: what (build, built, judge), the process, and what it was about.
"""

import os
import time

from roller.models.batch import worker_tasks

_build, _judge = worker_tasks.BuildTask.run, worker_tasks.CheckAndTimeTask.run


def _log(what, about):
    with open(os.environ["ROLLER_TEST_LOG"], "a") as file:  # one short line, written whole
        file.write(f"{what} {os.getpid()} {about}\n")


def _slow_build(task):
    size = task.expression.inputs[0].shape[0]
    _log("build", size)
    time.sleep(float(os.environ["ROLLER_TEST_BUILD_S"]))
    made = _build(task)
    _log("built", size)
    return made


def _logged_judge(task):
    _log("judge", task.expression.inputs[0].shape[0])
    return _judge(task)


def dask_setup(worker):
    """Called by a worker that preloads this module; importing it alone changes nothing."""
    worker_tasks.BuildTask.run, worker_tasks.CheckAndTimeTask.run = _slow_build, _logged_judge
