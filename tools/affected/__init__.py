"""Test selection: which test files can a change reach, nearest first.

``grimp`` supplies the import graph; :mod:`tools.affected.dynamic_imports` declares the modules that code loads by
name, and :mod:`tools.affected.data_files` the files that code reads.
"""
