"""Roller against TVM MetaSchedule, in speed and in seconds spent: ``python -m benchmarks.cpu.metaschedule``."""
