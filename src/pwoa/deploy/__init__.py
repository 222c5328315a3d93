"""Models where they run: packed files, ONNX, int8 and C. Light to import: each kind is imported when it is asked for."""
