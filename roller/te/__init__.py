"""TVM tensor expressions: emission of scalar trees as TVM expressions, and the reader of TVM expressions."""
