"""How often the check refuses a right kernel, and how many planted errors it finds.

``python -m benchmarks.check_quality --right 5000 --mutants 2000`` runs both, resumes where it was stopped, and writes
``benchmarks/results/check_quality.md``.
"""
