"""Models where they run: packed files, ONNX, int8 and C. `load` compiles a folder of C and returns it as a function."""

from pwoa.models.compiled import load_c as load

__all__ = ["load"]
