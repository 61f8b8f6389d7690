"""Parts of code generation that CPU and GPU templates share (imports TVM)."""
