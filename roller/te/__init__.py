"""TVM tensor expressions: printing scalar trees into them, and reading them (imports TVM)."""
