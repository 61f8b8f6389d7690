"""TVM tensor expressions: emitting scalar trees as TVM expressions, and reading TVM expressions."""
